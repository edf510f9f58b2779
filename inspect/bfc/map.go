// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/inspect"
)

const (
	// leastBlock is kMinAllocationSize, the size of the smallest chunk, bytes.
	leastBlock = 256
	// mostPaired is the largest list of chunks of which two copies are kept, bytes.
	mostPaired = 32 << 20
)

// Map reads every region and chunk while the process runs: regions are the segments of the result, chunks its blocks. It repeats until
// a copy was made without a change, for as long as timeout. If there was none, the result is what was the same in two copies: the rest
// of each region is in the state inspect.StateChanging, and the allocator's own count between the two copies bounds how much of it was in
// use. now is the clock of the result. It returns the errors of Read.
func (a *Allocator) Map(ctx context.Context, now func() uint64, timeout time.Duration) (*inspect.DeviceMap, error) {
	begun := time.Now()
	if a.known == (layout{}) {
		if _, err := a.Read(ctx, now); err != nil {
			return nil, err
		}
	}
	for best := (*inspect.DeviceMap)(nil); ; time.Sleep(readPause) {
		m, err := a.mapOnce(now)
		if err == nil && (best == nil || changingBytes(m) < changingBytes(best)) {
			best = m
		}
		switch spent := time.Since(begun); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case best != nil && (best.Changing == nil || spent > timeout):
			return best, nil
		case spent > timeout+readTimeout:
			return nil, fmt.Errorf("read the BFC allocator at %#x: %w: %w", a.object, ErrChanged, err)
		}
	}
}

// changingBytes returns the bytes of a map that changed.
func changingBytes(m *inspect.DeviceMap) uint64 {
	if m.Changing == nil {
		return 0
	}
	return m.Changing.RangeBytes
}

// mapOnce copies the allocator, and once more if it changed meanwhile.
func (a *Allocator) mapOnce(now func() uint64) (*inspect.DeviceMap, error) {
	first, err := a.look(a.known, now)
	if err != nil {
		return nil, err
	}
	if first.still() {
		return first.proved()
	}
	if len(first.chunks) > mostPaired {
		return nil, ErrChanged
	}
	second, err := a.look(a.known, now)
	if err != nil {
		return nil, err
	}
	if second.still() {
		return second.proved()
	}
	return newPair(first, second).read()
}

// proved returns the map of a copy that was made without a change.
func (k *look) proved() (*inspect.DeviceMap, error) {
	if _, err := k.prove(); err != nil {
		return nil, err
	}
	return newPair(k, k).read()
}

// pair is two copies of an allocator, and its head at an instant between them.
type pair struct {
	first, second *look
	instant       head
	time          uint64
	anchors       []anchor // nil: not listed yet
}

// anchor is a chunk that is the same in both copies and in use: at its address a region can be read on.
type anchor struct{ addr, number uint64 }

func newPair(first, second *look) *pair {
	p := &pair{first: first, second: second, instant: first.after, time: first.to}
	if first != second && p.instant.held() {
		p.instant, p.time = second.head, second.begun
	}
	return p
}

// read returns the map of the instant. An allocation has a number that no other has, so a chunk with the same number in both copies was in
// use in between. A chunk that is free in both can have been in use in between only if numbers were dealt out meanwhile.
func (p *pair) read() (*inspect.DeviceMap, error) {
	l := p.first.layout
	for _, h := range []*head{&p.instant, &p.second.head, &p.second.after} {
		if p.instant.held() || h.regions() != p.first.head.regions() || h.chunks().begin != p.first.head.chunks().begin {
			return nil, ErrChanged
		}
	}
	m := &inspect.DeviceMap{Time: p.time, Window: inspect.Window{From: p.first.begun, To: p.second.to, Settled: true}}
	var free, used uint64
	c := &inspect.Changing{}
	for _, r := range p.second.image.regions {
		s := inspect.Segment{Addr: r.start, Size: r.size, Blocks: p.tiles(r)}
		for i := range s.Blocks {
			switch b := &s.Blocks[i]; b.State {
			case inspect.StateAllocated:
				used += b.Size
			case inspect.StateChanging:
				c.Ranges, c.RangeBytes = c.Ranges+1, c.RangeBytes+b.Size
			default:
				free += b.Size
			}
		}
		m.Segments, m.Reserved = append(m.Segments, s), m.Reserved+r.size
	}
	m.Allocated, m.Active = p.instant.inUse(l), p.instant.inUse(l)
	if p.second.after.nextID(l) == p.first.nextID(l) {
		free = 0
	}
	rest := m.Allocated - used
	if used > m.Allocated || rest > c.RangeBytes+free {
		return nil, fmt.Errorf("%w: %d bytes in use of %d are in no chunk", ErrChanged, rest, m.Allocated)
	}
	if c.Ranges > 0 || rest > 0 {
		c.BytesLow, c.BytesHigh = rest, rest
		c.BlocksLow, c.BlocksHigh = min(rest, 1), rest/leastBlock
		m.Changing = c
	}
	return m, nil
}

// tiles divides a region as the second copy has it. A tile that is not the same in the first one changes.
func (p *pair) tiles(r region) (out []inspect.Block) {
	number := r.first
	for at := r.start; at < r.end; {
		c := p.second.chunk(number)
		end := at
		if c != nil && word(c, chunkPtr) == at && word(c, chunkSize) > 0 && word(c, chunkSize) <= r.end-at {
			end += word(c, chunkSize)
		}
		switch {
		case end > at && p.same(number):
			b := inspect.Block{Addr: at, Size: end - at}
			if id := word(c, chunkID); id != noID {
				b.State, b.ID, b.Requested = inspect.StateAllocated, id, word(c, chunkRequested)
			}
			out = append(out, b)
			number = word(c, chunkNext)
		case end > at:
			out = appendChanging(out, at, end)
			number = word(c, chunkNext)
		default:
			end, number = p.resume(at, r.end)
			out = appendChanging(out, at, end)
		}
		at = end
	}
	return out
}

// appendChanging adds memory that changes.
func appendChanging(out []inspect.Block, from, to uint64) []inspect.Block {
	if last := len(out) - 1; last >= 0 && out[last].State == inspect.StateChanging {
		out[last].Size += to - from
		return out
	}
	return append(out, inspect.Block{Addr: from, Size: to - from, State: inspect.StateChanging})
}

// same reports whether a chunk is the same in both copies.
func (p *pair) same(number uint64) bool {
	x, y := p.first.chunk(number), p.second.chunk(number)
	if x == nil || y == nil {
		return false
	}
	of := func(field int) bool { return word(x, field) == word(y, field) }
	requested := of(chunkRequested) && word(x, chunkRequested) <= word(x, chunkSize)
	return of(chunkPtr) && of(chunkSize) && of(chunkID) && (word(x, chunkID) == noID || requested)
}

// resume returns the address after another one, and before an end, at which a chunk begins that is in use in both copies, and its number;
// without one, the end.
func (p *pair) resume(after, end uint64) (addr, number uint64) {
	if p.anchors == nil {
		p.anchors = []anchor{} // not nil
		for n := range uint64(len(p.second.chunks)) / p.second.layout.stride {
			if c := p.second.chunk(n); word(c, chunkID) != noID && p.same(n) {
				p.anchors = append(p.anchors, anchor{word(c, chunkPtr), n})
			}
		}
		slices.SortFunc(p.anchors, func(x, y anchor) int { return cmp.Compare(x.addr, y.addr) })
	}
	i, _ := slices.BinarySearchFunc(p.anchors, after+1, func(a anchor, addr uint64) int { return cmp.Compare(a.addr, addr) })
	if i < len(p.anchors) && p.anchors[i].addr < end {
		return p.anchors[i].addr, p.anchors[i].number
	}
	return end, none
}

// chunk returns the bytes of a chunk; nil: no chunk has that number.
func (i *image) chunk(number uint64) []byte {
	if number >= uint64(len(i.chunks))/i.layout.stride {
		return nil
	}
	return i.chunks[number*i.layout.stride:][:i.layout.stride]
}
