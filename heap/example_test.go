// SPDX-License-Identifier: Apache-2.0

package heap_test

import (
	"fmt"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// A heap takes events in their order and can be asked at any time. What was allocated before the first event follows from the
// allocator's own total.
func Example() {
	const pid = 4242
	cuda := event.Device{Type: event.DeviceCUDA, Index: 0}
	torch := func(time uint64, kind event.Kind, addr, size, allocated uint64) event.Event {
		return event.Event{
			Time: time, PID: pid, Kind: kind, Layer: event.LayerAllocator, Device: cuda, Addr: addr, Size: size, Requested: size,
			Allocated: allocated, Reserved: 20 << 20, Handle: event.Unknown, Context: event.Unknown, Stack: 1,
		}
	}
	h := heap.New()
	h.ApplyAll([]event.Event{
		torch(1, event.KindAlloc, 0x1000_0000, 4<<20, 9<<20), // 5 MiB were there already
		torch(2, event.KindAlloc, 0x2000_0000, 1<<20, 10<<20),
		torch(3, event.KindFree, 0x1000_0000, 4<<20, 6<<20),
	})
	a, _ := h.Account(pid, cuda)
	fmt.Println("allocated", a.Allocated, "=", a.Live.Bytes, "since the first event +", a.Before, "before")
	fmt.Println("peak", a.Peak, "at", a.PeakTime)
	for _, s := range h.Snapshot().Sites {
		fmt.Println("stack", s.Stack, "in use", s.Inuse.Bytes)
	}
	// Output:
	// allocated 6291456 = 1048576 since the first event + 5242880 before
	// peak 10485760 at 2
	// stack 1 in use 1048576
}
