// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// mapping is physical memory that is mapped at an address.
type mapping struct {
	addr, size uint64
	behind     *object // nil: the handle's allocation was not seen
	unmaps     int     // number of unmaps that removed it
	device     bool    // behind is on the device layer, so it belongs neither to another process nor to the host
}

func compareMapping(m *mapping, addr uint64) int { return ranges.Compare(m.addr, addr) }

func (m *mapping) bounds() (uint64, uint64) { return m.addr, m.addr + m.size }

func (h *Heap) mapMemory(p *process, e *event.Event) {
	d := h.driver(e.PID, e.Layer, e.Device)
	d.Maps++
	end := e.Addr + e.Size
	for _, old := range h.unmap(p, e.Addr, end, e.Time) { // its unmap was lost
		d.LostFrees++
		if old.behind != nil {
			h.settle(p, old.behind)
		}
	}
	h.retireLostPieces(p, e.Addr, end)
	m := &mapping{addr: e.Addr, size: e.Size, behind: p.find(event.LayerDevice, event.ObjectPhysical, e.Handle)}
	if m.behind == nil {
		m.behind = h.undo.objectInFlight(p, event.ObjectPhysical, e.Handle, e.TID)
	}
	if m.behind == nil {
		d.UnknownMaps++
	} else {
		m.device = h.key(m.behind).layer == event.LayerDevice
	}
	h.insertMapping(p, m, e.Time)
}

// insertMapping adds a mapping to a range that has none.
func (h *Heap) insertMapping(p *process, m *mapping, time uint64) {
	at, _ := slices.BinarySearchFunc(p.mappings, m.addr, compareMapping)
	p.mappings = slices.Insert(p.mappings, at, m)
	o := m.behind
	if o == nil {
		return
	}
	o.maps++
	o.touched = max(o.touched, time)
	if o.refs <= 0 {
		p.orphans[o] = struct{}{}
	}
	h.settle(p, o)
	if !h.wake(p, m) && p.torch && m.markable() {
		p.addUnclaimed(span{m.addr, m.addr + m.size, o})
	}
}

// markable reports whether a torch block in the mapping would make the mapped memory a segment.
func (m *mapping) markable() bool { return m.device && !m.behind.segment }

func (h *Heap) unmapMemory(p *process, e *event.Event) {
	d := h.driver(e.PID, e.Layer, e.Device)
	d.Unmaps++
	end := e.Addr + e.Size
	if e.Size == event.Unknown {
		end = p.mappingEnd(e.Addr)
	}
	inFlight := h.undo.unmapping(p, e.Addr, end, e.TID)
	u := undoRecord{process: p, account: d, mappings: h.unmap(p, e.Addr, end, e.Time), ranges: h.removePieces(p, e.Addr, end)}
	if len(u.mappings)+len(u.ranges) == 0 {
		d.UnknownUnmaps++
		u.unknown = true
	}
	h.putToSleep(p, &u)
	for _, m := range inFlight {
		m.unmaps++
		u.mappings = append(u.mappings, m)
	}
	h.undo.push(e, u)
}

// mappingEnd returns the end of the mapping at an address, or the address itself when there is no mapping.
func (p *process) mappingEnd(addr uint64) uint64 {
	if i, ok := slices.BinarySearchFunc(p.mappings, addr, compareMapping); ok {
		return addr + p.mappings[i].size
	}
	return addr + 1
}

// unmap removes the mappings that overlap [lo, hi) and returns them.
func (h *Heap) unmap(p *process, lo, hi, time uint64) []*mapping {
	from, to := ranges.Overlapping(p.mappings, (*mapping).bounds, lo, hi)
	if from == to {
		return nil
	}
	out := slices.Clone(p.mappings[from:to])
	p.mappings = slices.Delete(p.mappings, from, to)
	for _, m := range out {
		m.unmaps = 1
		if o := m.behind; o != nil {
			o.maps--
			o.touched = max(o.touched, time)
			if o.maps == 0 {
				delete(p.orphans, o)
			}
			p.removeUnclaimed(m.addr, o)
			h.settle(p, o)
		}
	}
	return out
}

// remap undoes an unmap, unless something else is mapped there now.
func (h *Heap) remap(p *process, d *DriverAccount, m *mapping, time uint64) {
	if m.unmaps--; m.unmaps > 0 {
		return
	}
	if from, to := ranges.Overlapping(p.mappings, (*mapping).bounds, m.addr, m.addr+m.size); from != to {
		d.LostFrees++
		return
	}
	h.insertMapping(p, m, time)
}

func (h *Heap) retain(p *process, e *event.Event) {
	o := p.find(e.Layer, e.Object, e.Addr)
	if o == nil {
		o = p.orphan(e.Addr)
	}
	if o == nil {
		o = h.undo.unmappingHandle(p, e.Addr, e.TID) // memory without a mapping cannot be retained
	}
	if o == nil {
		d := h.driver(e.PID, e.Layer, e.Device)
		d.Retains++
		d.UnknownRetains++
		return
	}
	h.accountOf(o).Retains++
	if o.refs > 0 {
		o.refs++
		o.touched = e.Time
		return
	}
	h.restoreRef(p, o, e.Time)
}

// orphan finds physical memory without a reference by its former handle: cuMemRetainAllocationHandle can assign it a
// handle again. If several had the handle, orphan returns the one used last.
func (p *process) orphan(handle uint64) *object {
	var found *object
	for o := range p.orphans {
		if o.addr == handle && (found == nil || o.touched > found.touched) {
			found = o
		}
	}
	return found
}
