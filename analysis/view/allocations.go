// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"path"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/words"
)

// Allocation is one allocation from its birth to its end, as tables have it.
type Allocation struct {
	ID    uint64     // from 1, in the order of births
	Block heap.Block // as it was known at its end; Block.Time is its birth, 0: it is not known when
	TID   uint32     // thread that allocated; 0: not known
	Freed uint64     // when, CLOCK_BOOTTIME nanoseconds; 0: it is in use at the end

	Phase    phases.Phase    // in which it was made
	Category phases.Category // what it was for; of what is in use, as far as the selection goes
	Step     int             // in which it was made; 0: before the first one, or steps are not known. See Trace.SetSteps
	Holder   string          // its own, at the end of the trace: "model.layers[3].weight.grad"; empty: not known, or it was freed
}

// Allocations calls each with all allocations of a selection that is no moment: those of all layers that were allocated after From
// and up to To, or all; blocks below MinSize are left out. An allocation comes when it ends, those that live at the end of the
// trace (or at To) come last, in the order of their births. The allocation is valid during the call only. The error is that of
// each, or of reading.
func (t *Trace) Allocations(s Selection, each func(*Allocation) error) error {
	l := &lister{s: s, each: each, live: map[heap.BlockKey]*Allocation{}, held: map[heap.BlockKey]*Allocation{}, follow: t.newFollower()}
	v := &Visitor{
		Before:    func(e *event.Event, _ *heap.Heap) { l.follow.follow.See(e) },
		Allocated: l.allocated, Freed: l.freed, Moved: l.moved,
	}
	h, err := t.ReplayWhile(func(e *event.Event) bool {
		return l.err == nil && (s.To == 0 || e.Time <= s.To)
	}, v)
	if err := cmp.Or(l.err, err); err != nil {
		return err
	}
	return l.finish(h)
}

// lister follows a trace and lists its allocations.
type lister struct {
	s    Selection
	each func(*Allocation) error
	err  error // of each
	last uint64
	live map[heap.BlockKey]*Allocation
	// held is what the driver took back: the call may fail, and the allocation goes on.
	held   map[heap.BlockKey]*Allocation
	follow *follower
}

func (l *lister) allocated(b *heap.Block, e *event.Event) {
	key := b.Key()
	if a := l.held[key]; a != nil {
		delete(l.held, key)
		l.follow.allocated(b, e)
		a.Freed = 0
		l.live[key] = a
		return
	}
	l.last++
	a := &Allocation{ID: l.last, Block: *b}
	l.follow.allocated(b, e)
	a.Phase, a.Step = l.follow.starts.At(b).Phase, l.follow.t.StepAt(b.Time)
	if e != nil && e.Kind == event.KindAlloc {
		a.TID = e.TID
	}
	l.live[key] = a
}

func (l *lister) freed(b *heap.Block, e *event.Event, time uint64) {
	key := b.Key()
	a := l.live[key]
	if a == nil {
		return
	}
	delete(l.live, key)
	a.Block, a.Freed = *b, time
	a.Category = l.follow.freed(b, e)
	if b.Layer == event.LayerAllocator {
		l.tell(a)
		return
	}
	l.held[key] = a
}

func (l *lister) moved(from, to *heap.Block) {
	if a := l.live[from.Key()]; a != nil {
		delete(l.live, from.Key())
		a.Block = *to
		l.live[to.Key()] = a
		l.follow.moved(from, to)
	}
}

// finish reports what the driver freed, and what is in use.
func (l *lister) finish(h *heap.Heap) error {
	for b := range h.Blocks() {
		if a := l.live[b.Key()]; a != nil {
			a.Block = b
		}
	}
	for _, list := range []map[heap.BlockKey]*Allocation{l.held, l.live} {
		rest := make([]*Allocation, 0, len(list))
		for _, a := range list {
			rest = append(rest, a)
		}
		slices.SortFunc(rest, func(x, y *Allocation) int { return cmp.Compare(x.ID, y.ID) })
		for _, a := range rest {
			if a.Freed == 0 {
				var held HeldBlock
				a.Category, held = l.follow.inUse(&a.Block)
				a.Holder = held.Name
			}
			l.tell(a)
		}
	}
	return l.err
}

func (l *lister) tell(a *Allocation) {
	inRange := l.s.To == 0 || a.Block.Time > l.s.From && a.Block.Origin == heap.OriginEvent
	if l.err == nil && inRange && a.Block.Size >= l.s.MinSize { // event.Unknown is not small
		l.err = l.each(a)
	}
}

// PythonLine is the program's own innermost Python line of a stack, "/home/anna/train.py:38"; empty when it has none.
func (t *Trace) PythonLine(id event.StackID) string {
	st := t.Stack(id)
	if st == nil {
		return ""
	}
	var library []string
	if t.options != nil {
		library = t.options.Library
	}
	i := stacks.OwnFrame(st.Frames, library)
	if i < 0 || st.Frames[i].Kind != event.FramePython {
		return ""
	}
	return fileLine(&st.Frames[i])
}

// fileLine is position with the whole path.
func fileLine(f *event.Frame) string {
	return words.Line(path.Dir(f.File) + "/" + stacks.Position(f))
}
