//go:build amd64

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
)

func TestDifference(t *testing.T) {
	some := heap.Count{Objects: 2, Bytes: 1024}
	for name, row := range map[string]struct {
		results []heap.Result
		want    string
	}{
		"none":           {[]heap.Result{{Kept: 5, Dirty: 3}}, ""},
		"from before":    {[]heap.Result{{First: true, Added: some, SegmentsFirst: true, SegmentsAdded: some}}, ""},
		"gone at once":   {[]heap.Result{{First: true, Added: some, Retired: some}}, "blocks that were gone: 2 (1.0 KiB)"},
		"blocks":         {[]heap.Result{{Added: some}, {Added: some, Retired: some}}, "blocks that it lacked: 4 (2.0 KiB), blocks that were gone: 2 (1.0 KiB)"},
		"segments":       {[]heap.Result{{SegmentsAdded: some, SegmentsRetired: some}}, "segments that it lacked: 2 (1.0 KiB), segments that were gone: 2 (1.0 KiB)"},
		"segments later": {[]heap.Result{{First: true, Added: some}, {SegmentsFirst: true, SegmentsAdded: some}}, ""},
		"total":          {[]heap.Result{{Missing: -512}}, "the allocator's total without an event: -512 B"},
	} {
		var sum heap.Result
		agreed := true
		for i := range row.results {
			addDifference(&sum, &row.results[i])
			agreed = agreed && row.results[i].Agreed()
		}
		require.Equal(t, row.want, difference(&sum), name)
		require.Equal(t, row.want == "", agreed, name)
	}
}

func TestObservation(t *testing.T) {
	s := &session{heap: &ledger{Heap: heap.New()}, target: &process.Process{PID: 7}}
	sweep := &inspect.DeviceSweep{
		Before: inspect.DeviceTotals{Device: 1, Allocated: 512, Reserved: 2048}, After: inspect.DeviceTotals{Device: 1, Allocated: 512, Reserved: 2048},
		Window: inspect.Window{From: 3, To: 9, Settled: true}, Balanced: true,
		Segments: []inspect.Segment{{Addr: 0x1000, Size: 2048, Expandable: true, Blocks: []inspect.Block{
			{Addr: 0x1000, Size: 512, Requested: 500, Stream: 4, State: inspect.StateAllocated},
			{Addr: 0x1200, Size: 512, Requested: 512, State: inspect.StatePending}, {Addr: 0x1400, Size: 1024},
		}}},
	}
	cuda1 := event.Device{Type: event.DeviceCUDA, Index: 1}
	want := event.Observation{
		PID: 7, Device: cuda1, From: 3, To: 9, Blocks: []event.ObservedBlock{{Addr: 0x1000, Size: 512, Requested: 500, Stream: 4}},
		Segments: []event.ObservedSegment{{Addr: 0x1000, Size: 2048, Expandable: true}}, Allocated: 512, Reserved: 2048,
	}
	require.Equal(t, want, s.observation(sweep))

	sweep.Balanced = false // segments can be there in parts
	want.Segments, want.Reserved = nil, event.Unknown
	require.Equal(t, want, s.observation(sweep))
	sweep.Window.Settled = false // a change may be on its way
	want.Allocated = event.Unknown
	require.Equal(t, want, s.observation(sweep))
	sweep.Window.Settled, sweep.After.Allocated = true, 1024
	require.Equal(t, want, s.observation(sweep))

	hip1 := event.Device{Type: event.DeviceHIP, Index: 1} // as the events name it
	s.heap.SetBaseline(7, hip1, 0, 0)
	require.Equal(t, hip1, s.observation(sweep).Device)
}

// All events before a reading that emptied the ring are applied; of one that did not, those before its last.
func TestApplied(t *testing.T) {
	r := &resync{}
	r.applied(100, make([]event.Event, 0, 2), true)
	require.EqualValues(t, 100, r.drained)
	r.applied(200, []event.Event{{Time: 150}, {Time: 160}}[:1], true)
	require.EqualValues(t, 200, r.drained)
	full := []event.Event{{Time: 1}, {Time: lateBy + 300}}
	r.applied(500, full[:2:2], false)
	require.EqualValues(t, 300, r.drained)
	r.applied(600, []event.Event{{Time: 7}}[:1:1], false)
	require.EqualValues(t, 300, r.drained)
	r.applied(700, nil, false)
	require.EqualValues(t, 300, r.drained, "a batch that ended before a new process, and was empty")
}

func TestReport(t *testing.T) {
	r := &resync{}
	require.Nil(t, r.report(), "there are no books")
	r.checks.Failed++
	require.Equal(t, &table.Checks{Failed: 1}, r.report())
}
