// SPDX-License-Identifier: Apache-2.0

package event

import "github.com/gputrace/gputrace/event/allocator"

// allocatorShift is the first bit of the allocator in a DeviceType. Each allocator numbers devices and keeps totals for itself, so the
// device of one is not the device of another. c10's types are below 32 (COMPILE_TIME_MAX_DEVICE_TYPES is 22); 0 is PyTorch.
const allocatorShift = 5

// Of returns the DeviceType by which an allocator numbers the same hardware.
func (t DeviceType) Of(a allocator.Allocator) DeviceType {
	return t.Physical() | DeviceType(a)<<allocatorShift
}

// Allocator returns the allocator that numbers devices of this type.
func (t DeviceType) Allocator() allocator.Allocator { return allocator.Allocator(t >> allocatorShift) }

// Physical returns the hardware alone, as the driver's layers name it.
func (t DeviceType) Physical() DeviceType { return t & (1<<allocatorShift - 1) }

// Allocator returns the allocator that numbers the device.
func (d Device) Allocator() allocator.Allocator { return d.Type.Allocator() }

// Physical returns the device as the driver's layers name it.
func (d Device) Physical() Device { return Device{d.Type.Physical(), d.Index} }
