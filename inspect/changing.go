// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A job at full speed may leave no moment in which its whole state can be copied. What can be had at any time is a pair of
// copies with the totals of one instant between them:
//
//	before ── copy 1 ── totals ── copy 2 ── after        (four readings of the counters, two of everything else)
//
// A block that is the same in both copies stood still, or it was given back before the instant and taken again behind it. The
// counters bound the second case: no more can have been renewed than was freed between "before" and "totals", nor more than
// was allocated between "totals" and "after". So, at the instant, with X active bytes by the counters, S of them in blocks that
// are the same in both copies, and R as that bound,
//
//	X - S <= active bytes in what changed <= X - S + R
//
// Several pairs are read, each in less than a millisecond, and the most precise one is kept. In most of them R is 0.

// Changing is what of a device's map did not stand still while it was read. In the map it is ranges of StateChanging.
type Changing struct {
	// BlocksLow and BlocksHigh bound how many active blocks (allocated or pending) are in the ranges, or were renewed.
	BlocksLow, BlocksHigh uint64
	// BytesLow and BytesHigh bound their bytes. Low is what the map's blocks leave of the allocator's own total; high is
	// more when the counters allow that some of the map's blocks were given back and taken again.
	BytesLow, BytesHigh uint64
	Ranges              int    // of StateChanging
	RangeBytes          uint64 // of them, active or not
}

const (
	// pairTimeout is how long pairs are tried; one at least is.
	pairTimeout = 60 * time.Millisecond
	// learnTimeout is how long further pairs are tried when some memory was found only behind each of them.
	learnTimeout = time.Second
)

// MapNow reads every segment and block, and does not wait for a quiet moment longer than mapTimeout for one device. When there
// is none, the map says so by DeviceMap.Changing: blocks that stood still are in it as they are, parts of segments whose blocks
// changed are one block each, of StateChanging, and the totals are those of one instant nevertheless. The error wraps
// ErrUnknownLayout when next to nothing makes sense, or is one of package process or, when ctx ended it, its cause.
func (a *Allocator) MapNow(ctx context.Context, mapTimeout time.Duration) (*Map, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	m := &Map{}
	for i := range devices {
		copied := newPages(a.memory)
		d, err := a.mapWithin(ctx, copied, devices[i], i, mapTimeout)
		if errors.Is(err, ErrChanged) {
			d, err = a.mapChanging(ctx, copied, devices[i], i)
		}
		if err != nil {
			return nil, fmt.Errorf("read the map of device %d: %w", i, err)
		}
		m.Devices = append(m.Devices, *d)
		copied.release()
	}
	return m, nil
}

// pair is what two copies of a device's state show, and the counters around and between them.
type pair struct {
	before, at, after *stats
	window            Window
	time              uint64
	first, second     *stateReader
	late              int // pages that are not in both copies
	segments          []Segment
	changing          Changing
}

// mapChanging returns the best of several pairs.
func (a *Allocator) mapChanging(ctx context.Context, copied *pages, d device, i int) (*DeviceMap, error) {
	var best *pair
	var last error
	for start := time.Now(); ; {
		p, err := a.pair(ctx, copied, d, i)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errTooMuch):
			return nil, err
		case err != nil:
			last = err
		case best == nil || p.worth(best) < 0:
			best = p
		}
		spent := time.Since(start)
		if best != nil && (best.whole() || spent > pairTimeout && best.late == 0) || spent > learnTimeout {
			break
		}
	}
	if best == nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownLayout, last)
	}
	m := &DeviceMap{
		DeviceTotals: best.at.totals(i), Active: best.at.current(statActiveBytes, 0), Time: best.time, Window: best.window,
		Segments: best.segments,
	}
	if !best.whole() {
		m.Changing = &best.changing
	}
	return m, nil
}

// pair makes a pair of copies and compares them.
func (a *Allocator) pair(ctx context.Context, copied *pages, d device, i int) (*pair, error) {
	p := &pair{window: Window{From: bootTime()}}
	var err error
	if p.before, err = a.stats(ctx, d); err != nil {
		return nil, err
	}
	if err := copied.twice(func() error { return a.instant(ctx, p, d) }); err != nil {
		return nil, err
	}
	if p.after, err = a.stats(ctx, d); err != nil {
		return nil, err
	}
	p.window.To = bootTime()
	for _, b := range []**stateReader{&p.first, &p.second} {
		if *b, err = a.collect(ctx, copied, copied, d, i); err != nil {
			return nil, err
		}
		copied.flip()
	}
	p.late = copied.lates
	if err := p.compare(); err != nil {
		return nil, err
	}
	if len(p.segments) == 0 && p.at.current(statReservedBytes, 0) > 0 {
		return nil, errors.New("no block is recognised")
	}
	return p, nil
}

// instant reads the counters until they stand still and no call is under way, which takes a microsecond or two.
func (a *Allocator) instant(ctx context.Context, p *pair, d device) error {
	end := time.Now().Add(settleTimeout)
	for n := 0; ; n++ {
		s, err := a.stats(ctx, d)
		if err != nil {
			return err
		}
		l := lockOf(a.memory, d.mutex)
		p.time = bootTime()
		again, err := readStats(a.memory, d.stats)
		same := err == nil && *again == *s
		if same && l != lockHeld || n >= eagerPolls && time.Now().After(end) {
			p.at, p.window.Settled = s, same && l == lockFree
			return nil
		}
		if n >= eagerPolls {
			time.Sleep(pollPause)
		}
	}
}

// worth compares two pairs: the one that leaves less open is before the other.
func (p *pair) worth(q *pair) int {
	return cmp.Or(cmp.Compare(p.late, q.late), cmp.Compare(p.changing.BytesHigh, q.changing.BytesHigh),
		cmp.Compare(p.changing.RangeBytes, q.changing.RangeBytes))
}

// whole reports that nothing changed: the map is proved like one of Map.
func (p *pair) whole() bool {
	return p.late == 0 && p.changing.Ranges == 0 && p.first.balance(p.at) == nil
}

// compare finds what is the same in both copies and puts the segments together.
func (p *pair) compare() error {
	first, second := p.first.line(), p.second.line()
	still := p.still(first, second)
	p.segments = p.extents(append(first, second...))
	rest := still
	for i := range p.segments {
		s := &p.segments[i]
		at := s.Addr
		for len(rest) > 0 && rest[0].ptr < s.Addr+s.Size {
			p.skip(s, at, rest[0].ptr)
			s.Blocks = append(s.Blocks, rest[0].block())
			at = rest[0].ptr + rest[0].size
			rest = rest[1:]
		}
		p.skip(s, at, s.Addr+s.Size)
	}
	return p.bound(still)
}

// skip adds the range of a segment up to the next block that stood still.
func (p *pair) skip(s *Segment, from, to uint64) {
	if from == to {
		return
	}
	s.Blocks = append(s.Blocks, Block{Addr: from, Size: to - from, Stream: s.Stream, State: StateChanging})
	p.changing.Ranges++
	p.changing.RangeBytes += to - from
}

// still are the mapped tiles that are the same in both copies, where the allocator keeps their kind.
func (p *pair) still(first, second []*tile) (out []*tile) {
	for _, x := range first {
		for len(second) > 0 && second[0].ptr < x.ptr {
			second = second[1:]
		}
		if len(second) > 0 && x.mapped && x.same(second[0]) && x.check(p.first.shape) == nil {
			out = append(out, x)
		}
	}
	return out
}

// same reports whether nothing of a tile is another one in a later copy.
func (t *tile) same(u *tile) bool {
	return !t.late && !u.late && t.at == u.at && t.ptr == u.ptr && t.size == u.size && t.requested == u.requested && t.stream == u.stream &&
		t.pool == u.pool && t.allocated == u.allocated && t.active == u.active && t.mapped == u.mapped && t.free == u.free
}

// extents are the segments, without blocks, that the tiles of both copies cover.
func (p *pair) extents(tiles []*tile) (out []Segment) {
	cut := map[uint64]bool{}
	expandable := map[uint64]bool{} // ends of what is not mapped
	for _, t := range tiles {
		if t.prev == 0 {
			cut[t.ptr] = true
		}
		if t.next == 0 {
			cut[t.ptr+t.size] = true
		}
		if !t.mapped {
			expandable[t.ptr], expandable[t.ptr+t.size] = true, true
		}
	}
	tiles = slices.DeleteFunc(tiles, func(t *tile) bool { return !t.mapped })
	slices.SortStableFunc(tiles, func(x, y *tile) int { return cmp.Compare(x.ptr, y.ptr) })
	for _, t := range tiles {
		if last := len(out) - 1; last >= 0 && t.ptr <= out[last].Addr+out[last].Size && !(t.ptr == out[last].Addr+out[last].Size && cut[t.ptr]) {
			out[last].Size = max(out[last].Size, t.ptr+t.size-out[last].Addr)
			continue
		}
		out = append(out, Segment{Addr: t.ptr, Size: t.size, Stream: t.stream, Pool: p.second.poolOf(p.first, t)})
	}
	for i := range out {
		out[i].Expandable = expandable[out[i].Addr] || expandable[out[i].Addr+out[i].Size]
	}
	return out
}

// poolOf is the pool of a tile of either of two readings.
func (b *stateReader) poolOf(other *stateReader, t *tile) Pool {
	if p, ok := b.pools[t.pool]; ok {
		return p
	}
	return other.pools[t.pool]
}

// bound sets what can be said of the active blocks that are not among those that stood still. The counters of small and of
// large pools are apart.
func (p *pair) bound(still []*tile) error {
	for kind, small := range map[int]bool{1: true, 2: false} {
		var sizes []uint64
		var bytes uint64
		for _, t := range still {
			if t.active && p.first.pools[t.pool].Small == small {
				sizes = append(sizes, t.size)
				bytes += t.size
			}
		}
		blocks, most := p.renewed(kind, sizes)
		c := &p.changing
		if !between(&c.BytesLow, &c.BytesHigh, p.at.current(statActiveBytes, kind), bytes, most) ||
			!between(&c.BlocksLow, &c.BlocksHigh, p.at.current(statActive, kind), uint64(len(sizes)), blocks) {
			return fmt.Errorf("%d active bytes in %d blocks stood still, which are more than the allocator counts", bytes, len(sizes))
		}
	}
	return nil
}

// between adds total - still, and as much more as may have been renewed, to two bounds. It is false when what stood still is
// more than there can be.
func between(low, high *uint64, total, still, renewed uint64) bool {
	if still > total && still-total > renewed {
		return false
	}
	if total > still {
		*low += total - still
	}
	*high += total + renewed - still
	return true
}

// renewed bounds how many blocks of some sizes were freed before the instant and allocated again behind it, and their bytes.
func (p *pair) renewed(kind int, sizes []uint64) (blocks, bytes uint64) {
	count := min(passed(p.before, p.at, statActive, kind, 3), passed(p.at, p.after, statActive, kind, 2))
	limit := min(passed(p.before, p.at, statActiveBytes, kind, 3), passed(p.at, p.after, statActiveBytes, kind, 2))
	sizes = slices.DeleteFunc(sizes, func(n uint64) bool { return n > limit })
	slices.SortFunc(sizes, func(x, y uint64) int { return cmp.Compare(y, x) })
	blocks = min(count, uint64(len(sizes)))
	for _, n := range sizes[:blocks] {
		bytes += n
	}
	return blocks, min(bytes, limit)
}

// passed is by how much a counter that only grows did so. A program may reset it: then nothing is known.
func passed(from, to *stats, stat, pool, word int) uint64 {
	x, y := from.word(stat, pool, word), to.word(stat, pool, word)
	if y < x {
		return Unknown
	}
	return y - x
}
