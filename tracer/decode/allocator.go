// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"regexp"
	"strconv"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

// deviceReaders find the device of an allocator object (event.Event.Handle) in the process. Allocators that are not
// listed pass the device in their calls.
var deviceReaders = map[allocator.Allocator]func(m process.Memory, object uint64) event.Device{
	allocator.BFC:  bfcDevice,
	allocator.OTel: func(process.Memory, uint64) event.Device { return event.Device{Type: hook.Unplaced, Index: -1} },
}

// ofAllocator sets the device of an event of an allocator other than PyTorch's.
func (p *Process) ofAllocator(e *event.Event, a allocator.Allocator) {
	if read := deviceReaders[a]; read != nil {
		d, ok := p.objects[e.Handle]
		if !ok {
			d = read(p.code.Memory(), e.Handle)
			if p.objects == nil {
				p.objects = map[uint64]event.Device{}
			}
			if len(p.objects) < maxObjects {
				p.objects[e.Handle] = d
			}
		}
		e.Device = d
	}
	e.Device.Type = e.Device.Type.Of(a)
}

// maxObjects is the number of objects whose device is kept. A process has a few for each device.
const maxObjects = 1024

// bfcBytes is how much of a BFCAllocator is searched for its name. name_ was at 0x3e8 in 0.12, after the bins.
const bfcBytes = 4096

// bfcName matches the names that TensorFlow and XLA give allocators of a GPU: "GPU_0_bfc", "GPU_collectivememory_0_bfc". Allocators
// of host memory have other names, such as "xla_gpu_host_bfc". The parts were read in the libraries of TensorFlow 2.21 and JAX 0.12.
var bfcName = regexp.MustCompile(`^GPU_(?:[a-z]+_)?(\d{1,3})_bfc$`)

// bfcDevice finds the device of a BFCAllocator by its name, a std::string of libstdc++ (address, length, characters or
// capacity) in the object. Its offset changes with each release, but nothing else in the object is the address of such
// characters followed by their length. An allocator with another name is in host memory.
func bfcDevice(m process.Memory, object uint64) event.Device {
	host := event.Device{Type: event.DeviceCPU}
	bytes := make([]byte, bfcBytes)
	n, _ := m.ReadAt(bytes, object)
	for at := 0; at+16 <= n; at += 8 {
		address, length := binary.LittleEndian.Uint64(bytes[at:]), binary.LittleEndian.Uint64(bytes[at+8:])
		if length < uint64(len("GPU_0_bfc")) || length > 64 || address == 0 {
			continue
		}
		text := make([]byte, length)
		if _, err := m.ReadAt(text, address); err != nil {
			continue
		}
		if found := bfcName.FindSubmatch(text); found != nil {
			number, _ := strconv.Atoi(string(found[1]))
			return event.Device{Type: event.DeviceCUDA, Index: ordinal(uint64(number))}
		}
	}
	if n == 0 {
		return event.Device{Type: event.DeviceCUDA, Index: -1}
	}
	return host
}
