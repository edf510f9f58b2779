// SPDX-License-Identifier: Apache-2.0

package phases

import "github.com/gputrace/gputrace/event"

const (
	// minEnds is how many frees it takes to say what is usual, and usualShare the part of them that must be alike.
	minEnds    = 5
	usualShare = 0.9
)

// Ends counts in which phases the memory of keys is freed. A free has no stack, as a rule; its phase is known where its thread does
// nothing else, as autograd's, or where the allocations of the thread before and after it are of one phase, and the training loop did
// not go on in between. Not safe for concurrent use.
type Ends[K comparable] struct {
	c       *Classifier
	loop    *Lifetimes
	threads map[threadID]*freeing[K]
	counts  map[K]*tally[Phase]
}

type threadID struct{ pid, tid uint32 }

// freeing is a thread, and its frees since its last allocation.
type freeing[K comparable] struct {
	phase   Phase // of its last allocation
	turn    uint64
	several bool // it had other phases before
	pending map[K]uint64
}

// NewEnds begins to count.
func NewEnds[K comparable](c *Classifier) *Ends[K] {
	return &Ends[K]{c: c, loop: c.Follow(), threads: map[threadID]*freeing[K]{}, counts: map[K]*tally[Phase]{}}
}

// See takes the next event, before it is applied.
func (e *Ends[K]) See(ev *event.Event) {
	if ev.Kind != event.KindAlloc || ev.Layer != event.LayerAllocator {
		return
	}
	e.loop.See(ev)
	phase, turn := e.c.Of(ev.Stack).Phase, e.loop.process(ev.PID).turn
	id := threadID{ev.PID, ev.TID}
	t := e.threads[id]
	if t == nil {
		e.threads[id] = &freeing[K]{phase: phase, turn: turn, pending: map[K]uint64{}}
		return
	}
	t.several = t.several || phase != t.phase
	if len(t.pending) > 0 {
		e.settle(t, phase == t.phase && turn == t.turn || !t.several)
	}
	t.phase, t.turn = phase, turn
}

// settle counts the frees of a thread since its last allocation.
func (e *Ends[K]) settle(t *freeing[K], sure bool) {
	phase := Ambiguous
	if sure {
		phase = t.phase
	}
	for k, n := range t.pending {
		e.add(k, phase, n)
	}
	clear(t.pending)
}

func (e *Ends[K]) add(k K, p Phase, n uint64) {
	all := e.counts[k]
	if all == nil {
		all = &tally[Phase]{}
		e.counts[k] = all
	}
	all.add(p, n)
}

// Freed counts a free of a key's memory by an event.
func (e *Ends[K]) Freed(k K, ev *event.Event) {
	if ev.Stack != 0 {
		e.add(k, e.c.Of(ev.Stack).Phase, 1)
		return
	}
	if t := e.threads[threadID{ev.PID, ev.TID}]; t != nil {
		t.pending[k]++
		return
	}
	e.add(k, Unknown, 1)
}

// Usual is the phase in which the memory of keys is freed as a rule; Unknown: there is none, or too few frees were seen.
func (e *Ends[K]) Usual(keys []K) Phase {
	for _, t := range e.threads {
		e.settle(t, !t.several)
	}
	sums, all := map[Phase]uint64{}, uint64(0)
	for _, k := range keys {
		if e.counts[k] == nil {
			continue
		}
		for _, c := range *e.counts[k] {
			sums[c.key], all = sums[c.key]+c.n, all+c.n
		}
	}
	for p, n := range sums {
		if all >= minEnds && isPhase(string(p)) && float64(n) >= usualShare*float64(all) {
			return p
		}
	}
	return Unknown
}
