// SPDX-License-Identifier: Apache-2.0

package ranks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestDevicesOf: devices are in the order of their first memory, each with the line that it is from and the most of its memory at once.
// Pinned memory, pools and memory of no device are none of theirs.
func TestDevicesOf(t *testing.T) {
	const first, second = "libcudart.so!cudaMalloc /home/a/train.py:60:main", "libcudart.so!cudaMalloc /home/a/train.py:70:probe"
	j := eventtest.NewJob()
	obtain := func(layer event.Layer, stack string, device int8, size uint64) uint64 {
		j.Obtain(layer, stack, size)
		j.Events[len(j.Events)-1].Device.Index = device
		return j.Next
	}
	free := func(addr uint64, device int8) {
		j.Add(event.Event{Kind: event.KindFree, Layer: event.LayerDevice, Addr: addr, Size: event.Unknown, Requested: event.Unknown,
			Allocated: event.Unknown})
		j.Events[len(j.Events)-1].Device.Index = device
	}
	obtain(event.LayerHost, second, 3, 1<<30)
	obtain(event.LayerDevice, second, -1, 1<<30)
	obtain(event.LayerDevice, second, 4, 1<<30)
	j.Events[len(j.Events)-1].Object = event.ObjectPool
	one := obtain(event.LayerDevice, first, 1, 1000)
	two := obtain(event.LayerDevice, second, 1, 5000)
	obtain(event.LayerDevice, second, 0, 300)
	free(one, 1)
	free(two, 1)
	obtain(event.LayerDevice, second, 1, 2000)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	got, err := ranks.DevicesOf(trace)
	require.NoError(t, err)
	require.Equal(t, []ranks.DeviceUse{
		{Device: 1, Site: "train.py:60 main", Peak: 6000}, {Device: 0, Site: "train.py:70 probe", Peak: 300},
	}, got)
}
