// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"iter"
	"math"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// A recording ends at one moment. Reading the program after that, for example its holders, takes a second or more while the program
// continues. The probes stay attached for that time, but their events only show which blocks have been freed since the end.
//
//	───────── recorded ─────────┤until├──── not recorded: freed and used-again addresses are noted ────┤
//	   last comparison ──────▶        reading of holders ─────────────────────────────────▶ joined

// finalCheck is how long a recording continues for its last comparison with the allocator state if no event was lost.
const finalCheck = 100 * time.Millisecond

// frozen is the state of a process whose recording is over while something of it is still read.
type frozen struct {
	until uint64 // end of the recording, on the clock of the events; 0: it continues
	over  bool   // all events up to until were applied
	after uint64 // number of later events
	lost  uint64 // number of events lost later
	gone  map[goneKey]bool
}

// goneKey identifies the address of a block that an event named after the end.
type goneKey struct {
	d    event.Device
	addr uint64
}

// freeze ends the recording at a time.
func (p *Process) freeze(until uint64) {
	if p.frozen.until == 0 && p.target.End() == Running {
		p.frozen.until, p.frozen.gone = until, map[goneKey]bool{}
		p.end = time.Now()
	}
}

// recorded returns how many of the events belong to the recording; later ones are only noted.
func (p *Process) recorded(events []event.Event) int {
	if p.frozen.until == 0 {
		return len(events)
	}
	n := 0
	for p.frozen.after == 0 && !p.frozen.over && n < len(events) && events[n].Time <= p.frozen.until {
		n++
	}
	for i := range events[n:] {
		e := &events[n+i]
		p.frozen.after++
		p.heap.passing.Later(e)
		if e.Layer == event.LayerAllocator {
			p.frozen.gone[goneKey{e.Device, e.Addr}] = true
		}
	}
	return n
}

// stop ends all work beside the recording's events, except the reading of holders.
func (p *Process) stop() {
	if p.frozen.over {
		return
	}
	p.frozen.over = true
	if p.alerts != nil {
		p.alerts.conclude()
	}
	p.reconciler.Stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), totalsTimeout)
	defer cancel()
	p.completeBaseline(ctx)
	p.memory = p.readMemory(ctx)
}

// present yields the blocks that were live at the end of the recording. It skips those freed since, which are too new
// for any reading to know.
func (p *Process) present() iter.Seq[heap.Block] {
	return func(yield func(heap.Block) bool) {
		for b := range p.heap.Blocks() {
			if p.frozen.gone[goneKey{b.Device, b.Addr}] && b.Layer == event.LayerAllocator {
				b.Time = math.MaxUint64
			}
			if !yield(b) {
				return
			}
		}
	}
}
