// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect/bfc"
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

// bfcDevice finds the device of a BFCAllocator by its name. An allocator with another name is in host memory.
func bfcDevice(m process.Memory, object uint64) event.Device {
	name, readable := bfc.Name(m, object)
	if !readable {
		return event.Device{Type: event.DeviceCUDA, Index: -1}
	}
	if device, ok := bfc.GPU(name); ok {
		return event.Device{Type: event.DeviceCUDA, Index: ordinal(uint64(device))}
	}
	return event.Device{Type: event.DeviceCPU}
}
