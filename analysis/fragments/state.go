// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fragments

import (
	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// OfState is the map of an allocator state that was read from outside, with its private pools and the blocks that wait for other
// streams. pid is the process. The stacks and times of its blocks are not known: Know adds those of a layout.
func OfState(d *allocator.DeviceState, pid uint32) *Map {
	out := &Map{PID: pid, Device: event.Device{Type: event.DeviceCUDA, Index: int8(d.Counted.Device)}, Time: d.Time}
	for i := range d.Segments {
		s := d.Segments[i].Segment
		g := Segment{Addr: s.Addr, Size: s.Size, Expandable: s.Expandable, Pool: Pool{ID: s.Pool.ID, Small: s.Pool.Small, Stream: s.Stream}}
		for k := range s.Blocks {
			b := &s.Blocks[k]
			g.Blocks = append(g.Blocks, Block{
				Addr: b.Addr, Size: b.Size, Requested: b.Requested, Held: b.State != inspect.StateFree, Pending: allocator.Pending(b),
			})
		}
		out.Segments = append(out.Segments, g)
	}
	return out
}
