// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestReported: the sum is that of the last reports of each allocator, a process's on a device; other events say nothing of it.
func TestReported(t *testing.T) {
	var a Reported
	see := func(pid uint32, device int8, kind event.Kind, layer event.Layer, allocated uint64) (int64, bool) {
		return a.See(&event.Event{PID: pid, Device: event.Device{Index: device}, Kind: kind, Layer: layer, Allocated: allocated})
	}
	require.Zero(t, a.Sum())
	for _, c := range []struct {
		pid       uint32
		device    int8
		kind      event.Kind
		allocated uint64
		by        int64
		sum       uint64
	}{
		{1, 0, event.KindAlloc, 1000, 1000, 1000}, // 900 of it were there before
		{1, 0, event.KindAlloc, 1100, 100, 1100},
		{1, 1, event.KindFree, 50, 50, 1150},
		{2, 0, event.KindAlloc, 7, 7, 1157},
		{1, 0, event.KindFree, 100, -1000, 157},
		{2, 0, event.KindFree, 0, -7, 150},
		{1, 1, event.KindAlloc, 50, 0, 150},
	} {
		by, ok := see(c.pid, c.device, c.kind, event.LayerAllocator, c.allocated)
		require.True(t, ok)
		require.Equal(t, c.by, by)
		require.Equal(t, c.sum, a.Sum())
	}
	for _, c := range []struct {
		kind      event.Kind
		layer     event.Layer
		allocated uint64
	}{{event.KindAlloc, event.LayerDevice, 9}, {event.KindOutOfMemory, event.LayerAllocator, 9},
		{event.KindFree, event.LayerAllocator, event.Unknown}} {
		by, ok := see(1, 0, c.kind, c.layer, c.allocated)
		require.False(t, ok)
		require.Zero(t, by)
	}
	require.EqualValues(t, 150, a.Sum())
}
