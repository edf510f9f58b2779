// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"cmp"
	"slices"
)

// Span is a time in which a process was in one phase: from the first to the last of its allocations, by any thread.
type Span struct {
	Phase    Phase
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, both in it
}

// Spans lists the phases of a process, one behind the other: those of a training loop, as Lifetimes follows it, and the batches that the
// loop's own thread loads. What runs beside the loop ends no phase: communication, threads that load batches, stacks that say nothing. The
// zero value has seen nothing. Not safe for concurrent use.
type Spans struct {
	list  []Span // by time; they do not overlap
	tid   uint32 // of the loop: it made the last allocation outside the backward pass
	taken uint64 // where the first of the list ended when it was taken; 0: it was not
}

// See takes an allocation of PyTorch's, in the order of events.
func (s *Spans) See(time uint64, tid uint32, p Phase) {
	n := len(s.list)
	named := !slices.Contains(Phases, p) // by the program
	if !turns(p) && !named && (p != Input || n > 0 && tid != s.tid) {
		return
	}
	if n == 0 || s.list[n-1].Phase != p {
		from := time
		if n > 0 {
			from = max(from, s.list[n-1].To) // events of two threads can come in another order than that of their times
		}
		s.list = append(s.list, Span{p, from, from})
		n++
	}
	last := &s.list[n-1]
	last.To = max(last.To, time)
	if p != Backward { // autograd has threads of its own
		s.tid = tid
	}
}

// Len is how many spans there are to be taken, and one that was.
func (s *Spans) Len() int { return len(s.list) }

// Take returns the spans that began or went on since it was called last, by time: where they are more than most, the longest.
func (s *Spans) Take(most int) []Span {
	n := len(s.list)
	if n == 0 {
		return nil
	}
	out := s.list
	if s.taken == out[0].To {
		out = out[1:]
	}
	out = slices.Clone(out)
	if len(out) > most {
		slices.SortFunc(out, func(x, y Span) int { return cmp.Or(cmp.Compare(y.To-y.From, x.To-x.From), cmp.Compare(x.From, y.From)) })
		out = out[:most]
		slices.SortStableFunc(out, func(x, y Span) int { return cmp.Compare(x.From, y.From) })
	}
	s.list = append(s.list[:0], s.list[n-1])
	s.taken = s.list[0].To
	return out
}
