// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// DeviceUse is the process's memory on another device when a request failed, bytes.
type DeviceUse struct {
	Device event.Device
	Used   uint64 // PyTorch's segments, and memory obtained outside PyTorch
	Total  uint64 // size of the device; event.Unknown
}

// gathered is the memory that nn.DataParallel has gathered on a device in a step.
type gathered struct {
	step  int
	bytes uint64
}

// seeGathered records an allocation by nn.DataParallel's gathering.
func (f *follower) seeGathered(e *event.Event) {
	if e.Kind != event.KindAlloc || e.Layer != event.LayerAllocator || !f.signsOf(e.Stack).Has(advice.Gather) {
		return
	}
	key, step := accountKey{e.PID, e.Device}, f.stepAt(e.Time)
	g := f.gathered[key]
	if g.step != step || step == 0 {
		g = gathered{step: step}
	}
	g.bytes += e.Size
	f.gathered[key] = g
}

// setElsewhere sets the process's memory on other devices, and what was gathered on the request's device.
func (f *follower) setElsewhere(c *Case, h *heap.Heap) {
	accounts := h.Totals().Accounts
	for i := range accounts {
		a := &accounts[i]
		if a.PID != c.PID || a.Device == c.Device || a.Device.Type != c.Device.Type || a.Reserved == event.Unknown {
			continue
		}
		d := DeviceUse{Device: a.Device, Used: a.Reserved, Total: event.Unknown}
		if all, ok := h.Driver(a.PID, event.LayerDevice, a.Device); ok {
			d.Used += all.Live.Bytes - min(all.Live.Bytes, all.Segments.Bytes)
		}
		c.Elsewhere = append(c.Elsewhere, d)
	}
	if g := f.gathered[accountKey{c.PID, c.Device}]; g.step == c.Step && len(c.Elsewhere) > 0 {
		c.Gathered = g.bytes
	}
}

// sizeOf returns the memory of a device from the readings, preferring the driver's figure to the program's.
// event.Unknown: none has it.
func sizeOf(readings []figures.Reading, device int) uint64 {
	for i := range readings {
		for _, d := range readings[i].Driver {
			if d.Device == device && d.Total != figures.Unknown {
				return uint64(d.Total)
			}
		}
	}
	for i := range readings {
		for _, d := range readings[i].Sizes {
			if d.Device == device {
				return uint64(d.Bytes)
			}
		}
	}
	return event.Unknown
}

// contextMost is an upper bound of the driver's own memory for a process on a device, bytes.
const contextMost = 1 << 30

// setUnseen derives a lower bound for the process's context and other processes from a refusal, if no reading has the
// figure: the driver refuses nothing that it has. It requires that all memory of the process itself is known.
func (c *Case) setUnseen() {
	c.Unseen = 0
	own := figures.Add(c.Torch.Reserved, c.Other.Bytes)
	if c.hasFree() && c.Others == event.Unknown && !c.Async {
		c.setRest(own)
		return
	}
	if c.Free != event.Unknown || c.Others != event.Unknown || !c.asks || !c.whole || c.Async || c.Tries == 0 || c.Asked == event.Unknown ||
		c.Total == event.Unknown || own == event.Unknown {
		return
	}
	if own+c.Asked <= c.Total {
		c.Unseen = c.Total - own - c.Asked
	}
}

// othersLeast returns a lower bound for the memory of other processes.
func (c *Case) othersLeast() uint64 {
	if c.Others == event.Unknown && c.Unseen > 0 {
		return c.Unseen - min(c.Unseen, contextMost)
	}
	return c.Others
}
