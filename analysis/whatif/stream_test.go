// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const mib = 1 << 20

// job is a program of one thread on one device.
type job struct {
	*eventtest.Stream
	allocated, reserved uint64
	blocks, segments    map[uint64]uint64
}

func newJob() *job {
	frames := []event.Frame{{Kind: event.FramePython, Func: "main", File: "/job/train.py", Line: 88}}
	return &job{
		Stream: &eventtest.Stream{Stacks: map[event.StackID]*event.Stack{1: {ID: 1, Frames: frames}}}, blocks: map[uint64]uint64{},
		segments: map[uint64]uint64{},
	}
}

func (j *job) event(kind event.Kind, layer event.Layer, addr, size uint64) {
	e := event.Event{
		Time: uint64(len(j.Events)+1) * 1000, PID: 7, TID: 7, Kind: kind, Layer: layer, Device: event.Device{Type: event.DeviceCUDA},
		Addr: addr, Size: size,
		Allocated: event.Unknown, Reserved: event.Unknown, Requested: event.Unknown, Stream: event.Unknown, Handle: event.Unknown,
		Context: event.Unknown, Stack: 1,
	}
	if layer == event.LayerAllocator {
		e.Allocated, e.Reserved, e.Requested, e.Stream = j.allocated, j.reserved, size, 0
	}
	j.Events = append(j.Events, e)
}

func (j *job) segment(addr, size uint64) {
	j.segments[addr] = size
	j.event(event.KindAlloc, event.LayerDevice, addr, size)
	j.reserved += size
}

func (j *job) release(addr uint64) {
	j.reserved -= j.segments[addr]
	j.event(event.KindFree, event.LayerDevice, addr, event.Unknown)
}

func (j *job) alloc(addr, size uint64) {
	j.blocks[addr] = size
	j.allocated += size
	j.event(event.KindAlloc, event.LayerAllocator, addr, size)
}

func (j *job) free(addr uint64) {
	j.allocated -= j.blocks[addr]
	j.event(event.KindFree, event.LayerAllocator, addr, j.blocks[addr])
}

// made is what the allocator does: 12 MiB and 30 MiB, of which the first is freed; empty_cache; then 12 MiB again.
func made() *job {
	const a, b, c = 0x7000_0000_0000, 0x6000_0000_0000, 0x5000_0000_0000
	j := newJob()
	j.segment(a, 12*mib)
	j.alloc(a, 12*mib)
	j.segment(b, 30*mib)
	j.alloc(b, 30*mib)
	j.free(a)
	j.release(a)
	j.segment(c, 12*mib)
	j.alloc(c, 12*mib)
	return j
}

func report(t *testing.T, j *job, ask whatif.Ask) *whatif.Report {
	t.Helper()
	trace, err := view.NewTrace(j.Stream, nil)
	require.NoError(t, err)
	known := func(uint32, event.Device, *whatif.Stream) whatif.Known { return whatif.Known{Outside: event.Unknown} }
	reports, err := whatif.Find(trace, &steps.Table{}, &ask, known)
	require.NoError(t, err)
	require.Len(t, reports, 1)
	return &reports[0]
}

// A call of empty_cache is seen by the segments that it returned, and replayed.
func TestEmptyCache(t *testing.T) {
	r := report(t, made(), whatif.Ask{Outside: event.Unknown})
	require.Equal(t, 1, r.Emptied)
	require.EqualValues(t, []uint64{12 * mib, 12 * mib}, []uint64{r.Returned, r.Regained})
	require.EqualValues(t, 3, r.Allocs)
	require.True(t, r.Check.Exact(), "%+v", r.Check)
	require.EqualValues(t, 42*mib, r.Peak)
	require.EqualValues(t, 42*mib, r.Rows[0].Peak)
	require.True(t, r.OutsideUnknown)
	require.Nil(t, r.Rows[0].Failed)
}

// Of two calls, what each returned is obtained again up to the next: 12 of 12 MiB, and 14 of 30 MiB.
func TestEmptyCacheRegained(t *testing.T) {
	j := made()
	j.free(0x6000_0000_0000)
	j.release(0x6000_0000_0000)
	j.segment(0x4000_0000_0000, 12*mib)
	j.alloc(0x4000_0000_0000, 12*mib)
	j.segment(0x3000_0000_0000, 2*mib)
	j.alloc(0x3000_0000_0000, 1*mib)
	r := report(t, j, whatif.Ask{Outside: event.Unknown})
	require.Equal(t, 2, r.Emptied)
	require.EqualValues(t, []uint64{42 * mib, 26 * mib}, []uint64{r.Returned, r.Regained})
}

// On a device that is too small, the request is named that fails first.
func TestSmallDevice(t *testing.T) {
	r := report(t, made(), whatif.Ask{Device: 50 * mib, Outside: 10 * mib, Settings: []whatif.Settings{}})
	require.Len(t, r.Rows, 1)
	f := r.Rows[0].Failed
	require.NotNil(t, f)
	require.Equal(t, "train.py:88 main", r.Rows[0].Site)
	require.EqualValues(t, 30*mib, f.Requested)
	require.EqualValues(t, 12*mib, f.Allocated)
	require.EqualValues(t, 12*mib, r.Rows[0].Peak)
	require.EqualValues(t, 1, r.Rows[0].Retries)
	fits := report(t, made(), whatif.Ask{Device: 52 * mib, Outside: 10 * mib, Settings: []whatif.Settings{}})
	require.Nil(t, fits.Rows[0].Failed)
	require.Zero(t, fits.Rows[0].HeadRoom)
}

// What was there before is where every replay begins: blocks that nobody saw being made are not known without the allocator state, and
// the stream begins when they are freed.
func TestAttachedLate(t *testing.T) {
	j := newJob()
	j.allocated, j.reserved = 5*mib, 20*mib
	const before, later = 0x4000_0000_0000, 0x3000_0000_0000
	j.blocks[before] = 5 * mib
	j.segment(later, 12*mib)
	j.alloc(later, 12*mib) // 5 MiB are not known yet
	j.free(before)
	j.free(later)
	j.alloc(later, 12*mib)
	r := report(t, j, whatif.Ask{Outside: 0})
	require.EqualValues(t, 1, r.Allocs)
	require.EqualValues(t, 12*mib, r.Before)
	require.EqualValues(t, j.Events[2].Time, r.Begin)
}

// A recording of nothing has nothing to replay.
func TestNothing(t *testing.T) {
	trace, err := view.NewTrace(&eventtest.Stream{}, nil)
	require.NoError(t, err)
	_, err = whatif.NewStreams(trace)
	require.ErrorIs(t, err, whatif.ErrNoStream)
}

// Settings help where they need a twentieth less, or where nothing fails any more; not where something fails under them.
func TestHelps(t *testing.T) {
	row := func(peak uint64, failed bool, divisions uint64) whatif.Row {
		r := &whatif.Result{Settings: whatif.Settings{Divisions: divisions}, Peak: peak}
		if failed {
			r.Failed = &whatif.Failure{}
		}
		return whatif.Row{Result: r}
	}
	for name, tt := range map[string]struct {
		rows []whatif.Row
		want []whatif.Help
	}{
		"nothing": {[]whatif.Row{row(100, false, 1), row(96, false, 2), row(100, false, 4), row(90, true, 8)}, nil},
		"less": {[]whatif.Row{row(100, false, 1), row(95, false, 2), row(60, false, 4)},
			[]whatif.Help{{Saves: 40}, {Saves: 5}}},
		"nothing fails any more": {[]whatif.Row{row(100, true, 1), row(100, false, 2), row(50, true, 4), row(99, false, 8)},
			[]whatif.Help{{GoesOn: true}, {GoesOn: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&whatif.Report{Rows: tt.rows}).Helps()
			for i := range got {
				got[i].Row = nil
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestIsFragmented(t *testing.T) {
	for name, tt := range map[string]struct {
		reserved, fragmented uint64
		want                 bool
	}{
		"nothing":                    {0, 0, false},
		"less than a large segment":  {100 * mib, 20*mib - 1, false},
		"a large segment":            {400 * mib, 20 * mib, true},
		"less than a twentieth":      {401 * mib, 20 * mib, false},
		"a twentieth of much memory": {20000 * mib, 1000 * mib, true},
	} {
		f := &whatif.Fragmentation{Report: &fragments.Report{Reserved: tt.reserved, Fragmented: tt.fragmented}}
		require.Equal(t, tt.want, f.IsFragmented(), name)
	}
}
