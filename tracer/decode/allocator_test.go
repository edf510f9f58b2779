// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// oneObject is memory with an object at 0x1000 whose name is a std::string.
type oneObject struct {
	name string
	at   int // of the string in the object
}

func (o oneObject) ReadAt(b []byte, addr uint64) (int, error) {
	const object, characters = 0x1000, 0x9000
	switch {
	case addr >= characters && addr < characters+uint64(len(o.name)):
		return copy(b, o.name[addr-characters:]), nil
	case addr != object:
		return 0, fmt.Errorf("nothing at %#x", addr)
	}
	for i := range b {
		b[i] = byte(i) // noise
	}
	binary.LittleEndian.PutUint64(b[o.at:], characters)
	binary.LittleEndian.PutUint64(b[o.at+8:], uint64(len(o.name)))
	return len(b), nil
}

// TestBFCDevice: the device of a BFCAllocator is in its name, wherever in the object a release has that.
func TestBFCDevice(t *testing.T) {
	for name, want := range map[string]event.Device{
		"GPU_0_bfc":                  {Type: event.DeviceCUDA, Index: 0},
		"GPU_11_bfc":                 {Type: event.DeviceCUDA, Index: 11},
		"GPU_collectivememory_3_bfc": {Type: event.DeviceCUDA, Index: 3},
		"gpu_host_bfc":               {Type: event.DeviceCPU},
		"xla_gpu_host_bfc":           {Type: event.DeviceCPU},
		"bfc_cpu_allocator":          {Type: event.DeviceCPU},
	} {
		for _, at := range []int{0x18, 0x3e8, 0x3f0, 0x7f8} {
			require.Equal(t, want, bfcDevice(oneObject{name, at}, 0x1000), "%s at %#x", name, at)
		}
	}
	require.Equal(t, event.Device{Type: event.DeviceCUDA, Index: -1}, bfcDevice(oneObject{}, 0x5000), "it cannot be read")
}
