// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// turnover counts the blocks from before the attach that are freed, by the size class of their bytes. A full cache of a process replaces
// them one by one: its lines rise only because what left was allocated unseen. The zero value has seen nothing.
type turnover struct {
	left    map[sizeKey]*series // each is a count that only rises
	pending event.Event         // a free with which no block has left yet; Kind is 0 where there is none
	recent  []departure         // the latest, for steps that are numbered anew
}

// keptDepartures is how many of the latest are kept at least.
const keptDepartures = 1 << 10

// departure is a block from before the attach that was freed.
type departure struct {
	time uint64 // CLOCK_BOOTTIME nanoseconds
	size sizeKey
}

// sizeKey is a size class of a layer of a device.
type sizeKey struct {
	place place
	class uint8 // power of two of the block's bytes, rounded up
}

// see takes the next event, before it is applied, in a step: when the one before was a free and no block left with it, that one was not known.
func (t *turnover) see(e *event.Event, step int) {
	t.settle(step)
	if e.Kind == event.KindFree && e.Layer == event.LayerTorch && e.Size != event.Unknown {
		t.pending = *e
	}
}

// settle counts the free that waits.
func (t *turnover) settle(step int) {
	if e := &t.pending; e.Kind == event.KindFree {
		t.count(departure{e.Time, sizeKey{place{e.Layer, e.Device, e.PID}, sizeClass(e.Size)}}, step)
	}
	t.pending.Kind = 0
}

// freed takes a block that leaves the live set at a time and in a step.
func (t *turnover) freed(b *heap.Block, time uint64, step int) {
	t.pending.Kind = 0
	if b.Layer == event.LayerTorch && b.Origin == heap.OriginBefore && b.Size != event.Unknown {
		t.count(departure{time, sizeKey{place{b.Layer, b.Device, b.PID}, sizeClass(b.Size)}}, step)
	}
}

func (t *turnover) count(d departure, step int) {
	if t.left == nil {
		t.left = map[sizeKey]*series{}
	}
	if len(t.recent) == 2*keptDepartures {
		t.recent = append(t.recent[:0], t.recent[keptDepartures:]...)
	}
	t.recent = append(t.recent, d)
	entry(t.left, d.size).add(step, floor{blocks: 1})
}

// restart counts anew what has left, in the steps that stepAt has for times that ascend.
func (t *turnover) restart(stepAt func(time uint64) int) {
	recent := t.recent
	t.left, t.recent = nil, nil
	for _, d := range recent {
		t.count(d, stepAt(d.time))
	}
}

// since is how many blocks of a size class have left since a window began, after the warm-up.
func (t *turnover) since(k sizeKey, window, step int) int64 {
	s := t.left[k]
	if s == nil {
		return 0
	}
	s.advance(step)
	if window >= len(s.windows) {
		return 0
	}
	return s.live.blocks - s.windows[window].blocks
}

// turnoverShare is the part of what rises in a size class that must have replaced blocks from before the attach to be left out.
const turnoverShare = 0.75

// withoutTurnover is what rises, without the size classes in which as many blocks from before the attach were freed meanwhile.
func (d *detector) withoutTurnover(all []risen) []risen {
	if len(d.turnover.left) == 0 {
		return all
	}
	type rise struct {
		blocks int64
		base   int
	}
	rises := map[sizeKey]*rise{}
	for i := range all {
		k := all[i].size()
		r := rises[k]
		if r == nil {
			r = &rise{base: all[i].base}
			rises[k] = r
		}
		r.blocks += all[i].rise.blocks
		r.base = min(r.base, all[i].base)
	}
	var out []risen
	for i := range all {
		k := all[i].size()
		r := rises[k]
		if float64(d.turnover.since(k, r.base, d.step)) < turnoverShare*float64(r.blocks) {
			out = append(out, all[i])
		}
	}
	return out
}

// size is the size class of the blocks that a series rose by.
func (r *risen) size() sizeKey {
	return sizeKey{r.place, sizeClass(uint64(max(0, r.rise.bytes) / max(1, r.rise.blocks)))}
}
