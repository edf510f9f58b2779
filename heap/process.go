// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/ranges"
)

// process holds the state of one process: its driver memory, contexts and devices.
type process struct {
	pid    uint32
	spaces map[spaceKey]map[uint64]*object // objects with a reference, by address or handle

	mappings []*mapping           // by address; they do not overlap
	orphans  map[*object]struct{} // physical memory without a reference that is still mapped
	pieces   []*object            // segments known only from the allocator state, by address; they do not overlap

	// unclaimed lists the device allocations and mappings in which no torch block was seen, by address, from the first
	// torch event on. It is short: a segment leaves it with the allocation of its first block.
	unclaimed []span
	torch     bool
	asleep    ranges.List // segments without memory
	regions   ranges.List // of allocators without totals, at the last reading
	slept     ranges.List // segments that had none before, and have some

	accounts        []*account              // of its caching allocators
	contexts        map[uint64]event.Device // seen in use, with their devices
	primaries       map[int8]uint64         // the primary context of a device
	devices         map[int8]struct{}       // ordinals seen in use
	fromStart       bool                    // the process did not use the GPU before the first event
	lastDriverEvent uint64                  // time of the last event of device memory

	watch            *watch
	blocksObserved   map[event.Device]uint64 // the number of a device's allocators whose blocks were compared with their state before
	segmentsObserved map[event.Device]bool   // devices whose segments were
}

// spaceKey identifies a set of addresses or handles. Handles of different sorts can have the same number.
type spaceKey struct {
	layer event.Layer
	sort  event.Object
}

func (h *Heap) process(pid uint32) *process {
	p := h.processes[pid]
	if p == nil {
		p = &process{
			pid: pid, spaces: map[spaceKey]map[uint64]*object{}, orphans: map[*object]struct{}{},
			contexts: map[uint64]event.Device{}, primaries: map[int8]uint64{}, devices: map[int8]struct{}{},
			blocksObserved: map[event.Device]uint64{}, segmentsObserved: map[event.Device]bool{},
		}
		h.processes[pid] = p
	}
	return p
}

// FromStart states that the events of a process begin before its first use of the GPU, so that all references to its
// contexts are known. Otherwise the last cuDevicePrimaryCtxRelease cannot be distinguished from the others, and no
// release retires the context's memory. Call FromStart before the process's first event.
func (h *Heap) FromStart(pid uint32) { h.process(pid).fromStart = true }

// space returns the objects of one sort on one layer.
func (p *process) space(layer event.Layer, sort event.Object) map[uint64]*object {
	key := spaceKey{layer, sort}
	s := p.spaces[key]
	if s == nil {
		s = map[uint64]*object{}
		p.spaces[key] = s
	}
	return s
}

// backing lists the layers that the driver's functions for freeing device memory search.
var backing = []event.Layer{event.LayerDevice, event.LayerHost, event.LayerShared, event.LayerVirtual}

// find looks an object up in the order in which the driver would.
func (p *process) find(layer event.Layer, sort event.Object, addr uint64) *object {
	if layer != event.LayerDevice {
		return p.spaces[spaceKey{layer, sort}][addr]
	}
	for _, l := range backing {
		if o := p.spaces[spaceKey{l, sort}][addr]; o != nil {
			return o
		}
	}
	return nil
}

// note records the contexts and devices that a process uses.
func (p *process) note(e *event.Event) {
	if e.Device.Index >= 0 {
		p.devices[e.Device.Index] = struct{}{}
	}
	if c := contextOf(e); c != 0 {
		if known, ok := p.contexts[c]; !ok || known.Index < 0 {
			p.contexts[c] = e.Device
		}
	}
	if e.Layer == event.LayerDevice {
		p.noteDriver(e.Time)
	}
}

// noteDriver records the time of an event of device memory. After it, the reserved bytes that were read of an allocator without
// reports may have changed.
func (p *process) noteDriver(time uint64) {
	p.lastDriverEvent = max(p.lastDriverEvent, time)
	for _, a := range p.accounts {
		if !a.Device.Allocator().Totals() {
			a.Reserved = event.Unknown
		}
	}
}

// contextOf returns the context of an event, or 0.
func contextOf(e *event.Event) uint64 {
	if e.Context == event.Unknown {
		return 0
	}
	return e.Context
}

// hasTorch starts the list of unclaimed memory, in which segments are found.
func (p *process) hasTorch(device event.Device) {
	if device.Index >= 0 {
		p.devices[device.Index] = struct{}{}
	}
	if p.torch {
		return
	}
	p.torch = true
	for _, o := range p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if !o.segment && o.size != event.Unknown {
			p.unclaimed = append(p.unclaimed, span{o.addr, o.addr + o.size, o})
		}
	}
	for _, m := range p.mappings {
		if m.markable() {
			p.unclaimed = append(p.unclaimed, span{m.addr, m.addr + m.size, m.behind})
		}
	}
	slices.SortFunc(p.unclaimed, func(x, y span) int { return compareSpan(x, y.start) })
}
