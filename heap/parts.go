// SPDX-License-Identifier: Apache-2.0

package heap

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

type extent struct{ start, end uint64 }

// Parts returns the division for one device of a process at the last event. ok is false when some block or segment is
// not known, so that the sums would differ from the allocator's.
func (h *Heap) Parts(pid uint32, device event.Device) (p Parts, ok bool) {
	a := h.accounts[accountKey{pid, device}]
	if a == nil || !a.hasTotal || !a.complete {
		return Parts{}, false
	}
	blocks := make([]extent, 0, a.live.Len())
	for i := range a.live.All() {
		b := h.blocks.At(i)
		blocks = append(blocks, extent{b.Addr, b.Addr + b.Size})
		p.Allocated += b.Size
		if b.Requested == event.Unknown || p.Requested == event.Unknown {
			p.Requested = event.Unknown
		} else {
			p.Requested += b.Requested
		}
	}
	sortExtents(blocks)
	for _, s := range h.segments(a) {
		p.Reserved += s.Size
		used, end := uint64(0), s.Addr
		for len(blocks) > 0 && blocks[0].start < s.Addr+s.Size {
			if blocks[0].start < s.Addr || blocks[0].end > s.Addr+s.Size {
				return Parts{}, false
			}
			used += blocks[0].end - blocks[0].start
			p.Largest, end = max(p.Largest, blocks[0].start-min(end, blocks[0].start)), blocks[0].end
			blocks = blocks[1:]
		}
		p.Largest = max(p.Largest, s.Addr+s.Size-end)
		if used == 0 {
			p.Free += s.Size
		} else {
			p.InactiveSplit += s.Size - used
		}
	}
	return p, len(blocks) == 0 && p.Allocated == a.Allocated && p.Reserved == a.Reserved
}

func sortExtents(list []extent) {
	slices.SortFunc(list, func(x, y extent) int { return cmp.Compare(x.start, y.start) })
}

// Segment is a segment of a caching allocator, or a contiguously mapped part of an expandable one.
type Segment struct {
	Addr, Size uint64 // bytes
	// Stack is the stack of its allocation; 0: not known, or several calls mapped it.
	Stack  event.StackID
	Mapped bool // part of an expandable segment
}

// Segments lists the segments of a device by address, as torch.cuda.memory_snapshot() does: those in which torch blocks
// were seen, and those of the allocator state.
func (h *Heap) Segments(pid uint32, device event.Device) []Segment {
	a := h.accounts[accountKey{pid, device}]
	if a == nil {
		return nil
	}
	return h.segments(a)
}

func (h *Heap) segments(a *account) []Segment {
	var whole, mapped []Segment
	of := func(o *object) bool { return o != nil && o.segment && h.key(o).device == a.Device.Physical() }
	p := a.process
	for _, o := range p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if of(o) && o.size != event.Unknown {
			whole = append(whole, Segment{o.addr, o.size, h.key(o).stack, false})
		}
	}
	for _, o := range p.pieces {
		switch {
		case !of(o):
		case o.segmentOf.expandable:
			mapped = append(mapped, Segment{o.addr, o.size, 0, true})
		default:
			whole = append(whole, Segment{o.addr, o.size, 0, false})
		}
	}
	for _, m := range p.mappings {
		if of(m.behind) {
			mapped = append(mapped, Segment{m.addr, m.size, h.key(m.behind).stack, true})
		}
	}
	whole = append(whole, joinMapped(mapped)...)
	sortSegments(whole)
	return whole
}

// joinMapped joins mappings that touch each other into one segment.
func joinMapped(mapped []Segment) []Segment {
	sortSegments(mapped)
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

func sortSegments(list []Segment) {
	slices.SortFunc(list, func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
}
