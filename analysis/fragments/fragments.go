// SPDX-License-Identifier: Apache-2.0

// Package fragments computes the fragmentation of a caching allocator at one moment: which free memory of its segments a request
// cannot use, and which blocks keep it from being returned to the driver. The definition is in docs/use/what-if.md.
package fragments

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// SmallSize is the size of the largest block of a small pool, bytes: that of PyTorch's caching allocator in all versions (kSmallSize
// of CUDACachingAllocator.cpp, 1.8 to 2.8; c10/core/AllocatorConfig.h since).
const SmallSize = 1 << 20

// Sizes of segments, bytes, from the same sources (kSmallBuffer and kLargeBuffer).
const (
	smallBuffer = 2 << 20  // segments of a small pool; pages of its expandable segments
	largeBuffer = 20 << 20 // pages of the expandable segments of a large pool
)

// Pool is what a block belongs to: the allocator gives a free block only to a request of its pool, size class and stream.
type Pool struct {
	ID     [2]uint64 // of a private pool (CUDA graphs, MemPool); zero: the common one, or not known: a recording does not have it
	Small  bool      // of blocks up to 1 MiB, in segments of 2 MiB
	Stream uint64    // raw handle; event.Unknown
}

// Block is a part of a segment.
type Block struct {
	Addr, Size uint64 // bytes
	Requested  uint64 // bytes; event.Unknown; 0 of a free block
	Held       bool   // the program has it, or another stream's work does; else it is free
	Pending    bool   // held, and given back by the program: another stream's work still uses it
	Stack      event.StackID
	Time       uint64 // of the allocation, CLOCK_BOOTTIME nanoseconds; 0: not known
	Origin     heap.Origin
}

// Segment is a segment with its blocks, by address and without a gap.
type Segment struct {
	Pool
	Addr, Size uint64 // bytes
	Expandable bool
	Blocks     []Block
}

// Map is the segments of one device of one process at a moment.
type Map struct {
	PID      uint32
	Device   event.Device
	Time     uint64    // CLOCK_BOOTTIME nanoseconds
	Segments []Segment // by address
	// Unknown is the bytes in use that lie in no known segment, or in no known block: the map is not all of the device.
	Unknown uint64
}

// OfLayout is the map of a layout. Which segments belong to private pools is not known there: SetPrivate says it.
func OfLayout(l *allocator.Layout) *Map {
	out := &Map{PID: l.PID, Device: l.Device, Time: l.Time, Unknown: l.MadeUp.Bytes + uint64(max(l.Unplaced, -l.Unplaced))}
	for i := range l.Segments {
		s := &l.Segments[i]
		g := Segment{Addr: s.Addr, Size: s.Size, Expandable: s.Mapped, Pool: Pool{Stream: s.Stream, Small: isSmall(s)}}
		if !l.Device.Allocator().Simulated() { // it has one pool
			g.Pool = Pool{}
		}
		for _, b := range s.Blocks {
			g.Blocks = append(g.Blocks, Block{
				Addr: b.Addr, Size: b.Size, Requested: b.Requested, Held: b.Live, Stack: b.Stack, Time: b.Time, Origin: b.Origin,
			})
		}
		out.Segments = append(out.Segments, g)
	}
	return out
}

// Private is the id of private pools of which only the segments are known, not which pool each is of.
var Private = [2]uint64{math.MaxUint64, math.MaxUint64}

// IsPrivate reports whether it is a pool of its own: of a CUDA graph, or a MemPool.
func (p *Pool) IsPrivate() bool { return p.ID != [2]uint64{} }

// SetPrivate says which segments are of private pools, by the last reading up to the moment of the map, or the one that was made for a
// request that failed then.
func (m *Map) SetPrivate(readings []figures.Reading) {
	var private []figures.Range
	for i := range readings {
		if r := &readings[i]; r.Private != nil && (r.Time <= m.Time || r.Failed == m.Time) {
			private = r.Private
		}
	}
	for i := range m.Segments {
		s := &m.Segments[i]
		at := slices.IndexFunc(private, func(g figures.Range) bool {
			return g.Device == int(m.Device.Index) && s.Addr >= g.Addr && s.Addr < g.Addr+g.Size
		})
		if at >= 0 {
			if s.ID = private[at].Pool; !s.IsPrivate() {
				s.ID = Private
			}
		}
	}
}

// Reserved is the bytes of all segments.
func (m *Map) Reserved() uint64 {
	var out uint64
	for i := range m.Segments {
		out += m.Segments[i].Size
	}
	return out
}

// Stream is the one that all segments have; event.Unknown: there are several, or none is known. PyTorch's report of a request that failed
// does not say of which stream it was.
func (m *Map) Stream() uint64 {
	out := event.Unknown
	for i := range m.Segments {
		switch s := m.Segments[i].Stream; {
		case s == event.Unknown:
		case out == event.Unknown:
			out = s
		case out != s:
			return event.Unknown
		}
	}
	return out
}

// isSmall reports whether a segment is of a small pool. Blocks of a large pool are always larger than 1 MiB, and its segments larger than
// 2 MiB; of an expandable segment, the blocks in use decide.
func isSmall(s *allocator.LayoutSegment) bool {
	for i := range s.Blocks {
		if s.Blocks[i].Live {
			return s.Blocks[i].Size <= SmallSize
		}
	}
	return s.Size <= smallBuffer
}

// Held is the bytes of the segment that are not free.
func (s *Segment) Held() uint64 {
	var out uint64
	for i := range s.Blocks {
		if s.Blocks[i].Held {
			out += s.Blocks[i].Size
		}
	}
	return out
}

// pages is how much of a free block of an expandable segment empty_cache unmaps: the pages that lie in it as a whole.
func (s *Segment) pages(b *Block) uint64 {
	page := uint64(largeBuffer)
	if s.Small {
		page = smallBuffer
	}
	from := (b.Addr - s.Addr + page - 1) / page
	to := (b.Addr + b.Size - s.Addr) / page
	if to <= from {
		return 0
	}
	return (to - from) * page
}

// Request is a request for memory, as the allocator looks for it.
type Request struct {
	// Bytes is what is looked for, after rounding: the size of an out-of-memory event. 0: more than any free block has.
	Bytes uint64
	// Stream is a raw handle; event.Unknown: not known, any stream's blocks count as its own.
	Stream uint64
	Pool   [2]uint64 // id of a private pool; zero: the common one
	Any    bool      // the allocator has one pool, from which every request is served
}

// Largest is the largest free block, bytes.
func (m *Map) Largest() (out uint64) {
	for i := range m.Segments {
		for _, b := range m.Segments[i].Blocks {
			if !b.Held {
				out = max(out, b.Size)
			}
		}
	}
	return out
}

// fits reports whether free memory of a pool is looked at for the request.
func (r *Request) fits(p *Pool) bool {
	small := r.Bytes != 0 && r.Bytes <= SmallSize
	return r.Any || r.Bytes == 0 || p.ID == r.Pool && p.Small == small && (r.Stream == event.Unknown || p.Stream == event.Unknown ||
		p.Stream == r.Stream)
}

// Report is the fragmentation of a device at a moment for a request. Sizes are bytes.
//
//	Reserved = Held + Inactive + Free
//	Inactive = Usable + Fragmented, Fragmented = TooSmall + Elsewhere
type Report struct {
	PID      uint32
	Device   event.Device
	Time     uint64 // of the moment, CLOCK_BOOTTIME nanoseconds
	Request  Request
	Reserved uint64
	Held     uint64 // blocks in use, or waiting for another stream's work
	Inactive uint64 // inactive splits: free blocks of segments with a block that is not
	Free     uint64 // segments that are free as a whole

	// Fragmented is the inactive splits that the request could not use: those of its pool and stream are TooSmall, Elsewhere is those
	// of other pools and streams, whatever their size.
	Fragmented, TooSmall, Elsewhere uint64
	Usable                          uint64 // inactive splits that are large enough, and of the request's pool and stream

	// Returnable is what empty_cache would return to the driver now: segments that are free as a whole, and of expandable segments the
	// free pages. A request that fails has returned it before.
	Returnable uint64
	// Largest is the largest free block that the request could have been given, over all its pools; of no request, the largest of all.
	Largest uint64

	Pools    []PoolFree // those of the request first, then by bytes of inactive splits
	Stranded []Stranded // segments with inactive splits, the most such bytes first
}

// PoolFree is the free memory of one pool.
type PoolFree struct {
	Pool
	OfRequest     bool // the request could use it, were it large enough
	Reserved      uint64
	Inactive      uint64
	InactiveCount uint64
	Free          uint64 // segments that are free as a whole
	Largest       uint64 // the largest free block, also of Free
	Returnable    uint64 // as in Report
	Segments      uint64
}

// Stranded is a segment that cannot be returned, and has free memory in it.
type Stranded struct {
	*Segment
	Held     uint64
	Inactive uint64
	Largest  uint64 // of its free blocks
	Unusable bool   // no free block in it could be used for the request
}

// Pins lists the blocks that keep a segment from being returned, by address.
func (s *Segment) Pins() []*Block {
	var out []*Block
	for i := range s.Blocks {
		if s.Blocks[i].Held {
			out = append(out, &s.Blocks[i])
		}
	}
	return out
}

// New computes the fragmentation of a map for a request. The map must not change afterwards: it is shared.
func New(m *Map, r Request) *Report {
	out := &Report{PID: m.PID, Device: m.Device, Time: m.Time, Request: r}
	pools := map[Pool]*PoolFree{}
	for i := range m.Segments {
		s := &m.Segments[i]
		p := pools[s.Pool]
		if p == nil {
			p = &PoolFree{Pool: s.Pool, OfRequest: r.fits(&s.Pool)}
			pools[s.Pool] = p
		}
		out.add(s, p)
	}
	for _, p := range pools {
		out.Pools = append(out.Pools, *p)
		out.Returnable += p.Returnable
		if p.OfRequest {
			out.Largest = max(out.Largest, p.Largest)
		}
	}
	out.Fragmented = out.TooSmall + out.Elsewhere
	sorts.Func(out.Pools, comparePools)
	sorts.Func(out.Stranded, func(x, y Stranded) int {
		return cmp.Or(cmp.Compare(y.Inactive, x.Inactive), cmp.Compare(x.Addr, y.Addr))
	})
	return out
}

// add adds a segment of a pool.
func (r *Report) add(s *Segment, p *PoolFree) {
	held := s.Held()
	p.Reserved, p.Segments = p.Reserved+s.Size, p.Segments+1
	r.Reserved, r.Held = r.Reserved+s.Size, r.Held+held
	if held == 0 {
		p.Free, p.Returnable, p.Largest = p.Free+s.Size, p.Returnable+s.Size, max(p.Largest, s.Size)
		r.Free += s.Size
		return
	}
	x := Stranded{Segment: s, Held: held, Unusable: true}
	for i := range s.Blocks {
		b := &s.Blocks[i]
		if b.Held {
			continue
		}
		x.Inactive, x.Largest = x.Inactive+b.Size, max(x.Largest, b.Size)
		p.InactiveCount++
		if s.Expandable {
			p.Returnable += s.pages(b)
		}
		if r.count(b, p.OfRequest) {
			x.Unusable = false
		}
	}
	p.Inactive, p.Largest = p.Inactive+x.Inactive, max(p.Largest, x.Largest)
	r.Inactive += x.Inactive
	if x.Inactive > 0 {
		r.Stranded = append(r.Stranded, x)
	}
}

// count counts an inactive split. It reports whether the request could use it.
func (r *Report) count(b *Block, ofRequest bool) bool {
	switch {
	case !ofRequest:
		r.Elsewhere += b.Size
	case r.Request.Bytes == 0 || b.Size < r.Request.Bytes:
		r.TooSmall += b.Size
	default:
		r.Usable += b.Size
		return true
	}
	return false
}

func comparePools(x, y PoolFree) int {
	rank := func(yes bool) int {
		if yes {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank(x.OfRequest), rank(y.OfRequest)), cmp.Compare(y.Inactive, x.Inactive), cmp.Compare(y.Reserved, x.Reserved),
		cmp.Compare(x.ID[0], y.ID[0]), cmp.Compare(x.ID[1], y.ID[1]), cmp.Compare(x.Stream, y.Stream), cmp.Compare(rank(x.Small), rank(y.Small)),
	)
}
