// SPDX-License-Identifier: Apache-2.0

//go:build linux

package fragments_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// A state that was read from outside has the private pools and the blocks that wait for another stream's work.
func TestOfState(t *testing.T) {
	d := &allocator.DeviceState{Time: 9}
	d.Counted.Device = 1
	d.Segments = append(d.Segments, allocator.SegmentState{})
	s := &inspect.Segment{Addr: 1 << 40, Size: 20 * mib, Stream: 4, Expandable: true}
	s.Pool.ID, s.Pool.Small = [2]uint64{0, 6}, true
	s.Blocks = []inspect.Block{
		{Addr: 1 << 40, Size: 512, Requested: 500, State: inspect.StateAllocated}, {Addr: 1<<40 + 512, Size: 1024, State: inspect.StateFree},
	}
	d.Segments[0].Segment = s
	m := fragments.OfState(d, 7)
	require.Equal(t, &fragments.Map{
		PID: 7, Device: event.Device{Type: event.DeviceCUDA, Index: 1}, Time: 9,
		Segments: []fragments.Segment{{
			Pool: fragments.Pool{ID: [2]uint64{0, 6}, Small: true, Stream: 4}, Addr: 1 << 40, Size: 20 * mib, Expandable: true,
			Blocks: []fragments.Block{{Addr: 1 << 40, Size: 512, Requested: 500, Held: true}, {Addr: 1<<40 + 512, Size: 1024}},
		}},
	}, m)
}
