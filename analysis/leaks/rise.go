// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Riser is a line that contributes to Steps.Rise.
type Riser struct {
	Name   string
	Holder string // of most of its blocks in the latest scan that names one; empty: not known
	Bytes  uint64
	Turns  bool // its blocks may come and go, as sessions do
}

// reachedBefore reports whether as much as at the end survived a step of the earlier half, after the warm-up, and was freed again.
func (s *series) reachedBefore() bool {
	end := s.windows[len(s.windows)-1].Bytes
	from := (floors.WarmUp + s.width) / s.width
	half := s.windows[:len(s.windows)/2]
	return slices.ContainsFunc(half[min(from, len(half)):], func(f floor) bool { return f.Bytes >= end })
}

// isExcused reports whether the rise of a series in its later half is not lasting, by the rules for findings: it is a
// tooth of a sawtooth, entries that come and go, or a height that was reached before.
func (s *series) isExcused() bool {
	_, rises, saw := s.sawtooth(floors.BlocksOf, minTroughs)
	return saw && !rises || s.byChance(len(s.windows)/2) || s.reachedBefore()
}

// hasFallen reports whether a series fell by at least half of its rise in the later half: for garbage, because the collector ran.
func (s *series) hasFallen(rise int64) bool {
	highest := s.windows[0].Bytes
	for _, w := range s.windows {
		if 2*(highest-w.Bytes) >= rise {
			return true
		}
		highest = max(highest, w.Bytes)
	}
	return false
}

// risers returns the lines whose memory rose in the later half of all steps, the most bytes first, and the bytes of excused rises.
func (d *detector) risers(o *Options) (all []Riser, excused uint64) {
	for k, s := range d.lines {
		if k.place.layer != event.LayerAllocator || s.windows == nil {
			continue
		}
		switch by := floors.LaterRise(s.windows); {
		case by == 0:
		case s.isExcused() || o.Garbage[k.line.name()] != "" && s.hasFallen(by):
			excused += uint64(by)
		default:
			all = append(all, Riser{Name: k.line.name(), Bytes: uint64(by)})
		}
	}
	sorts.Func(all, func(x, y Riser) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	return all, excused
}
