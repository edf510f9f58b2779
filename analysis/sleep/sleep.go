// SPDX-License-Identifier: Apache-2.0

// Package sleep finds the times in which a server of models slept: an allocator below PyTorch's, such as vLLM's for its sleep mode or
// torch_memory_saver, had released the memory of segments and kept their addresses.
package sleep

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Cycle is one time from the first release of memory until all of it was back or its addresses were freed. Sizes are bytes; the memory
// of the device is the process's, by the driver's calls.
type Cycle struct {
	PID      uint32
	Device   event.Device
	From     uint64 // CLOCK_BOOTTIME nanoseconds
	To       uint64 // CLOCK_BOOTTIME nanoseconds; 0: it sleeps at the end
	Released uint64 // maximum of what was asleep
	Before   uint64 // memory of the device before
	Stayed   uint64 // minimum while it slept
	After    uint64 // memory of the device when it was awake; 0: it sleeps
}

// Change returns the memory of the device after the cycle less that before it; 0 if it sleeps.
func (c *Cycle) Change() int64 {
	if c.To == 0 {
		return 0
	}
	return int64(c.After) - int64(c.Before)
}

// maxCycles is the maximum number of cycles that are kept.
const maxCycles = 1000

// Follower follows a trace. The zero value has seen no event.
type Follower struct {
	cycles  []Cycle // those that ended
	devices []*device
	last    *device // of the last event of an allocator
}

// device is one device of a process that PyTorch uses.
type device struct {
	pid    uint32
	device event.Device
	awake  uint64 // memory of the device before the last event with nothing asleep
	open   *Cycle // nil: nothing is asleep
}

// Before is called before an event is applied to the heap.
func (f *Follower) Before(e *event.Event, h *heap.Heap) {
	for _, d := range f.of(e) {
		if d.open == nil {
			d.awake = f.live(d, h)
		}
	}
}

// See is called after an event was applied to the heap.
func (f *Follower) See(e *event.Event, h *heap.Heap) {
	if e.Layer == event.LayerAllocator {
		if d := f.last; (d == nil || d.pid != e.PID || d.device != e.Device) && e.Device.Allocator().Totals() {
			f.last = f.find(e.PID, e.Device)
		}
		return
	}
	for _, d := range f.of(e) {
		f.follow(d, e.Time, h)
	}
}

// of returns the devices whose memory an event of the driver may change; events of mappings may lack the device.
func (f *Follower) of(e *event.Event) (out []*device) {
	if e.Layer != event.LayerDevice && e.Layer != event.LayerVirtual {
		return nil
	}
	for _, d := range f.devices {
		if d.pid == e.PID {
			out = append(out, d)
		}
	}
	return out
}

// live returns the memory of a device in bytes, with memory on an unknown device if the process uses only one.
func (f *Follower) live(d *device, h *heap.Heap) uint64 {
	known, _ := h.Driver(d.pid, event.LayerDevice, d.device.Physical())
	unknown, _ := h.Driver(d.pid, event.LayerDevice, event.Device{Type: d.device.Type.Physical(), Index: -1})
	sum := uint64(0)
	if known != nil {
		sum = known.Live.Bytes
	}
	if unknown != nil && len(f.devices) == 1 {
		sum += unknown.Live.Bytes
	}
	return sum
}

func (f *Follower) find(pid uint32, on event.Device) *device {
	for _, d := range f.devices {
		if d.pid == pid && d.device == on {
			return d
		}
	}
	d := &device{pid: pid, device: on}
	f.devices = append(f.devices, d)
	return d
}

func (f *Follower) follow(d *device, now uint64, h *heap.Heap) {
	bytes, live := h.AsleepBytes(d.pid, d.device), f.live(d, h)
	if d.open == nil {
		if bytes == 0 {
			return
		}
		d.open = &Cycle{PID: d.pid, Device: d.device, From: now, Before: d.awake, Stayed: live}
	}
	c := d.open
	c.Released, c.Stayed = max(c.Released, bytes), min(c.Stayed, live)
	if bytes > 0 {
		return
	}
	c.To, c.After, d.open = now, live, nil
	if len(f.cycles) == maxCycles {
		f.cycles = slices.Delete(f.cycles, 0, 1)
	}
	f.cycles = append(f.cycles, *c)
}

// Cycles returns the last cycles in the order of their beginnings.
func (f *Follower) Cycles() []Cycle {
	out := slices.Clone(f.cycles)
	for _, d := range f.devices {
		if d.open != nil {
			out = append(out, *d.open)
		}
	}
	slices.SortStableFunc(out, func(x, y Cycle) int { return cmp.Compare(x.From, y.From) })
	return out
}

// leastRising is the least number of cycles from which a rise is concluded.
const leastRising = 3

// Rise returns by how much at least the memory that stays rose with each cycle on each device, bytes; 0: it did not rise with each, or
// there are too few cycles.
func Rise(cycles []Cycle) (least uint64) {
	if len(cycles) < leastRising {
		return 0
	}
	for i := 1; i < len(cycles); i++ {
		last, c := &cycles[i-1], &cycles[i]
		if c.PID != last.PID || c.Device != last.Device || c.Stayed <= last.Stayed {
			return 0
		}
		if rise := c.Stayed - last.Stayed; least == 0 || rise < least {
			least = rise
		}
	}
	return least
}
