// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// DeviceUse is what the process has of another device when a request failed, bytes.
type DeviceUse struct {
	Device event.Device
	Used   uint64 // PyTorch's segments and what was obtained beside them
	Total  uint64 // of the device; event.Unknown
}

// gathered is what nn.DataParallel has brought to a device in a step.
type gathered struct {
	step  int
	bytes uint64
}

// seeGathered notes an allocation of nn.DataParallel's gathering.
func (f *follower) seeGathered(e *event.Event) {
	if e.Kind != event.KindAlloc || e.Layer != event.LayerTorch || !f.signsOf(e.Stack).Has(advice.Gather) {
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

// setElsewhere says what the process has of other devices, and what was gathered on that of the request.
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

// sizeOf is the memory of a device by the readings; the driver knows it better than the program. event.Unknown: none says it.
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

// contextMost is more than the driver keeps for a process on a device beside what the process has obtained, bytes.
const contextMost = 1 << 30

// setUnseen concludes from a refusal how much the process's context and other processes have at least, where no reading says it: the driver
// refuses nothing that it has. All that the process itself has obtained must be known for it.
func (c *Case) setUnseen() {
	c.Unseen = 0
	own := figures.Add(c.Torch.Reserved, c.Other.Bytes)
	if c.Free != event.Unknown || c.Others != event.Unknown || !c.asks || !c.whole || c.Async || c.Tries == 0 || c.Asked == event.Unknown || c.Total == event.Unknown || own == event.Unknown {
		return
	}
	if own+c.Asked <= c.Total {
		c.Unseen = c.Total - own - c.Asked
	}
}

// othersLeast is what other processes have, at least.
func (c *Case) othersLeast() uint64 {
	if c.Others == event.Unknown && c.Unseen > 0 {
		return c.Unseen - min(c.Unseen, contextMost)
	}
	return c.Others
}
