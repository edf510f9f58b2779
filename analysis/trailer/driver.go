// SPDX-License-Identifier: Apache-2.0

package trailer

import (
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recording"
)

// Driver returns the driver's figures at the end of a recording; nil: there are none. If the process had ended by then, the use is
// unknown, because the driver counts it without the process.
func Driver(end *recording.End) []figures.DriverUse {
	if end == nil || end.Memory == nil {
		return nil
	}
	out := WhileInUse(end.Memory.Driver)
	if Ended(end) {
		for i := range out {
			out[i].Used, out[i].All, out[i].Why = figures.Unknown, figures.Unknown, "it was read when the process had ended"
		}
	}
	return out
}

// WhileInUse returns the driver's figures of a process that uses the devices. A device that no process uses, according to the
// driver, is one whose processes the driver does not see.
func WhileInUse(driver []figures.DriverUse) []figures.DriverUse {
	out := slices.Clone(driver)
	for i := range out {
		if out[i].All == 0 {
			out[i].All = figures.Unknown
		}
	}
	return out
}

// Ended reports whether a recording ended because its program did.
func Ended(end *recording.End) bool {
	return end.Reason == recording.ReasonExited || end.Reason == recording.ReasonExeced
}

// FreeOf returns the unused bytes of each device, according to the driver.
func FreeOf(driver []figures.DriverUse) map[event.Device]uint64 {
	return byDevice(WhileInUse(driver), func(d *figures.DriverUse) uint64 {
		if uint64(d.All) > uint64(d.Total) {
			return event.Unknown
		}
		return figures.Sub(uint64(d.Total), uint64(d.All))
	})
}

// SizeOf returns the size of each device, bytes.
func SizeOf(driver []figures.DriverUse) map[event.Device]uint64 {
	return byDevice(driver, func(d *figures.DriverUse) uint64 { return uint64(d.Total) })
}

// byDevice returns a figure of each device for which it is known.
func byDevice(driver []figures.DriverUse, of func(d *figures.DriverUse) uint64) map[event.Device]uint64 {
	out := map[event.Device]uint64{}
	for i := range driver {
		n := of(&driver[i])
		if driver[i].Device < 0 || n == event.Unknown {
			continue
		}
		for _, kind := range []event.DeviceType{event.DeviceCUDA, event.DeviceHIP, event.DeviceXPU} {
			out[event.Device{Type: kind, Index: int8(driver[i].Device)}] = n
		}
	}
	return out
}
