// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

func TestDifference(t *testing.T) {
	some := heap.Count{Objects: 2, Bytes: 1024}
	for name, row := range map[string]struct {
		results []heap.Result
		want    string
	}{
		"none":         {[]heap.Result{{Kept: 5, Dirty: 3}}, ""},
		"from before":  {[]heap.Result{{First: true, Added: some, SegmentsFirst: true, SegmentsAdded: some}}, ""},
		"gone at once": {[]heap.Result{{First: true, Added: some, Retired: some}}, "blocks that were freed: 2 (1.0 KiB)"},
		"blocks": {[]heap.Result{{Added: some}, {Added: some, Retired: some}},
			"blocks that it lacked: 4 (2.0 KiB), blocks that were freed: 2 (1.0 KiB)"},
		"segments": {[]heap.Result{{SegmentsAdded: some, SegmentsRetired: some}},
			"segments that it lacked: 2 (1.0 KiB), segments that were freed: 2 (1.0 KiB)"},
		"segments later": {[]heap.Result{{First: true, Added: some}, {SegmentsFirst: true, SegmentsAdded: some}}, ""},
		"total":          {[]heap.Result{{Missing: -512}}, "the allocator's total without an event: -512 B"},
	} {
		var sum heap.Result
		agreed := true
		for i := range row.results {
			addDifference(&sum, &row.results[i])
			agreed = agreed && row.results[i].Agreed()
		}
		require.Equal(t, row.want, Difference(&sum), name)
		require.Equal(t, row.want == "", agreed, name)
	}
}

// All events before a reading that emptied the ring are applied; of one that did not, those before its last.
func TestApplied(t *testing.T) {
	r := &Drained{}
	r.Applied(100, make([]event.Event, 0, 2), true)
	require.EqualValues(t, 100, r.To)
	r.Applied(200, []event.Event{{Time: 150}, {Time: 160}}[:1], true)
	require.EqualValues(t, 200, r.To)
	full := []event.Event{{Time: 1}, {Time: maxEventDelay + 300}}
	r.Applied(500, full[:2:2], false)
	require.EqualValues(t, 300, r.To)
	r.Applied(600, []event.Event{{Time: 7}}[:1:1], false)
	require.EqualValues(t, 300, r.To)
	r.Applied(700, nil, false)
	require.EqualValues(t, 300, r.To, "a batch that ended before a new process, and was empty")
}

func TestReport(t *testing.T) {
	r := &Reconciler{}
	require.Nil(t, r.Report(), "there is no state")
	r.checks.Failed++
	require.Equal(t, &figures.Checks{Failed: 1}, r.Report())
}

// TestDeviceAsInEvents: PyTorch for ROCm reports its devices as HIP's.
func TestDeviceAsInEvents(t *testing.T) {
	h := heap.New()
	r := &Reconciler{heap: h}
	o := &event.Observation{PID: 7, Device: event.Device{Type: event.DeviceCUDA, Index: 1}}
	require.Equal(t, o.Device, r.named(o).Device)
	hip1 := event.Device{Type: event.DeviceHIP, Index: 1}
	h.SetBaseline(7, hip1, 0, 0)
	require.Equal(t, hip1, r.named(o).Device)
	o.Device.Index = 2
	require.Equal(t, o.Device, r.named(o).Device, "the events name another device")
	h.SetBaseline(7, event.Device{Type: event.DeviceCUDA, Index: 2}, 0, 0)
	require.Equal(t, o.Device, r.named(o).Device)
}

// TestAddDifference: what the live set lacked at the first look is no difference; what it had too much, and what no
// event shows, is one at any.
func TestAddDifference(t *testing.T) {
	of := func(n uint64) heap.Count { return heap.Count{Objects: n, Bytes: 10 * n} }
	x := heap.Result{Added: of(1), Retired: of(2), SegmentsAdded: of(3), SegmentsRetired: of(4), Missing: 5}
	for _, c := range []struct {
		first, segmentsFirst bool
		added, segments      uint64
	}{{false, false, 2, 6}, {true, false, 0, 6}, {false, true, 2, 0}, {true, true, 0, 0}} {
		x.First, x.SegmentsFirst = c.first, c.segmentsFirst
		var sum heap.Result
		addDifference(&sum, &x)
		addDifference(&sum, &x)
		require.Equal(t, []heap.Count{of(c.added), of(4), of(c.segments), of(8)}, []heap.Count{sum.Added, sum.Retired, sum.SegmentsAdded,
			sum.SegmentsRetired}, c)
		require.EqualValues(t, 10, sum.Missing)
	}
}

// TestComparedOnce: a device that is compared again because of its segments counts its blocks once, and an error then is none of the round.
func TestComparedOnce(t *testing.T) {
	r := newRounds(t)
	r.heap.Watch(7)
	r.round = &round{compared: map[int]bool{}}
	state, err := stateOf(3*second, event.ObservedBlock{Addr: 0x1000, Size: 512}, event.ObservedBlock{Addr: 0x2000, Size: 1024})(t.Context())
	require.NoError(t, err)
	o := &state.Devices[0]
	r.compare(0, o)
	require.NoError(t, r.round.err)
	require.EqualValues(t, 2, r.round.blocks)
	r.compare(0, o)
	require.EqualValues(t, 2, r.round.blocks)
	r.heap.Unwatch(7)
	r.compare(0, o)
	require.NoError(t, r.round.err)
	r.compare(1, o)
	require.ErrorIs(t, r.round.err, heap.ErrNotWatched)
}
