// SPDX-License-Identifier: Apache-2.0

package blocks

import "github.com/gputrace/gputrace/event"

// Plausible rejects events with impossible values, so that sums cannot overflow and no block has address 0.
func Plausible(e *event.Event) bool {
	if !PlausibleSize(e.Requested) || !PlausibleSize(e.Allocated) || !PlausibleSize(e.Reserved) {
		return false
	}
	addressed := e.Addr != 0 && e.Addr < 1<<63
	if e.Layer == event.LayerAllocator {
		switch e.Kind {
		case event.KindAlloc, event.KindFree:
			unsized := e.Kind == event.KindFree && e.Size == event.Unknown && !e.Device.Allocator().SizedFrees()
			return addressed && (e.Size < MaxBytes || unsized)
		}
		return e.Kind == event.KindOutOfMemory // a refused request can have any size
	}
	if e.Layer > event.LayerHolder || e.Layer == 0 || e.Object > event.ObjectExternal {
		return false
	}
	switch e.Kind {
	case event.KindAlloc, event.KindUnmap:
		return addressed && PlausibleSize(e.Size)
	case event.KindMap:
		return addressed && e.Size > 0 && e.Size < MaxBytes
	case event.KindFree:
		return addressed || e.Addr == 0 && e.Object == event.ObjectContext // the primary context is released by device
	case event.KindRetain:
		return addressed
	case event.KindFreeFailed, event.KindReset, event.KindTrim:
		return addressed || e.Addr == 0
	}
	return e.Kind == event.KindOutOfMemory
}
