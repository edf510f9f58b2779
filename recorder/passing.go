// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"math"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// maxPassing is the number of freed blocks, the latest ones, that are kept during a holder scan. A scan checks places
// of the program at its end.
const maxPassing = 1 << 16

// passing follows the live set and keeps the blocks that are freed during a holder scan.
type passing struct {
	next heap.Follower // nil: none
	on   bool
	kept []holders.Freed          // a ring once it is full
	at   int                      // index of the oldest
	open map[uint64]holders.Freed // blocks allocated after the end of the recording, by address
}

// begin starts to keep freed blocks.
func (p *passing) begin() {
	p.on, p.kept, p.at, p.open = true, p.kept[:0], 0, map[uint64]holders.Freed{}
}

// take stops, and returns the blocks that a scan has seen.
func (p *passing) take(s *Scan) []holders.Freed {
	var out []holders.Freed
	for _, g := range p.open {
		p.freed(g)
	}
	for i := range p.kept {
		if g := &p.kept[i]; s.Held != nil && s.Held(&g.Block, g.At) {
			out = append(out, *g)
		}
	}
	p.on, p.kept, p.open = false, nil, nil
	return out
}

// Allocated implements heap.Follower.
func (p *passing) Allocated(b *heap.Block) {
	if p.next != nil {
		p.next.Allocated(b)
	}
}

// Freed implements heap.Follower.
func (p *passing) Freed(b *heap.Block, time uint64) {
	if p.on {
		p.freed(holders.Freed{Block: *b, At: time})
	}
	if p.next != nil {
		p.next.Freed(b, time)
	}
}

func (p *passing) freed(g holders.Freed) {
	if len(p.kept) < maxPassing {
		p.kept = append(p.kept, g)
		return
	}
	p.kept[p.at] = g
	p.at = (p.at + 1) % maxPassing
}

// later handles an event after the end of the recording, while holders are still read.
func (p *passing) later(e *event.Event) {
	switch g, ok := p.open[e.Addr]; {
	case !p.on || e.Layer != event.LayerTorch:
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
func (p *passing) Moved(from, to *heap.Block) {
	if p.next != nil {
		p.next.Moved(from, to)
	}
}
