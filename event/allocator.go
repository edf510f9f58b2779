// SPDX-License-Identifier: Apache-2.0

package event

// Allocator is whose blocks those of LayerTorch are. It is the upper three bits of a DeviceType: each allocator numbers devices for itself,
// so that a device of one is not that of another, and each has totals of its own. The zero value is PyTorch's, and means nothing on other layers.
type Allocator uint8

// The allocators are written to files: never renumber.
const (
	// AllocatorTorch is PyTorch's caching allocator, of any backend.
	AllocatorTorch Allocator = 0
	// AllocatorBFC is that of TensorFlow and of XLA, and with it JAX (tsl::BFCAllocator).
	AllocatorBFC Allocator = 1
	// AllocatorExample is the one that testdata/ makes up, to show that an allocator is added by its rows.
	AllocatorExample Allocator = 7
)

// allocatorShift is where in a DeviceType the allocator begins. c10's types are below 32 (COMPILE_TIME_MAX_DEVICE_TYPES is 22).
const allocatorShift = 5

// allocatorFacts is where allocators differ.
type allocatorFacts struct {
	title     string // for people
	totals    bool   // its events say how much it has allocated
	state     bool   // its blocks can be read without events
	simulated bool   // there are rules by which another setting is tried
}

var allocators = map[Allocator]allocatorFacts{
	AllocatorTorch:   {title: "PyTorch", totals: true, state: true, simulated: true},
	AllocatorBFC:     {title: "BFC"},
	AllocatorExample: {title: "the example"},
}

// String is its name for people: "PyTorch", "BFC".
func (a Allocator) String() string {
	if f, ok := allocators[a]; ok {
		return f.title
	}
	return name(nil, a, "allocator")
}

// Totals reports whether its events have the allocator's own total of what is allocated.
func (a Allocator) Totals() bool { return allocators[a].totals }

// State reports whether its blocks can be read from the process, as dump does.
func (a Allocator) State() bool { return allocators[a].state }

// Simulated reports whether what another setting would have done can be computed.
func (a Allocator) Simulated() bool { return allocators[a].simulated }

// Of returns the type of the same hardware as an allocator numbers it.
func (a Allocator) Of(t DeviceType) DeviceType {
	return t.Physical() | DeviceType(a)<<allocatorShift
}

// Allocator is whose device it is.
func (t DeviceType) Allocator() Allocator { return Allocator(t >> allocatorShift) }

// Physical is the hardware alone, as the driver's layers name it.
func (t DeviceType) Physical() DeviceType { return t & (1<<allocatorShift - 1) }

// Physical is the device as the driver's layers name it.
func (d Device) Physical() Device { return Device{d.Type.Physical(), d.Index} }

// Allocator is whose device it is.
func (d Device) Allocator() Allocator { return d.Type.Allocator() }
