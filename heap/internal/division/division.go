// SPDX-License-Identifier: Apache-2.0

// Package division divides the segments of a caching allocator by the use of their bytes.
package division

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// Parts divides the caching allocator's segments on one device by their use, computed from events. Sizes are bytes.
//
//	Reserved == Allocated + InactiveSplit + Free
type Parts struct {
	Reserved  uint64 // segments
	Allocated uint64 // blocks that the program holds
	Requested uint64 // the part of Allocated that the program asked for; event.Unknown when one block's is not known
	// InactiveSplit is free memory in segments with blocks, and freed blocks that wait for another stream's work.
	InactiveSplit uint64
	Free          uint64 // segments without a block
	Largest       uint64 // the largest free piece of either kind
}

// Segment is a segment of a caching allocator, or a contiguously mapped part of an expandable one.
type Segment struct {
	Addr, Size uint64 // bytes
	// Stack is the stack of its allocation; 0: not known, or several calls mapped it.
	Stack  event.StackID
	Mapped bool // part of an expandable segment
}

// Block is a block in use at the addresses [Start, End).
type Block struct{ Start, End uint64 }

// Divide adds up segments and the blocks in them. ok is false when a block is in no segment, or in more than one.
func Divide(segments []Segment, blocks []Block) (p Parts, ok bool) {
	slices.SortFunc(blocks, func(x, y Block) int { return cmp.Compare(x.Start, y.Start) })
	for _, s := range segments {
		p.Reserved += s.Size
		used, end := uint64(0), s.Addr
		for len(blocks) > 0 && blocks[0].Start < s.Addr+s.Size {
			if blocks[0].Start < s.Addr || blocks[0].End > s.Addr+s.Size {
				return Parts{}, false
			}
			used += blocks[0].End - blocks[0].Start
			p.Largest, end = max(p.Largest, blocks[0].Start-min(end, blocks[0].Start)), blocks[0].End
			blocks = blocks[1:]
		}
		p.Largest = max(p.Largest, s.Addr+s.Size-end)
		if p.Allocated += used; used == 0 {
			p.Free += s.Size
		} else {
			p.InactiveSplit += s.Size - used
		}
	}
	return p, len(blocks) == 0
}

// Ask adds the bytes that the program asked for in one more block; event.Unknown makes their sum unknown.
func (p *Parts) Ask(bytes uint64) {
	if bytes == event.Unknown || p.Requested == event.Unknown {
		p.Requested = event.Unknown
		return
	}
	p.Requested += bytes
}

// Join joins mappings that touch each other into one segment.
func Join(mapped []Segment) []Segment {
	Sort(mapped)
	var out []Segment
	for _, m := range mapped {
		last := len(out) - 1
		if last < 0 || out[last].Addr+out[last].Size != m.Addr {
			out = append(out, m)
			continue
		}
		if out[last].Size += m.Size; out[last].Stack != m.Stack {
			out[last].Stack = 0
		}
	}
	return out
}

// Sort sorts segments by address.
func Sort(list []Segment) {
	slices.SortFunc(list, func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
}
