// SPDX-License-Identifier: Apache-2.0

package event

// Allocator identifies the framework's allocator that made a block of LayerTorch. It is stored in the upper three bits of a
// DeviceType, because each allocator numbers devices and keeps totals for itself. The zero value is PyTorch's; other layers
// ignore it.
type Allocator uint8

// The allocators are written to files: never renumber.
const (
	// AllocatorTorch is PyTorch's caching allocator, of any backend.
	AllocatorTorch Allocator = 0
	// AllocatorBFC is the allocator of TensorFlow and of XLA, and so of JAX (tsl::BFCAllocator).
	AllocatorBFC Allocator = 1
	// AllocatorExample is a made-up allocator of testdata/, which shows that an allocator is added by adding rows.
	AllocatorExample Allocator = 7
)

// allocatorShift is the first bit of the allocator in a DeviceType. c10's types are below 32 (COMPILE_TIME_MAX_DEVICE_TYPES is
// 22).
const allocatorShift = 5

// allocatorFacts describes how one allocator differs from the others.
type allocatorFacts struct {
	title     string // shown to people
	totals    bool   // its events carry its total of allocated bytes
	state     bool   // its blocks can be read from the process without events
	simulated bool   // gputrace knows its rules, so other settings can be simulated
}

var allocators = map[Allocator]allocatorFacts{
	AllocatorTorch:   {title: "PyTorch", totals: true, state: true, simulated: true},
	AllocatorBFC:     {title: "BFC"},
	AllocatorExample: {title: "the example"},
}

// String returns the allocator's name for people: "PyTorch", "BFC".
func (a Allocator) String() string {
	if f, ok := allocators[a]; ok {
		return f.title
	}
	return name(nil, a, "allocator")
}

// Totals reports whether the allocator's events carry its own total of allocated bytes.
func (a Allocator) Totals() bool { return allocators[a].totals }

// State reports whether the allocator's blocks can be read from the process, as dump does.
func (a Allocator) State() bool { return allocators[a].state }

// Simulated reports whether gputrace can compute the effect of another allocator setting.
func (a Allocator) Simulated() bool { return allocators[a].simulated }

// Of returns the DeviceType by which a numbers the same hardware.
func (a Allocator) Of(t DeviceType) DeviceType {
	return t.Physical() | DeviceType(a)<<allocatorShift
}

// Allocator returns the allocator that numbers devices of this type.
func (t DeviceType) Allocator() Allocator { return Allocator(t >> allocatorShift) }

// Physical returns the hardware type without the allocator, as the driver's layers use it.
func (t DeviceType) Physical() DeviceType { return t & (1<<allocatorShift - 1) }

// Physical returns the device without the allocator, as the driver's layers use it.
func (d Device) Physical() Device { return Device{d.Type.Physical(), d.Index} }

// Allocator returns the allocator that numbers the device.
func (d Device) Allocator() Allocator { return d.Type.Allocator() }
