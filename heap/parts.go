// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/division"
)

// Parts divides the caching allocator's segments on one device by their use, computed from events. Sizes are bytes.
type Parts = division.Parts

// Segment is a segment of a caching allocator, or a contiguously mapped part of an expandable one.
type Segment = division.Segment

// Parts returns the division for one device of a process at the last event. ok is false when some block or segment is
// not known, so that the sums would differ from the allocator's.
func (h *Heap) Parts(pid uint32, device event.Device) (p Parts, ok bool) {
	a := h.accounts[accountKey{pid, device}]
	if a == nil || !a.hasTotal || !a.complete && (a.process.regions.Bytes(a.Device) == 0 || a.Reserved == event.Unknown) {
		return Parts{}, false
	}
	blocks := make([]division.Block, 0, a.live.Len())
	var asked Parts
	for i := range a.live.All() {
		b := h.blocks.At(i)
		blocks = append(blocks, division.Block{Start: b.Addr, End: b.Addr + b.Size})
		asked.Ask(b.Requested)
	}
	p, ok = division.Divide(h.segments(a), blocks)
	p.Requested = asked.Requested
	return p, ok && p.Allocated == a.Allocated && p.Reserved == a.Reserved
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
	device := a.Device.Physical()
	if regions := a.process.regions.Segments(a.Device, false); regions != nil {
		return regions
	}
	of := func(o *object) bool { return o != nil && o.segment && h.key(o).device == device }
	add := func(list *[]Segment, addr, size uint64, stack event.StackID, mapped bool) {
		*list = append(*list, Segment{Addr: addr, Size: size, Stack: stack, Mapped: mapped})
	}
	p := a.process
	for _, o := range p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if of(o) && o.size != event.Unknown {
			add(&whole, o.addr, o.size, h.key(o).stack, false)
		}
	}
	for _, o := range p.pieces {
		switch {
		case !of(o):
		case o.segmentOf.expandable:
			add(&mapped, o.addr, o.size, 0, true)
		default:
			add(&whole, o.addr, o.size, 0, false)
		}
	}
	for _, m := range p.mappings {
		if of(m.behind) {
			add(&mapped, m.addr, m.size, h.key(m.behind).stack, true)
		}
	}
	whole = slices.Concat(whole, p.asleep.Segments(device, true), division.Join(mapped))
	division.Sort(whole)
	return whole
}
