// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/event"
)

// Slopes are the bytes per step by which the minimum of a step rose in the later half of the steps, for all lines
// together. They differ for an allocator that hands out larger buffers than were requested, such as PyTorch's for MPS.
type Slopes struct {
	Requested float64 // bytes that the program requested
	Blocks    float64 // buffers that it received
	Reserved  float64 // heaps, or segments, that contain the buffers
}

// allocator is one caching allocator.
type allocator struct {
	pid    uint32
	device event.Device
}

// slopes follows the allocators for MPS, whose three sizes differ. The zero value is empty.
type slopes struct {
	series   // whose blocks are the bytes that are reserved
	reserved map[allocator]int64
}

// see adds the next event, in a step.
func (s *slopes) see(e *event.Event, step int) {
	if !e.Device.Type.MPS() || e.Layer != event.LayerAllocator || e.Kind != event.KindAlloc && e.Kind != event.KindFree {
		return
	}
	by := floor{Bytes: int64(e.Size)}
	if e.Requested != event.Unknown {
		by.Requested = int64(e.Requested)
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
		s.add(step, floor{Blocks: reserved})
	} else if reserved < 0 {
		s.remove(step, floor{Blocks: -reserved})
	}
}

// result returns nil without MPS memory, or with too few steps. In a rising series, the minimum of a window is that of
// its first step.
func (s *slopes) result() *Slopes {
	late := s.windows[len(s.windows)/2:]
	if len(late) < 2 {
		return nil
	}
	n := float64((len(late) - 1) * s.width)
	by := late[len(late)-1].Minus(late[0])
	return &Slopes{float64(by.Requested) / n, float64(by.Bytes) / n, float64(by.Blocks) / n}
}
