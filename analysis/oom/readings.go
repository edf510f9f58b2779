// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// readBefore compares the readings from before an event with the live set at that time; with e nil, all remaining readings.
func (f *follower) readBefore(e *event.Event, h *heap.Heap) {
	for f.reading < len(f.in.Readings) && (e == nil || f.in.Readings[f.reading].Time < e.Time) {
		f.context[f.reading] = f.contexts(&f.in.Readings[f.reading], h)
		f.reading++
	}
	if e != nil {
		return
	}
	for i := range f.cases[:f.done] {
		f.setDevice(&f.cases[i])
	}
}

// contexts returns, for each device of a reading, the driver's figure beyond the process's explained memory; event.Unknown.
func (f *follower) contexts(r *figures.Reading, h *heap.Heap) []uint64 {
	if len(r.Driver) == 0 || r.Moved {
		return nil
	}
	var out []uint64
	v := f.in.Trace.ViewOf(h.Snapshot())
	for i := range r.Driver {
		d := &r.Driver[i]
		used, explained, segments := uint64(d.Used), uint64(0), uint64(0)
		for k := range v.Sites {
			s := &v.Sites[k]
			if s.Layer == event.LayerDevice && (int(s.Device.Index) == d.Device || s.Device.Index < 0 && len(r.Driver) == 1) {
				explained += s.Inuse.Bytes
				if s.Segment {
					segments += s.Inuse.Bytes
				}
			}
		}
		for k := range r.Torch {
			if t := &r.Torch[k]; t.Device == d.Device && explained != event.Unknown { // of the same moment
				explained = figures.Add(explained-segments, uint64(t.Reserved))
			}
		}
		for k := range v.Snapshot.Accounts {
			// Only the allocator's own figure includes segments from before the attach.
			if a := &v.Snapshot.Accounts[k]; int(a.Device.Index) == d.Device && a.Reserved != event.Unknown && a.SegmentBytes == event.Unknown &&
				len(r.Torch) == 0 {
				explained = event.Unknown
			}
		}
		if used == event.Unknown || explained == event.Unknown || used < explained {
			out = append(out, event.Unknown)
			continue
		}
		out = append(out, used-explained)
	}
	return out
}

// setDevice stores the figures of the device, from the reading that was made for the failure if the process still had
// its memory, otherwise from the last one before.
func (f *follower) setDevice(c *Case) {
	for i := range f.in.Readings {
		r := &f.in.Readings[i]
		if r.Time > c.Time && r.Failed != c.Time {
			continue
		}
		for k := range r.Driver {
			if d := &r.Driver[k]; d.Device == int(c.Device.Index) || c.Device.Index < 0 && len(r.Driver) == 1 {
				if c.Device.Index < 0 { // calls of the driver do not pass the device
					c.Device = event.Device{Type: event.DeviceCUDA, Index: int8(d.Device)}
				}
				f.takeDriver(c, r, d, k < len(f.context[i]), func() uint64 { return f.context[i][k] })
			}
		}
		for k, l := range r.Limits {
			if k == 0 {
				c.limits = nil
			}
			if l.Device == int(c.Device.Index) {
				c.limits = append(c.limits, uint64(l.Bytes))
			}
		}
	}
	c.setTotal(f.in.Readings)
	c.setUse()
}

// setTotal takes the sizes of the devices from a later reading if there is none before, because they do not change.
func (c *Case) setTotal(readings []figures.Reading) {
	if c.Total == event.Unknown {
		c.Total = sizeOf(readings, int(c.Device.Index))
	}
	for i := range c.Elsewhere {
		c.Elsewhere[i].Total = sizeOf(readings, int(c.Elsewhere[i].Device.Index))
	}
}

// takeDriver stores the driver's figures of a device. A process that has ended has returned its memory.
func (f *follower) takeDriver(c *Case, r *figures.Reading, d *figures.DriverUse, known bool, context func() uint64) {
	if uint64(d.Total) != event.Unknown {
		c.Total = uint64(d.Total)
	}
	if known && context() != event.Unknown {
		c.Context = context()
	}
	// Memory that was freed since still belongs to the pool, so the driver's figure is the one at the failing call.
	if own := figures.Add(c.held(), c.Other.Bytes); c.Async && r.Failed == c.Time && uint64(d.Used) != event.Unknown && uint64(d.Used) >= own {
		c.Context = uint64(d.Used) - own
	}
	for i := range r.Others {
		if r.Others[i].Device != d.Device {
			continue
		}
		c.Read, c.By, c.Others = r.Time, r.Others[i].By, 0
		for _, o := range c.By {
			c.Others = figures.Add(c.Others, uint64(o.Used))
		}
		c.Rest = event.Unknown
		if listed := figures.Add(c.Others, uint64(d.Used)); listed != event.Unknown && uint64(d.All) != event.Unknown {
			c.Rest = uint64(d.All) - min(listed, uint64(d.All))
		}
	}
}

// setUse sets how much of the device was free at the failing call.
func (c *Case) setUse() {
	own := figures.Add(figures.Add(c.held(), c.Other.Bytes), c.Context)
	if used := figures.Add(own, c.Others); c.Total != event.Unknown && used != event.Unknown {
		if c.Rest != event.Unknown {
			used += c.Rest
		}
		if used <= c.Total {
			c.Free = c.Total - used
		}
	}
	if c.hasFree() {
		c.takeFree()
		return
	}
	c.setReturned()
}

// setReturned concludes from a refusal that others had more than in the reading after the failure, and have returned it
// since: the driver refuses nothing that it has.
func (c *Case) setReturned() {
	const room = 64 << 20 // kept by a driver, and the possible error of a reading
	if c.Tries == 0 || c.Asked == event.Unknown || c.Free == event.Unknown || c.Read < c.Time || c.Free < c.Asked+room {
		return
	}
	c.Returned = c.Free - c.Asked
	c.Others, c.Free = c.Others+c.Returned, event.Unknown
}

// name sets the holders of the live blocks, from the reading that was made for the failure, otherwise from the last one before.
func (f *follower) name(c *Case) {
	var latest *figures.Reading
	for i := range f.in.Readings {
		if r := &f.in.Readings[i]; len(r.Held) > 0 && (r.Time <= c.Time || r.Failed == c.Time) {
			latest = r
		}
	}
	if latest == nil {
		return
	}
	c.HeldAt = latest.Time
	bySite := map[string][]figures.HeldAt{}
	for _, r := range latest.Held {
		bySite[r.Site] = append(bySite[r.Site], r)
	}
	var out []Holding
	for _, row := range c.Top {
		out = append(out, divide(row, bySite)...)
	}
	c.Top = out
	sortHoldings(c.Top)
	c.sumCategories()
}

// divide divides the blocks of a row among their holders in a reading, as far as these have blocks left. The rest has no holder.
func divide(row Holding, held map[string][]figures.HeldAt) []Holding {
	var out []Holding
	rows := held[row.Site]
	for i := range rows {
		r := &rows[i]
		if r.Holder == view.NoHolder || r.Bytes == 0 || r.Bytes > row.Bytes || r.Blocks > row.Objects {
			continue
		}
		part := heap.Count{Objects: r.Blocks, Bytes: r.Bytes}
		category := phases.Beside(row.Category, r.Holder)
		if k := phases.OfHolder(r.What); k != phases.NoCategory {
			category = k
		}
		out = append(out, Holding{Site: row.Site, Holder: r.Holder, Category: category, Count: part})
		row.Bytes, row.Objects = row.Bytes-r.Bytes, row.Objects-r.Blocks
		r.Bytes = 0
	}
	if row.Bytes > 0 {
		out = append(out, row)
	}
	return out
}

// WithSizes adds a reading of the devices' sizes at the end, which do not change.
func WithSizes(readings []figures.Reading, driver []figures.DriverUse) []figures.Reading {
	var sizes []figures.DeviceSize
	for i := range driver {
		if d := &driver[i]; d.Device >= 0 && d.Total != figures.Unknown {
			sizes = append(sizes, figures.DeviceSize{Device: d.Device, Bytes: d.Total})
		}
	}
	if sizes == nil {
		return readings
	}
	return append(slices.Clone(readings), figures.Reading{Time: math.MaxUint64, Sizes: sizes})
}
