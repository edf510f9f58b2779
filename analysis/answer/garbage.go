// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/event"
)

// leastGarbage is the part of all memory in use from which on garbage is said first, and leastGarbageBytes how many bytes of it at least.
const (
	leastGarbage      = 0.25
	leastGarbageBytes = 1 << 20
)

// Garbage is memory that no variable leads to any more and that waits for Python's cycle collector. Sizes are bytes.
type Garbage struct {
	Bytes  int64
	Total  int64  // Answer.Total, of which it is a part
	About  bool   // of some of it only the line was read that allocated it, others of which are garbage
	Holder string // of most of it: "garbage Linear.*"
	Advice string // how to end it
}

// garbageOf is the garbage of an answer, where it is a large part. What grows says so itself.
func (a *Answer) garbageOf(g *grouping, in *Input) *Garbage {
	out := &Garbage{Total: a.Total, About: g.inferred}
	largest := int64(0)
	for holder, bytes := range g.garbage {
		out.Bytes += bytes
		if bytes > largest || bytes == largest && holder < out.Holder {
			largest, out.Holder = bytes, holder
		}
	}
	if out.Bytes < leastGarbageBytes || float64(out.Bytes) < leastGarbage*float64(a.Total) {
		return nil
	}
	if a.Growing() {
		for i := range a.Leaks.Findings {
			if advice.IsGarbage(a.Leaks.Findings[i].Holder) {
				return nil
			}
		}
	}
	out.Advice = advice.Text(&advice.Evidence{Layer: event.LayerTorch, Holder: out.Holder, Facts: advice.FactsOf(out.Holder, in.Facts)})
	return out
}
