// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"fmt"

	"github.com/gputrace/gputrace/event"
)

// An event says what a source observed; what it did not observe is Unknown, which is never 0.
func Example() {
	cuda := event.Device{Type: event.DeviceCUDA, Index: 0}
	alloc := event.Event{
		Time: 1_000_000_000, PID: 4242, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda,
		Addr: 0x7f0000000000, Size: 1 << 20, Requested: event.Unknown, Allocated: 1 << 20, Reserved: 2 << 20,
	}
	fmt.Println(alloc.Device, alloc.Layer, alloc.Kind, alloc.Size, "bytes")
	fmt.Println("requested is known:", alloc.Requested != event.Unknown)
	// Output:
	// cuda:0 torch alloc 1048576 bytes
	// requested is known: false
}
