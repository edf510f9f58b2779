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

// A recording is over at one moment. What is read of the program after that, such as who holds its blocks, takes a second or more, and
// the program goes on: the probes stay for as long, and what their events say is used for one thing only, which blocks are still those
// of that moment.
//
//	───────── recorded ─────────┤until├──── not recorded: freed and used-again addresses are noted ────┤
//	   last comparison ──────▶        reading of holders ─────────────────────────────────▶ joined

// finalCheck is how long a recording goes on for its last comparison with the allocator's state, when no event was lost.
const finalCheck = 100 * time.Millisecond

// frozen is a process whose recording is over, and of which something is still read.
type frozen struct {
	until uint64 // the last moment of the recording, on the clock of the events; 0: it goes on
	over  bool   // all events up to then were applied
	after uint64 // events that came later
	lost  uint64 // events that were lost later
	gone  map[goneKey]bool
}

// goneKey is an address of a block that events named after the end.
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

// recorded is how many of the events are of the recording; what follows is only noted.
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
		p.heap.passing.later(e)
		if e.Layer == event.LayerTorch {
			p.frozen.gone[goneKey{e.Device, e.Addr}] = true
		}
	}
	return n
}

// stop ends what is done beside the events of the recording, but for the reading of holders.
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

// present yields the live blocks of the end of the recording. What was freed since is so new that no reading can know it.
func (p *Process) present() iter.Seq[heap.Block] {
	return func(yield func(heap.Block) bool) {
		for b := range p.heap.Blocks() {
			if p.frozen.gone[goneKey{b.Device, b.Addr}] && b.Layer == event.LayerTorch {
				b.Time = math.MaxUint64
			}
			if !yield(b) {
				return
			}
		}
	}
}
