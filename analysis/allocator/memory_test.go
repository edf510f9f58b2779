// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocator

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// TestRequestedUnknown: a sum of something unknown is unknown, and nothing else is.
func TestRequestedUnknown(t *testing.T) {
	held := func(requested uint64) inspect.Block {
		return inspect.Block{Size: 512, Requested: requested, State: inspect.StateAllocated}
	}
	segment := func(blocks ...inspect.Block) inspect.Segment {
		return inspect.Segment{Size: 512 * uint64(len(blocks)), Blocks: blocks}
	}
	b := New(&inspect.Map{Devices: []inspect.DeviceMap{{Segments: []inspect.Segment{
		segment(held(100), held(200)), segment(held(300), held(inspect.Unknown), held(1)), segment(inspect.Block{Size: 512}),
	}}}})
	d := &b.Devices[0]
	assert.Equal(t, []uint64{300, event.Unknown, 0}, []uint64{d.Segments[0].Requested, d.Segments[1].Requested, d.Segments[2].Requested})
	assert.Equal(t, []uint64{724, event.Unknown, 0}, []uint64{d.Segments[0].Rounding(), d.Segments[1].Rounding(), d.Segments[2].Rounding()})
	assert.Equal(t, []uint64{event.Unknown, event.Unknown, 2560}, []uint64{d.Requested, d.Rounding(), d.Allocated})
}
