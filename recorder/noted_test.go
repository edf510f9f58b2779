// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestAllocations: from the first time that they are asked for, allocations of PyTorch's are noted until the next time, up to a bound.
func TestAllocations(t *testing.T) {
	made := func(time uint64, stack event.StackID) event.Event {
		return event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Time: time, TID: 9, Stack: stack}
	}
	var n notes
	n.see([]event.Event{made(1, 1)})
	require.Empty(t, n.take(nil), "nobody had asked")
	free, driver := made(3, 1), made(4, 1)
	free.Kind, driver.Layer = event.KindFree, event.LayerDevice
	n.see([]event.Event{made(2, 1), free, driver, made(5, 0), made(6, 2)})
	want := []Noted{{2, 1, 9}, {6, 2, 9}}
	buf := n.take(make([]Noted, 0, 5))
	require.Equal(t, want, buf)
	n.see([]event.Event{made(7, 3)})
	require.Equal(t, want, buf, "what was taken does not change")
	require.Equal(t, []Noted{{7, 3, 9}}, n.take(buf[:0]))
	for range maxNoted/100 + 1 {
		n.see(make([]event.Event, 100)) // no allocations
		many := make([]event.Event, 100)
		for i := range many {
			many[i] = made(8, 1)
		}
		n.see(many)
	}
	require.Len(t, n.take(nil), maxNoted)
	require.Empty(t, n.take(nil))
}
