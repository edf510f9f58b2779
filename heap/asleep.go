// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// An allocator below PyTorch's, such as vLLM's for its sleep mode, can release the memory of a segment and keep its addresses:
// PyTorch and its tensors do not notice. Each of its segments is one reservation of addresses:
//
//	reserve(A), create(X), map(A, X)     PyTorch puts blocks at A: X is a segment
//	unmap(A), release(X)                 A is asleep: blocks without memory
//	create(Y), map(A, Y)                 Y is a segment at once, without a new block
//	unmap(A), free the addresses A       A is in no list
//
// PyTorch's own expandable segments are mapped piece by piece into a larger reservation, and it counts what it unmaps.

// Asleep is the part of PyTorch's segments on one device whose memory was released, while PyTorch kept the addresses.
type Asleep struct {
	PID      uint32
	Device   event.Device
	Segments uint64 // bytes of segments, which PyTorch counts as reserved
	Blocks   Count  // blocks in them, which PyTorch counts as allocated
}

// putToSleep lists what an unmap removed from PyTorch's segments.
func (h *Heap) putToSleep(p *process, u *undoRecord) {
	for _, m := range u.mappings {
		r := p.spaces[spaceKey{event.LayerVirtual, event.ObjectMemory}][m.addr]
		before, _ := p.slept.Find(m.addr) // its reservation may be from before the attach
		if o := m.behind; o != nil && o.segment && (r != nil && r.size == m.size || before.End == m.addr+m.size) {
			p.asleep.Add(ranges.Range{Start: m.addr, End: m.addr + m.size, Device: h.key(o).device})
		}
	}
	for _, c := range u.ranges {
		if !c.segmentOf.expandable {
			p.asleep.Add(ranges.Range{Start: c.lo, End: c.hi, Device: h.sites.list[c.segmentOf.site].key.device})
		}
	}
}

// wake counts memory that was mapped where a segment was asleep as that segment, and reports whether one was.
func (h *Heap) wake(p *process, m *mapping) bool {
	woken := p.asleep.Cut(m.addr, m.addr+m.size)
	if len(woken) == 0 || !m.device {
		return false
	}
	h.markSegment(m.behind, woken[0].Device)
	p.slept.Add(ranges.Range{Start: m.addr, End: m.addr + m.size, Device: woken[0].Device})
	return true
}

// forgetAsleep removes the segments at addresses that were freed or are used for other memory.
func (p *process) forgetAsleep(addr, size uint64) {
	for _, l := range []*ranges.List{&p.asleep, &p.slept} {
		end := addr + size
		if r, _ := l.Find(addr); size == event.Unknown {
			end = max(addr, r.End)
		}
		l.Cut(addr, end)
	}
}

// AsleepBytes returns Asleep.Segments of a process and a device, valid until the heap changes.
func (h *Heap) AsleepBytes(pid uint32, device event.Device) uint64 {
	if p := h.processes[pid]; p != nil {
		return p.asleep.Bytes(device.Physical())
	}
	return 0
}

// segmentBytes returns the bytes of the known segments, with those that are asleep.
func (a *account) segmentBytes() uint64 {
	bytes := uint64(0)
	if a.driver != nil {
		bytes = a.driver.Segments.Bytes
	}
	if len(a.process.asleep) > 0 && a.Device.Allocator().Totals() {
		bytes += a.process.asleep.Bytes(a.Device.Physical())
	}
	return bytes
}

// asleep returns what is asleep of each allocator that reports totals, by PID and device.
func (h *Heap) asleep() (out []Asleep) {
	for _, a := range h.sortedAccounts() {
		list := a.process.asleep
		s := Asleep{PID: a.PID, Device: a.Device}
		if s.Segments = list.Bytes(a.Device.Physical()); s.Segments == 0 || !a.Device.Allocator().Totals() {
			continue
		}
		for i := range a.live.All() {
			b := h.blocks.At(i)
			if r, ok := list.Find(b.Addr); ok && r.Device == a.Device.Physical() {
				s.Blocks.Add(b.Size, b.Requested)
			}
		}
		out = append(out, s)
	}
	return out
}
