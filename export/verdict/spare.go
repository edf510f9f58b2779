// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
)

// Words for the remarks below a verdict, as people see them.
const (
	Cached  = "CACHED"
	Waiting = "WAITING"
	Retried = "RETRIED"
	Garbage = "GARBAGE"
)

// Spare returns remarks on garbage, unused reserved memory, memory that waits for another stream, and retried requests,
// each if it is large.
func Spare(a *answer.Answer) []Text {
	var out []Text
	if g := a.Garbage; g != nil {
		out = append(out, Text{Word: Garbage, Text: garbage(g, a)})
	}
	if a.Cached != nil {
		out = append(out, Text{Word: Cached, Text: cached(a.Cached)})
	}
	if w := a.Waiting; w != nil {
		text := fmt.Sprintf("%s for another stream at %s: the program freed it, and work of a stream named to record_stream() may still use it",
			table.Bytes(w.Bytes), table.Offset(w.Time, a.Start))
		out = append(out, Text{Word: Waiting, Text: text})
	}
	if a.Retried != nil {
		out = append(out, Text{Word: Retried, Text: retried(a.Retried)})
	}
	return out
}

// garbageAt are names of the moments of rows, for the sentence about garbage.
var garbageAt = map[answer.When]string{
	answer.AtEnd: "at the end", answer.AtPeak: "at the peak", answer.AtFailure: "when the request failed",
	answer.AtExit:       "before the program ended",
	answer.EachAtItsOwn: "each at its own moment",
}

func garbage(g *answer.Garbage, a *answer.Answer) string {
	about, at := "", garbageAt[a.When]
	if g.About {
		about = "about "
	}
	if g.Time != 0 {
		at = "at " + table.Offset(g.Time, a.Start)
	}
	return fmt.Sprintf("%s%s of %s in use %s waited for Python's cycle collector. %s", about, table.SignedBytes(g.Bytes),
		table.SignedBytes(g.Total), at, g.Advice)
}

func cached(c *answer.Cached) string {
	text := fmt.Sprintf("%s of %s reserved is free, even at the latest peak of %s", table.Bytes(c.Bytes), table.Bytes(c.Reserved),
		table.Bytes(c.Used))
	if c.Largest != event.Unknown {
		text += fmt.Sprintf(" (largest piece %s)", table.Bytes(c.Largest))
	}
	switch {
	case c.From > 0 && c.NewStreams > 0 && c.Streams >= manyStreams:
		return text + fmt.Sprintf(". Reserved memory rose all along, from %s to %s: %d streams were used, "+
			"%d of them only in the later half of the recording, and memory that is freed on one serves no other; reuse a few streams",
			table.Bytes(c.From), table.Bytes(c.Reserved), c.Streams, c.NewStreams)
	case c.From > 0:
		text += fmt.Sprintf(". Reserved memory rose all along, from %s to %s", table.Bytes(c.From), table.Bytes(c.Reserved))
	}
	return text + ": gputrace whatif compares settings of the allocator"
}

// manyStreams are more streams than a program has for its own work and its copies.
const manyStreams = 3

func retried(r *answer.Retried) string {
	text := table.Were(r.Count, "request") + " refused and recovered: PyTorch returned its cache to the driver and asked again"
	if r.Slower > 0 {
		text += fmt.Sprintf("; steps with one took %.1f times as long (%s instead of %s)",
			r.Slower, table.Duration(time.Duration(r.With)), table.Duration(time.Duration(r.Without)))
	}
	return text
}
