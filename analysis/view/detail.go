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

// chosen is a block in use at the moment of a selection.
type chosen struct {
	site  siteID
	tid   uint32
	age   uint64
	block picked
}

// detail makes the parts anew, with what each block turned out to be for.
func (p *picker) detail() error {
	p.parts, p.alloc, p.index, p.inuse = nil, nil, map[sitePartKey]int{}, map[aged]heap.Count{}
	return p.trace.newFollower().replay(p.ended)
}

// ended adds up an allocation whose end is known.
func (p *picker) ended(b *heap.Block, l *life, d detail) {
	at, inUse := p.chosen[b.Key()]
	if p.s.AllSteps || p.s.Steps && inUse {
		d.step = p.trace.stepOf(b)
	}
	switch until := p.s.Until(); {
	case inUse:
		delete(p.chosen, b.Key()) // it comes again when its free failed
		i := p.partOf(sitePartKey{at.site, at.tid, b.Stream, powerOfTwo(at.block.size), d})
		count := heap.CountOf(at.block.size, at.block.requested)
		p.inuse[aged{i, at.age}] = p.inuse[aged{i, at.age}].Plus(count)
		if at.block.counted {
			p.alloc[i] = p.alloc[i].Plus(count)
		}
	case l.made && p.wanted(b) && (until == 0 || b.Time <= until):
		addTo(&p.alloc[p.part(b, l.TID, d)], b)
	}
}

// replay calls end with each allocation of the trace: when it is freed, or at the end.
func (l *follower) replay(end func(b *heap.Block, s *life, d detail)) error {
	return l.t.Replay(&Visitor{
		Before:    func(e *event.Event, _ *heap.Heap) { l.follow.See(e) },
		Allocated: l.allocated,
		Freed: func(b *heap.Block, e *event.Event, _ uint64) {
			if s, ok := l.starts[b.Key()]; ok {
				end(b, &s, detail{category: l.freed(b, e)})
			}
		},
		Moved: l.moved,
		Done: func(h *heap.Heap) {
			for b := range h.Blocks() {
				s := l.starts[b.Key()]
				category, held := l.inUse(&b)
				end(&b, &s, detail{category: category, holder: cmp.Or(held.Holder, NoHolder)})
			}
		},
	})
}
