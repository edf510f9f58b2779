// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestScanHigher: the holders are read anew when clearly more is live than before, not too soon and not too often.
func TestScanHigher(t *testing.T) {
	cuda := func(i int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: i} }
	h := heap.New()
	start := time.Now()
	n := newHolderScans(&Process{heap: &recordedHeap{Heap: h}, start: start}, nil, false)
	late := start.Add(time.Hour)
	require.False(t, n.higher(late), "nothing is live")
	h.SetBaseline(7, cuda(0), 60<<20, 100<<20)
	h.SetBaseline(7, cuda(1), 40<<20, 100<<20)
	require.False(t, n.higher(start.Add(peakAfter-time.Second)), "a short recording is named at its end")
	require.False(t, n.higher(late.Add(time.Second/2)), "once a second")
	require.True(t, n.higher(late.Add(time.Second)))
	require.False(t, n.higher(late.Add(2*time.Second)), "it was sought")
	n.sought = 96 << 20
	require.False(t, n.higher(late.Add(3*time.Second)), "it is hardly more")
	n.sought = 95 << 20
	require.True(t, n.higher(late.Add(5*time.Second)))
}

// TestScanOff: without scans there is nothing to wait for.
func TestScanOff(t *testing.T) {
	n := newHolderScans(&Process{heap: &recordedHeap{Heap: heap.New()}}, nil, true)
	n.finish()
	n.step()
	require.True(t, n.over)
	require.Nil(t, n.results)
	require.Nil(t, n.joined(nil))
}
