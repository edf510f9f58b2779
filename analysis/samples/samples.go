// SPDX-License-Identifier: Apache-2.0

// Package samples keeps estimates from samples apart from exact figures.
package samples

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// Aside reports whether the estimates of allocators that report samples are in no sum, because there are exact figures too: the
// memory that the samples are of may be counted in those already, or be host memory.
func Aside(t *heap.Totals) bool {
	sampled, exact := false, false
	for i := range t.Accounts {
		if t.Accounts[i].Device.Allocator().Sampled() {
			sampled = true
		} else {
			exact = true
		}
	}
	for i := range t.Drivers {
		exact = exact || t.Drivers[i].Layer == event.LayerDevice
	}
	return sampled && exact
}

// Allocated returns the bytes that the allocators have handed out: by their own totals if they report any, otherwise those seen in
// use. It excludes estimates that are aside.
func Allocated(t *heap.Totals) uint64 {
	var total uint64
	aside := Aside(t)
	for i := range t.Accounts {
		a := &t.Accounts[i]
		switch {
		case aside && a.Device.Allocator().Sampled():
		case a.Allocated == event.Unknown:
			total += a.Live.Bytes
		default:
			total += a.Allocated
		}
	}
	return total
}
