// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestUsualSettings: garbage is collected where there is a fraction to collect it by.
func TestUsualSettings(t *testing.T) {
	require.Len(t, Usual(0), 5)
	require.Equal(t, Settings{GC: 0.8}, Usual(0.5)[5])
	for _, s := range Usual(0) {
		require.Zero(t, s.GC)
	}
}

// TestLastReserved: what was reserved at the end is the last that the allocator reported.
func TestLastReserved(t *testing.T) {
	s := &Stream{}
	reserved, outside := s.Last()
	require.EqualValues(t, event.Unknown, reserved)
	require.Zero(t, outside)
	s.ops = []op{{reserved: 5, outside: 1}, {reserved: 7, outside: 2}, {reserved: event.Unknown, outside: 3}}
	reserved, outside = s.Last()
	require.Equal(t, []uint64{7, 2}, []uint64{reserved, outside})
	s.ops = s.ops[:1]
	reserved, outside = s.Last()
	require.Equal(t, []uint64{5, 1}, []uint64{reserved, outside})
}

// TestAskedSettings: of one row beside the recorded settings that is meant, of several the recorded ones.
func TestAskedSettings(t *testing.T) {
	row := func(split uint64) Row { return Row{Result: &Result{Settings: Settings{MaxSplit: split}}} }
	for n, want := range map[int]uint64{1: 1, 2: 2, 3: 1, 4: 1} {
		r := &Report{}
		for i := range n {
			r.Rows = append(r.Rows, row(uint64(i+1)))
		}
		require.Equal(t, want, r.asked().MaxSplit, "%d rows", n)
	}
}

// TestExact: a replay agrees when something was compared and all of it is equal.
func TestExact(t *testing.T) {
	require.False(t, (&Agreement{}).Exact())
	require.True(t, (&Agreement{Compared: 1, Equal: 1}).Exact())
	require.False(t, (&Agreement{Compared: 2, Equal: 1}).Exact())
}

// TestCheckFirst: the first total that differs is named with its time, and later ones are not.
func TestCheckFirst(t *testing.T) {
	alloc := func(id uint32, time, reserved uint64) op {
		return op{id: id, time: time, size: 20 << 20, reserved: reserved}
	}
	s := &Stream{ids: 4, ops: []op{alloc(0, 1, 20<<20), alloc(1, 2, event.Unknown), alloc(2, 3, 7), alloc(3, 4, 8)}}
	require.Equal(t, &Agreement{Compared: 3, Equal: 1, FirstAt: 3}, s.Check(&Settings{}, nil))
	s.ops[2].reserved, s.ops[3].reserved = 60<<20, 80<<20
	require.Equal(t, &Agreement{Compared: 3, Equal: 3}, s.Check(&Settings{}, nil))
}

// TestOutsideOfReport: memory outside PyTorch is what was asked for, else what the recording has, else none, which is said.
func TestOutsideOfReport(t *testing.T) {
	of := func(asked, known uint64) *Report {
		j := eventtest.NewJob()
		j.Alloc(eventtest.Kept, 1<<20)
		trace, err := view.NewTrace(&j.Stream, nil)
		require.NoError(t, err)
		all, err := Find(trace, &steps.Table{}, &Ask{Outside: asked, Device: 1 << 30},
			func(uint32, event.Device, *Stream) Known { return Known{Outside: known, Total: 5 << 30} })
		require.NoError(t, err)
		require.Len(t, all, 1)
		return &all[0]
	}
	const unknown = event.Unknown
	for _, c := range []struct {
		asked, known, want uint64
		guessed            bool
	}{{5, 9, 5, false}, {5, unknown, 5, false}, {unknown, 9, 9, false}, {unknown, unknown, 0, true}, {0, 9, 0, false}} {
		r := of(c.asked, c.known)
		require.Equal(t, c.want, r.Outside, c)
		require.Equal(t, c.guessed, r.OutsideUnknown, c)
		require.EqualValues(t, 1<<30, r.Rows[0].Device, "the device that was asked for")
		require.Len(t, r.Rows, 6)
	}
	j := eventtest.NewJob()
	j.Alloc(eventtest.Kept, 1<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	all, err := Find(trace, &steps.Table{}, &Ask{Settings: []Settings{{MaxSplit: 128 << 20}}},
		func(uint32, event.Device, *Stream) Known { return Known{Total: 5 << 30} })
	require.NoError(t, err)
	require.EqualValues(t, 5<<30, all[0].Rows[1].Device, "that of the recording")
	require.Len(t, all[0].Rows, 2)
}

// TestFailureOfReport: a request that fails in a replay has its line and its step.
func TestFailureOfReport(t *testing.T) {
	j := eventtest.NewJob()
	for range 8 {
		j.Pass(eventtest.Forward, eventtest.Adam)
	}
	j.Alloc(eventtest.Kept, 900<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	all, err := Find(trace, table, &Ask{Device: 512 << 20}, func(uint32, event.Device, *Stream) Known { return Known{} })
	require.NoError(t, err)
	for _, row := range all[0].Rows {
		require.NotNil(t, row.Failed)
		require.Equal(t, 8, row.Step)
		require.Equal(t, "train.py:30 main", row.Site)
		require.EqualValues(t, 900<<20, row.Failed.Requested)
	}
	need := all[0].Need()
	require.EqualValues(t, 900<<20, need, "what is cached is returned for it")
	all, err = Find(again(t, j), table, &Ask{Device: need}, func(uint32, event.Device, *Stream) Known { return Known{} })
	require.NoError(t, err)
	require.Nil(t, all[0].Rows[0].Failed, "with so much none fails")
	all, err = Find(again(t, j), table, &Ask{Device: need - segmentStep}, func(uint32, event.Device, *Stream) Known { return Known{} })
	require.NoError(t, err)
	require.NotNil(t, all[0].Rows[0].Failed)
}

func again(t *testing.T, j *eventtest.Job) *view.Trace {
	t.Helper()
	require.NoError(t, j.Rewind())
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	return trace
}

// TestOrderOfSegments: in which direction segments are placed is learned of whole ones of at least 2 MiB.
func TestOrderOfSegments(t *testing.T) {
	s := &collected{}
	see := func(object event.Object, addr, size uint64) {
		s.order(&event.Event{Object: object, Addr: addr, Size: size})
	}
	see(event.ObjectMemory, 100, smallBuffer-1)
	see(event.ObjectPhysical, 100, smallBuffer)
	see(event.ObjectMemory, 100, event.Unknown)
	require.Empty(t, s.segments)
	see(event.ObjectMemory, 1000, smallBuffer)
	require.Equal(t, []int{0, 0}, []int{s.ups, s.downs}, "one has no direction")
	see(event.ObjectMemory, 2000, smallBuffer)
	see(event.ObjectMemory, 3000, smallBuffer)
	see(event.ObjectMemory, 1500, smallBuffer)
	require.Equal(t, []int{2, 1}, []int{s.ups, s.downs})
	require.Len(t, s.segments, 4)
	see(event.ObjectMemory, 1500, smallBuffer)
	require.Equal(t, []int{2, 2}, []int{s.ups, s.downs})
}

// TestReturnedSegments: what a thread returned to the driver, without having been refused anything, was returned by
// empty_cache; what is obtained again afterwards is counted up to that.
func TestReturnedSegments(t *testing.T) {
	s := &collected{threads: map[uint32]*returning{}}
	use := func(tid uint32) { s.emptied(&event.Event{TID: tid}) }
	use(1)
	require.Empty(t, s.ops, "nothing was returned")
	s.returns(1, 50, 100)
	s.returns(1, 60, 20)
	s.regain(30) // before it is known
	use(2)
	require.Zero(t, s.Emptied, "another thread")
	use(1)
	require.Equal(t, 1, int(s.Emptied))
	require.Equal(t, []uint64{120, 30, 90}, []uint64{s.Returned, s.Regained, s.owed})
	require.Equal(t, []op{{kind: opEmpty, time: 50, reserved: event.Unknown}}, s.ops)
	use(1)
	require.Len(t, s.ops, 1, "once")
	s.regain(50)
	require.Equal(t, []uint64{80, 40, 0}, []uint64{s.Regained, s.owed, s.again})
	s.regain(60)
	require.Equal(t, []uint64{120, 0, 20}, []uint64{s.Regained, s.owed, s.again})

	s.returns(3, 90, 10)
	s.thread(3).refused = true
	use(3)
	require.Equal(t, 1, int(s.Emptied), "the allocator did it for a request that was refused")
	require.Equal(t, returning{}, *s.thread(3))
}
