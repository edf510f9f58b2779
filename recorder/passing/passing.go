// SPDX-License-Identifier: Apache-2.0

// Package passing keeps the blocks that are freed while holders are scanned.
package passing

import (
	"math"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// maxPassing is the number of freed blocks, the latest ones, that are kept during a holder scan. A scan checks places
// of the program at its end.
const maxPassing = 1 << 16

// Blocks follows the live set and keeps the blocks that are freed during a holder scan.
type Blocks struct {
	Next heap.Follower // also follows the live set; nil: none

	on   bool
	kept []holders.Freed          // a ring once it is full
	at   int                      // index of the oldest
	open map[uint64]holders.Freed // blocks allocated after the end of the recording, by address
}

// Begin starts to keep freed blocks.
func (p *Blocks) Begin() {
	p.on, p.kept, p.at, p.open = true, p.kept[:0], 0, map[uint64]holders.Freed{}
}

// Take stops, and returns the blocks that a scan has seen; held says which those are. A nil held has seen none.
func (p *Blocks) Take(held func(b *heap.Block, at uint64) bool) []holders.Freed {
	var out []holders.Freed
	for _, g := range p.open {
		p.freed(g)
	}
	for i := range p.kept {
		if g := &p.kept[i]; held != nil && held(&g.Block, g.At) {
			out = append(out, *g)
		}
	}
	p.on, p.kept, p.open = false, nil, nil
	return out
}

// Allocated implements heap.Follower.
func (p *Blocks) Allocated(b *heap.Block) {
	if p.Next != nil {
		p.Next.Allocated(b)
	}
}

// Freed implements heap.Follower.
func (p *Blocks) Freed(b *heap.Block, time uint64) {
	if p.on {
		p.freed(holders.Freed{Block: *b, At: time})
	}
	if p.Next != nil {
		p.Next.Freed(b, time)
	}
}

func (p *Blocks) freed(g holders.Freed) {
	if len(p.kept) < maxPassing {
		p.kept = append(p.kept, g)
		return
	}
	p.kept[p.at] = g
	p.at = (p.at + 1) % maxPassing
}

// Later handles an event after the end of the recording, while holders are still read.
func (p *Blocks) Later(e *event.Event) {
	switch g, ok := p.open[e.Addr]; {
	case !p.on || e.Layer != event.LayerAllocator:
	case e.Kind == event.KindAlloc && len(p.open) < maxPassing:
		p.open[e.Addr] = holders.Freed{At: math.MaxUint64, Block: heap.Block{
			PID: e.PID, Layer: e.Layer, Device: e.Device, Object: e.Object, Addr: e.Addr, Size: e.Size, Requested: e.Requested,
			Stream: e.Stream, Time: e.Time, Stack: e.Stack, Call: e.Call, Origin: heap.OriginEvent,
		}}
	case e.Kind == event.KindFree && ok:
		g.At = e.Time
		p.freed(g)
		delete(p.open, e.Addr)
	}
}

// Moved implements heap.Follower.
func (p *Blocks) Moved(from, to *heap.Block) {
	if p.Next != nil {
		p.Next.Moved(from, to)
	}
}
