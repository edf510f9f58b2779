// SPDX-License-Identifier: Apache-2.0

package oom

import "github.com/gputrace/gputrace/event"

// Departure is the first request of a step that is larger than all of its line in the steps before, where a step begins to differ from
// them: mostly what makes its input. Sizes are requested bytes.
type Departure struct {
	Site  string // empty: none
	Bytes uint64
	Usual uint64 // the largest of that line in a step before
}

// Ladder counts requests of one line each of which was larger than the one before by the same number of bytes: a tensor is replaced
// by a longer one again and again.
type Ladder struct {
	Count int    // with the one that failed; 0: no ladder
	More  uint64 // bytes by which each is larger
}

const (
	departsBy    = 4 // a request departs if it is larger by one part in this number
	departsAfter = 3 // and its line was seen in as many steps
	leastLadder  = 8 // rungs
	keptLadders  = 4 // of a line, such as one that is called for several tensors in turn
)

// lineAsks is what is known of the requests of a line.
type lineAsks struct {
	early   uint64 // the largest before the first step
	largest uint64 // of the steps that have ended
	now     uint64 // of the current step, or of the last one with a request
	step    int    // the step of now
	steps   int    // number of steps with requests that have ended
	ladders [keptLadders]rung
}

// rung is the last request of a ladder.
type rung struct {
	size, more uint64
	count      int
}

// requests follows the sizes of requests of one allocator.
type requests struct {
	lines   map[string]*lineAsks
	step    int
	departs Departure
}

// see handles a request that was served in a step; size is in bytes, as requested.
func (r *requests) see(site string, size uint64, step int) {
	s := r.lines[site]
	if s == nil {
		if r.lines == nil {
			r.lines = map[string]*lineAsks{}
		}
		s = &lineAsks{step: step}
		r.lines[site] = s
	}
	r.begin(step)
	s.begin(step)
	if r.departs.Bytes == 0 && step > 0 && s.departs(size) {
		r.departs = Departure{site, size, s.largest}
	}
	s.now = max(s.now, size)
	l := s.ladder(size)
	*l = l.next(size)
}

func (r *requests) begin(step int) {
	if step != r.step {
		r.step, r.departs = step, Departure{}
	}
}

func (s *lineAsks) begin(step int) {
	if step == s.step {
		return
	}
	if s.step > 0 {
		s.steps++
		s.largest = max(s.largest, s.now)
	} else {
		s.early = max(s.early, s.now)
	}
	s.step, s.now = step, 0
}

func (s *lineAsks) departs(size uint64) bool {
	return s.steps >= departsAfter && size > s.largest+s.largest/departsBy
}

// ladder returns the ladder that a request continues, otherwise the shortest, which it replaces.
func (s *lineAsks) ladder(size uint64) *rung {
	best := &s.ladders[0]
	for i := range s.ladders {
		l := &s.ladders[i]
		if l.continues(size) {
			return l
		}
		if l.count < best.count {
			best = l
		}
	}
	return best
}

// continues reports whether a request is the next of a ladder; the second decides by how much each is larger, at most as much as the first.
func (l *rung) continues(size uint64) bool {
	if l.count == 1 {
		return size > l.size && size <= 2*l.size
	}
	return l.count > 1 && size == l.size+l.more
}

// next returns a rung with a request above it, or the first of another ladder.
func (l *rung) next(size uint64) rung {
	if l.continues(size) {
		return rung{size, size - l.size, l.count + 1}
	}
	return rung{size, 0, 1}
}

// atFailure completes what is known with the request that failed, whose size PyTorch has rounded.
func (r *requests) atFailure(site string, size uint64, step int) (d Departure, l Ladder) {
	r.begin(step)
	d = r.departs
	s := r.lines[site]
	if s == nil {
		return d, Ladder{}
	}
	s.begin(step)
	if d.Bytes == 0 && step > 0 && s.departs(size) {
		d = Departure{site, size, s.largest}
	}
	for i := range s.ladders {
		x := &s.ladders[i]
		if x.count > 1 && roundedUp(x.size+x.more) == size && x.count+1 >= max(leastLadder, l.Count) {
			l = Ladder{x.count + 1, x.more}
		}
	}
	return d, l
}

// requestBytes is the requested bytes of an allocation, or its block's where they are not known.
func requestBytes(e *event.Event) uint64 {
	if e.Requested != event.Unknown {
		return e.Requested
	}
	return e.Size
}

// setRequests compares the requests of the failing step and of the failing line with the ones before.
func (f *follower) setRequests(c *Case) {
	t := f.totals[accountKey{c.PID, c.Device}]
	if t == nil {
		return
	}
	c.Departs, c.Ladder = t.asks.atFailure(c.Site, c.Requested, c.Step)
	if s := t.asks.lines[c.Site]; s != nil && c.Step > 0 {
		c.served = roundedUp(s.early) >= c.Requested
	}
}

// roundedUp is a size as PyTorch rounds it (round_size in c10/cuda/CUDACachingAllocator.cpp) unless its settings say otherwise.
func roundedUp(size uint64) uint64 { return (size + 511) &^ 511 }
