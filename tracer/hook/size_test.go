// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

func rowNamed(t *testing.T, symbol string) *Row {
	t.Helper()
	for i := range Rows {
		if Rows[i].Symbol == symbol {
			return &Rows[i]
		}
	}
	t.Fatalf("no row for %s", symbol)
	return nil
}

const (
	float     = 0x20 | 1<<32 // one channel
	half4     = 0x10 | 4<<32
	bc1       = 0x91 | 4<<32
	bc7       = 0x9d | 4<<32
	nv12      = 0xb0 | 3<<32
	tenBits   = 0x50 | 4<<32
	nonsense  = 0x7777 | 1<<32
	twoFloats = 32 | 32<<32 // x and y of a channel descriptor
)

// TestEventSize: the sizes are worked out by hand.
func TestEventSize(t *testing.T) {
	for _, c := range []struct {
		symbol string
		dims   []uint64
		want   uint64
	}{
		{"cuMemAlloc_v2", []uint64{1234}, 1234},
		{"cuMemAlloc_v2", []uint64{event.Unknown}, event.Unknown},
		{"cuMemAllocPitch_v2", []uint64{512, 10}, 5120},
		{"cudaMalloc3D", []uint64{512, 10, 3}, 15360},
		{"cudaMalloc3D", []uint64{1 << 40, 1 << 40, 3}, event.Unknown},
		{"cuArrayCreate_v2", []uint64{float, 100, 0}, 400},
		{"cuArrayCreate_v2", []uint64{half4, 100, 7}, 5600},
		{"cuArrayCreate_v2", []uint64{tenBits, 10, 1}, 40},
		{"cuArrayCreate_v2", []uint64{bc1, 8, 8}, 32}, // four blocks of 8 bytes
		{"cuArrayCreate_v2", []uint64{bc7, 9, 1}, 48}, // three blocks of 16
		{"cuArrayCreate_v2", []uint64{nv12, 64, 64}, event.Unknown},
		{"cuArrayCreate_v2", []uint64{nonsense, 64, 64}, event.Unknown},
		{"cuArrayCreate_v2", []uint64{event.Unknown, 64, 64}, event.Unknown},
		{"cuArrayCreate_v2", []uint64{float, event.Unknown, 64}, event.Unknown},
		{"cuArray3DCreate_v2", []uint64{float, 0, 4, 3, 2}, 96},
		{"cuMipmappedArrayCreate", []uint64{float, 0, 4, 2, 0, 3}, (8 + 2 + 1) * 4},
		{"cuMipmappedArrayCreate", []uint64{float, arrayLayered, 4, 4, 6, 3}, (16 + 4 + 1) * 6 * 4},
		{"cuMipmappedArrayCreate", []uint64{float, 0, 4, 4, 4, 3}, (64 + 8 + 1) * 4},
		{"cuMipmappedArrayCreate", []uint64{float, 0, 4, 4, 4, event.Unknown}, event.Unknown},
		{"cudaMallocArray", []uint64{twoFloats, 0, 0, 10, 0}, 80},
		{"cudaMalloc3DArray", []uint64{twoFloats, twoFloats, 0, 10, 2, 2}, 640},
		{"cudaMallocMipmappedArray", []uint64{8, 0, 0, 4, 4, 0, 2}, 20},
		{"cuMemCreate", []uint64{2 << 20, 1}, 2 << 20},
		{"cuIpcOpenMemHandle_v2", nil, event.Unknown},
		{cupyTake, []uint64{1, 1}, 512},
		{cupyTake, []uint64{1024, 1024}, 1024},
		{cupyTake, []uint64{1025, 1025}, 1536},
		{cupyTake, []uint64{event.Unknown, event.Unknown}, event.Unknown},
	} {
		r := rowNamed(t, c.symbol)
		require.Len(t, c.dims, len(r.Dims), c.symbol)
		dims := append(append([]uint64(nil), c.dims...), make([]uint64, MaxDims-len(c.dims))...)
		require.Equal(t, c.want, r.EventSize(dims), "%s%v", c.symbol, c.dims)
	}
}

func TestEventLayer(t *testing.T) {
	for _, c := range []struct {
		symbol string
		dims   []uint64
		want   event.Layer
	}{
		{"cuMemAlloc_v2", []uint64{1}, event.LayerDevice},
		{"cuMemCreate", []uint64{1, 1}, event.LayerDevice},
		{"cuMemCreate", []uint64{1, 3}, event.LayerHost},
		{"cuMemCreate", []uint64{1, event.Unknown}, event.LayerDevice},
		{"cuArray3DCreate_v2", []uint64{float, arraySparse, 1, 1, 1}, event.LayerVirtual},
		{"cuArray3DCreate_v2", []uint64{float, arrayLayered, 1, 1, 1}, event.LayerDevice},
		{"cudaMallocArray", []uint64{32, 0, arrayDeferredMapping, 1, 1}, event.LayerVirtual},
		{"cudaMallocArray", []uint64{32, 0, event.Unknown, 1, 1}, event.LayerDevice},
	} {
		require.Equal(t, c.want, rowNamed(t, c.symbol).EventLayer(c.dims), "%s%v", c.symbol, c.dims)
	}
}
