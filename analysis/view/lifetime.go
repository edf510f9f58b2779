// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"container/heap"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
	liveset "github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Lifetime is a block from its birth to its end.
type Lifetime struct {
	Block liveset.Block // Block.Time is its birth
	TID   uint32        // thread that allocated it; 0: not known, it was before the range or the first event
	// End is when it was freed, CLOCK_BOOTTIME nanoseconds; 0: it was in use at the end of the range.
	End uint64
}

// lifetime is one that is among the largest so far.
type lifetime struct {
	Lifetime
	index int // in its layer's queue
}

// bySize is a queue of which the smallest block comes first.
type bySize []*lifetime

func (q bySize) Len() int { return len(q) }

func (q bySize) Less(i, j int) bool { return compareLifetime(&q[i].Lifetime, &q[j].Lifetime) > 0 }

func (q bySize) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *bySize) Push(x any) {
	l := x.(*lifetime)
	l.index = len(*q)
	*q = append(*q, l)
}

func (q *bySize) Pop() any {
	old := *q
	l := old[len(old)-1]
	*q = old[:len(old)-1]
	return l
}

// compareLifetime puts large blocks first, of one size the older ones.
func compareLifetime(x, y *Lifetime) int {
	return cmp.Or(cmp.Compare(y.Block.Size, x.Block.Size), cmp.Compare(x.Block.Time, y.Block.Time),
		cmp.Compare(x.Block.PID, y.Block.PID), cmp.Compare(x.Block.Object, y.Block.Object), cmp.Compare(x.Block.Addr, y.Block.Addr))
}

// largest keeps the largest blocks of each layer that live at some time in a range.
type largest struct {
	n      int
	begun  bool
	queues map[event.Layer]*bySize
	known  map[liveset.BlockKey]*lifetime
}

func newLargest(n int) *largest {
	return &largest{n: n, queues: map[event.Layer]*bySize{}, known: map[liveset.BlockKey]*lifetime{}}
}

// begin begins the range, with what is live then. Only the first call counts.
func (l *largest) begin(h *liveset.Heap) {
	if l.begun {
		return
	}
	l.begun = true
	for b := range h.Blocks() {
		l.allocated(&b, nil)
	}
}

func (l *largest) allocated(b *liveset.Block, e *event.Event) {
	if !l.begun || l.n <= 0 || b.Size == event.Unknown || !shownLayers[b.Layer] {
		return
	}
	if old := l.known[b.Key()]; old != nil && old.Block.Size == b.Size {
		old.End = 0 // its free failed
		return
	}
	q := l.queues[b.Layer]
	if q == nil {
		q = &bySize{}
		l.queues[b.Layer] = q
	}
	x := &lifetime{Lifetime: Lifetime{Block: *b}}
	if e != nil {
		x.TID = e.TID
	}
	if q.Len() >= l.n {
		if compareLifetime(&x.Lifetime, &(*q)[0].Lifetime) > 0 {
			return
		}
		out := heap.Pop(q).(*lifetime)
		if key := out.Block.Key(); l.known[key] == out {
			delete(l.known, key)
		}
	}
	heap.Push(q, x)
	l.known[b.Key()] = x
}

func (l *largest) freed(b *liveset.Block, time uint64) {
	if x := l.known[b.Key()]; x != nil {
		x.End = max(time, b.Time)
	}
}

func (l *largest) moved(to *liveset.Block) {
	if x := l.known[to.Key()]; x != nil {
		x.Block = *to
	}
}

func (l *largest) list() []Lifetime {
	var out []Lifetime
	for _, layer := range slices.Sorted(maps.Keys(l.queues)) {
		from := len(out)
		for _, x := range *l.queues[layer] {
			out = append(out, x.Lifetime)
		}
		sorts.Func(out[from:], func(x, y Lifetime) int { return compareLifetime(&x, &y) })
	}
	return out
}
