package heap

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// Parts is how the caching allocator's segments on one device are used, by the events. Sizes are bytes.
//
//	Reserved == Allocated + Holes + Free
type Parts struct {
	Reserved  uint64 // segments
	Allocated uint64 // blocks that the program holds
	Requested uint64 // of Allocated, what the program asked for; event.Unknown when that of a block is not known
	// Holes is what no block is in, of segments with blocks: free, or given back and waiting for another stream's work.
	Holes uint64
	Free  uint64 // segments without a block
}

type extent struct{ start, end uint64 }

// Parts adds up one device of a process at the last event. ok is false when not every block and segment is known: then the
// sums are not those of the allocator.
func (h *Heap) Parts(pid uint32, device event.Device) (p Parts, ok bool) {
	a := h.accounts[accountKey{pid, device}]
	if a == nil || !a.based || !a.complete {
		return Parts{}, false
	}
	blocks := make([]extent, 0, len(a.live))
	for _, i := range a.live {
		b := &h.blocks.blocks[i]
		blocks = append(blocks, extent{b.addr, b.addr + b.size})
		p.Allocated += b.size
		if b.requested == event.Unknown || p.Requested == event.Unknown {
			p.Requested = event.Unknown
		} else {
			p.Requested += b.requested
		}
	}
	sortExtents(blocks)
	for _, s := range h.segmentExtents(a) {
		p.Reserved += s.end - s.start
		used := uint64(0)
		for len(blocks) > 0 && blocks[0].start < s.end {
			if blocks[0].start < s.start || blocks[0].end > s.end {
				return Parts{}, false
			}
			used += blocks[0].end - blocks[0].start
			blocks = blocks[1:]
		}
		if used == 0 {
			p.Free += s.end - s.start
		} else {
			p.Holes += s.end - s.start - used
		}
	}
	return p, len(blocks) == 0 && p.Allocated == a.Allocated && p.Reserved == a.Reserved
}

func sortExtents(list []extent) {
	slices.SortFunc(list, func(x, y extent) int { return cmp.Compare(x.start, y.start) })
}

// segmentExtents gives where the segments of a device are, by address. What is mapped without a gap is one segment, as in
// torch.cuda.memory_snapshot().
func (h *Heap) segmentExtents(a *account) []extent {
	var whole, mapped []extent
	of := func(o *object) bool { return o != nil && o.segment && h.key(o).device == a.Device }
	p := a.process
	for _, o := range p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if of(o) {
			whole = append(whole, extent{o.addr, o.addr + o.size})
		}
	}
	for _, o := range p.pieces {
		switch {
		case !of(o):
		case o.root.expandable:
			mapped = append(mapped, extent{o.addr, o.addr + o.size})
		default:
			whole = append(whole, extent{o.addr, o.addr + o.size})
		}
	}
	for _, m := range p.mappings {
		if of(m.behind) {
			mapped = append(mapped, extent{m.addr, m.addr + m.size})
		}
	}
	sortExtents(mapped)
	for i, m := range mapped {
		if last := len(whole) - 1; i > 0 && whole[last].end == m.start {
			whole[last].end = m.end
		} else {
			whole = append(whole, m)
		}
	}
	sortExtents(whole)
	return whole
}
