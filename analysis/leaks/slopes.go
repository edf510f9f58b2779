// SPDX-License-Identifier: Apache-2.0

package leaks

import "github.com/gputrace/gputrace/event"

// Slopes are by how many bytes a step the least of a step rose, in the later half of the steps: in all, whatever the line. Allocators that
// hand out larger buffers than were asked for, as PyTorch's for MPS does, make them differ.
type Slopes struct {
	Requested float64 // what the program asked for
	Blocks    float64 // the buffers that it got
	Reserved  float64 // the heaps, or segments, that the buffers are in
}

// allocator is one caching allocator.
type allocator struct {
	pid    uint32
	device event.Device
}

// slopes follow the allocators for MPS, whose three sizes differ. The zero value is empty.
type slopes struct {
	series   // whose blocks are the bytes that are reserved
	reserved map[allocator]int64
}

// see takes the next event, in a step.
func (s *slopes) see(e *event.Event, step int) {
	if !e.Device.Type.MPS() || e.Layer != event.LayerTorch || e.Kind != event.KindAlloc && e.Kind != event.KindFree {
		return
	}
	by := floor{bytes: int64(e.Size)}
	if e.Requested != event.Unknown {
		by.requested = int64(e.Requested)
	}
	if e.Kind == event.KindAlloc {
		s.add(step, by)
	} else {
		s.remove(step, by)
	}
	if e.Reserved == event.Unknown {
		return
	}
	if s.reserved == nil {
		s.reserved = map[allocator]int64{}
	}
	k := allocator{e.PID, e.Device}
	s.change(step, int64(e.Reserved)-s.reserved[k])
	s.reserved[k] = int64(e.Reserved)
}

func (s *slopes) change(step int, reserved int64) {
	if reserved > 0 {
		s.add(step, floor{blocks: reserved})
	} else if reserved < 0 {
		s.remove(step, floor{blocks: -reserved})
	}
}

// result is nil where there was nothing of MPS, or too few steps. The least of a window that rises is that of its first step.
func (s *slopes) result() *Slopes {
	late := s.windows[len(s.windows)/2:]
	if len(late) < 2 {
		return nil
	}
	n := float64((len(late) - 1) * s.width)
	by := late[len(late)-1].minus(late[0])
	return &Slopes{float64(by.requested) / n, float64(by.bytes) / n, float64(by.blocks) / n}
}
