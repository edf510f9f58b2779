// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// turnover finds blocks that leave a pool that another line fills now: blocks from before the attach, and blocks of a
// line that allocated in one stretch only, such as the one that first filled a queue. A pool replaces them one by one,
// and grows by the difference. The zero value has seen nothing.
type turnover struct {
	pending event.Event // a free that has not removed a known block so far; Kind 0: none
	recent  []departure // the latest blocks from before the attach, in case steps are numbered again
}

// keptDepartures is the minimum number of the latest departures that are kept, and the maximum number of undecided ones.
const keptDepartures = 1 << 10

// departure is a block that left a pool.
type departure struct {
	time  uint64 // CLOCK_BOOTTIME nanoseconds
	size  sizeKey
	bytes int64
	older bool // from before the attach
}

// sizeKey identifies a size class of a layer of a device.
type sizeKey struct {
	place place
	class uint8 // exponent of the block's bytes, rounded up to a power of two
}

// see handles the next event, before it is applied: if the previous one was a free that removed no block, its block was not known.
func (t *turnover) see(e *event.Event, d *detector) {
	t.settle(d)
	if e.Kind == event.KindFree && e.Layer == event.LayerAllocator && e.Size != event.Unknown {
		t.pending = *e
	}
}

// settle counts the pending free.
func (t *turnover) settle(d *detector) {
	if e := &t.pending; e.Kind == event.KindFree {
		t.count(departure{e.Time, sizeKey{place{e.Layer, e.Device, e.PID}, sizeClass(e.Size)}, int64(e.Size), true}, d)
	}
	t.pending.Kind = 0
}

// freed handles a block that leaves the live set at a time.
func (t *turnover) freed(b *heap.Block, time uint64, d *detector) {
	t.pending.Kind = 0
	if b.Layer == event.LayerAllocator && b.Origin == heap.OriginBefore && b.Size != event.Unknown {
		t.count(departure{time, sizeKey{place{b.Layer, b.Device, b.PID}, sizeClass(b.Size)}, int64(b.Size), true}, d)
	}
}

func (t *turnover) count(x departure, d *detector) {
	if len(t.recent) == 2*keptDepartures {
		t.recent = append(t.recent[:0], t.recent[keptDepartures:]...)
	}
	t.recent = append(t.recent, x)
	if d != nil {
		d.departed(x)
	}
}

// leaving is a departure for which it is undecided which line replaced the block.
type leaving struct {
	departure
	at     uint64 // number of allocations and frees before it
	step   int
	before *site // the possible replacement: the site that allocated last
}

// departed handles a block that left a pool.
func (d *detector) departed(x departure) {
	d.decideAll()
	out := leaving{departure: x, at: d.order, step: d.step}
	for _, s := range d.sizes[x.size] {
		if s.fills() && (out.before == nil || s.latest > out.before.latest) {
			out.before = s
		}
	}
	if len(d.leaving) < keptDepartures {
		d.leaving = append(d.leaving, out)
	}
}

// fills reports whether more of a site is in use than at first, so that it may be filling a pool.
func (s *site) fills() bool {
	return s.windows != nil && s.live.Blocks > s.windows[0].Blocks
}

// replaced decides the departures of blocks of a size, after a site has allocated such a block: the replacement of a
// block is allocated just before or just after it is freed.
func (d *detector) replaced(k sizeKey, s *site) {
	d.decideAll()
	if !s.fills() {
		return
	}
	d.leaving = slices.DeleteFunc(d.leaving, func(x leaving) bool {
		if x.size != k {
			return false
		}
		if x.before != nil && x.before.fills() && x.at-x.before.latest <= d.order-x.at {
			x.before.lend(d.step, &x.departure)
		} else {
			s.lend(d.step, &x.departure)
		}
		return true
	})
}

// decideAll decides the departures of steps that have ended.
func (d *detector) decideAll() {
	d.leaving = slices.DeleteFunc(d.leaving, func(x leaving) bool {
		if d.step-x.step < 2 {
			return false
		}
		if x.before != nil && x.before.fills() {
			x.before.lend(d.step, &x.departure)
		}
		return true
	})
}

// lend subtracts a block that left a pool from its site.
func (s *site) lend(step int, x *departure) {
	f := floor{Blocks: 1, Requested: x.bytes, Bytes: x.bytes}
	if s.live.Bytes > 0 { // the requested bytes of the block are not known: use the average of the others
		f.Requested = int64(float64(x.bytes) / float64(s.live.Bytes) * float64(s.live.Requested))
	}
	for _, to := range []*series{&s.series, s.line} {
		to.remove(step, f)
		to.lent = to.lent.Plus(f)
		to.countGone(step)
	}
	if x.older {
		s.total.remove(step, f)
	}
}

// leaves reports whether a freed block of a site has left a pool that another line fills: the site allocated in one
// stretch of steps, long ago.
func (d *detector) leaves(s *site) bool { return s.stretches == 1 && d.step-s.active >= longLived }
