// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// detail is what is known of an allocation when the whole trace was seen.
type detail struct {
	category phases.Category
	step     int
	holder   string
}

// chosen is a block in use at the moment of a selection, as it was then.
type chosen struct {
	age   uint64
	block picked
}

// endings is what a picker knows of blocks whose end is still to come.
type endings struct {
	dated []dated // in use at the moment, of those that ended, where the step is asked for
}

// dated is a block in use at the moment, whose step is looked for once all events were seen.
type dated struct {
	part    sitePartKey
	time    uint64 // of its allocation
	age     uint64
	count   heap.Count
	counted bool
}

// detail goes through all of the trace, because only its end says what a block was for, and adds up what is in use at the moment by that.
func (p *Picker) detail() *Visitor {
	passed, until := false, p.s.Until()
	pass := func(h *heap.Heap) {
		if !passed {
			passed = true
			p.pass(h)
		}
	}
	l := p.trace.newFollower()
	return &Visitor{
		Before: func(e *event.Event, h *heap.Heap) {
			if until != 0 && e.Time > until {
				pass(h)
			}
			l.follow.See(e)
		},
		Event:     p.look(),
		Allocated: func(b *heap.Block, e *event.Event) { l.allocated(b, e); p.allocated(b, e) },
		Freed: func(b *heap.Block, e *event.Event, time uint64) {
			at := p.chosenOf(b)
			p.freed(b, e, time)
			if s := l.starts.At(b); s != nil {
				tid, made := s.TID, s.made
				d := detail{category: l.freed(b, e)}
				if at != nil {
					d.holder = p.trace.HeldAtExit(b, time)
				}
				p.ended(b, tid, made, at, d)
			}
		},
		Moved: func(from, to *heap.Block) { l.moved(from, to); p.moved(from, to) },
		Done:  func(h *heap.Heap) { pass(h); p.finish(l, h) },
	}
}

// finish adds up what is in use at the end of the trace.
func (p *Picker) finish(l *follower, h *heap.Heap) {
	for b := range h.Blocks() {
		tid, made := uint32(0), false
		if s := l.starts.At(&b); s != nil {
			tid, made = s.TID, s.made
		}
		category, held := l.inUse(&b)
		p.ended(&b, tid, made, p.chosenOf(&b), detail{category: category, holder: cmp.Or(held.Holder, NoHolder)})
	}
}

// chosenOf is what a block was at the moment; nil: it was not in use then.
func (p *Picker) chosenOf(b *heap.Block) *chosen {
	if at := p.live.At(b); at != nil {
		return at.chosen
	}
	return nil
}

// ended adds up an allocation whose end is known, made by an event of a thread or not. at is what it was at the moment; nil: it was not in
// use then.
func (p *Picker) ended(b *heap.Block, tid uint32, made bool, at *chosen, d detail) {
	if p.s.AllSteps {
		d.step = p.trace.StepAt(b.Time)
	}
	switch until := p.s.Until(); {
	case at != nil:
		in := dated{
			part: sitePartKey{at.block.site, at.block.tid, b.Stream, powerOfTwo(at.block.size), d}, time: b.Time, age: at.age,
			count: heap.CountOf(at.block.size, at.block.requested), counted: at.block.counted,
		}
		if p.s.Steps && !p.s.AllSteps {
			p.dated = append(p.dated, in)
			return
		}
		p.addInUse(&in)
	case made && p.wanted(b) && (until == 0 || b.Time <= until):
		addTo(&p.alloc[p.part(b, tid, d)], b)
	}
}

// addDated adds up what waits for its step.
func (p *Picker) addDated() {
	for i := range p.dated {
		in := &p.dated[i]
		in.part.detail.step = p.trace.StepAt(in.time)
		p.addInUse(in)
	}
	p.dated = nil
}

func (p *Picker) addInUse(in *dated) {
	i := p.partOf(in.part)
	at := aged{i, in.age}
	p.inuse[at] = p.inuse[at].Plus(in.count)
	if in.counted {
		p.alloc[i] = p.alloc[i].Plus(in.count)
	}
}
