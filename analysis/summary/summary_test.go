// SPDX-License-Identifier: Apache-2.0

package summary_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/summary"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// stats are those of a job's events.
func stats(t *testing.T, j *eventtest.Job) *summary.Report {
	t.Helper()
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	r, err := summary.Of(trace, table)
	require.NoError(t, err)
	require.Len(t, r.Devices, 1)
	return r
}

// TestOf: each request is counted in its pool, and a peak is that of its own counter.
func TestOf(t *testing.T) {
	j := eventtest.NewJob()
	small := j.Alloc(eventtest.Kept, 1<<20)
	j.Free(small)
	large := j.Alloc(eventtest.Kept, 1<<20+1)
	j.Alloc(eventtest.Kept, 100)
	j.Free(large)
	s := stats(t, j).Devices[0].Stats
	const least = 1<<20 + 512
	require.Equal(t, figures.Counter{Current: 512, Peak: 1 << 20, Allocated: 1<<20 + 512, Freed: 1 << 20}, s[figures.StatAllocatedBytes].Small)
	require.Equal(t, figures.Counter{Peak: least, Allocated: least, Freed: least}, s[figures.StatAllocatedBytes].Large)
	require.Equal(t, figures.Counter{Current: 512, Peak: least + 512, Allocated: 1<<20 + least + 512, Freed: 1<<20 + least},
		s[figures.StatAllocatedBytes].All)
	require.Equal(t, figures.Counter{Current: 1, Peak: 2, Allocated: 3, Freed: 2}, s[figures.StatAllocation].All)
	require.EqualValues(t, 100, s[figures.StatRequestedBytes].All.Current)
	require.Equal(t, figures.UnknownCounter, s[figures.StatActiveBytes].All, "blocks that wait for a stream are not seen")
}

// TestOfUnknown: what is not known exactly is left out.
func TestOfUnknown(t *testing.T) {
	j := eventtest.NewJob()
	j.Blind = true
	j.Alloc(eventtest.Kept, 100)
	s := stats(t, j).Devices[0].Stats
	require.Equal(t, figures.UnknownCounter, s[figures.StatRequestedBytes].All)
	require.Equal(t, figures.UnknownCounter, s[figures.StatAllocatedBytes].Small)
	require.EqualValues(t, 512, s[figures.StatAllocatedBytes].All.Peak)

	j = eventtest.NewJob() // attached to while 512 bytes were in use
	j.Alloc(eventtest.Kept, 100)
	j.Alloc(eventtest.Kept, 100)
	j.Events = j.Events[1:]
	s = stats(t, j).Devices[0].Stats
	require.EqualValues(t, 1024, s[figures.StatAllocatedBytes].All.Current)
	require.Equal(t, figures.Unknown, s[figures.StatAllocatedBytes].All.Peak)
	require.Equal(t, figures.UnknownCounter, s[figures.StatAllocation].All)
}

// TestStages: what is allocated before the first step, and what the steps add and need for a while.
func TestStages(t *testing.T) {
	j := eventtest.NewJob()
	j.Alloc(eventtest.Kept, 1024)
	for range 10 {
		j.Pass(eventtest.Forward, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		j.Alloc(eventtest.Kept, 512)
	}
	r := stats(t, j)
	require.Len(t, r.Stages, 1)
	s := &r.Stages[0]
	require.Zero(t, s.Init.Begin)
	require.Positive(t, s.Init.AllocDelta())
	require.Equal(t, s.Init.End, s.Train.Begin)
	require.GreaterOrEqual(t, s.Train.AllocDelta(), int64(8*512))
	require.Positive(t, s.Train.PeakedDelta())
}

// TestStageEnds: training begins with the first forward pass, though no step has ended by then, and ends with what
// a step leaves: neither its gradients nor its activations, but more than a program that has freed everything.
func TestStageEnds(t *testing.T) {
	const mib = 1 << 20
	j := eventtest.NewJob()
	kept := []uint64{j.Alloc(eventtest.Kept, 10*mib)}
	for i := range 6 {
		x, g := j.Alloc(eventtest.Forward, 4*mib), j.Alloc(eventtest.Backward, 3*mib)
		if i == 0 {
			kept = append(kept, j.Alloc(eventtest.Adam, 2*mib))
		}
		j.Pass(eventtest.Adam)
		j.Free(x)
		j.Free(g)
	}
	peak := uint64(19*mib) + j.Events[len(j.Events)-4].Size // that of Pass
	for _, addr := range kept {
		j.Free(addr)
	}
	require.Equal(t, []summary.Stages{{
		Init: summary.Stage{End: 10 * mib, Peak: 10 * mib}, Train: summary.Stage{Begin: 10 * mib, End: 12 * mib, Peak: peak},
	}}, stats(t, j).Stages)
}

// TestOfSegments: segments of up to 2 MiB are of the small pool; what the allocator itself says is reserved is what they add up to.
func TestOfSegments(t *testing.T) {
	const mib, base = 1 << 20, 1 << 40
	job := func(reserved ...uint64) figures.MemoryStats {
		j, allocated := eventtest.NewJob(), uint64(0)
		for i, size := range []uint64{2 * mib, 2*mib + 512, 20 * mib} {
			addr := uint64(base * (i + 1))
			j.Add(event.Event{Kind: event.KindAlloc, Layer: event.LayerDevice, Addr: addr, Size: size, Requested: event.Unknown,
				Allocated: event.Unknown, Call: "cudaMalloc", Stack: j.ID(eventtest.Kept)})
			allocated += 512
			j.Add(event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: addr, Size: 512, Requested: 512, Allocated: allocated,
				Stack: j.ID(eventtest.Kept)})
			j.Events[len(j.Events)-1].Reserved = reserved[i]
		}
		return stats(t, j).Devices[0]
	}
	s := job(2*mib, 4*mib+512, 24*mib+512).Stats
	require.Equal(t, figures.Counter{Current: 1, Peak: 1, Allocated: 1}, s[figures.StatSegment].Small)
	require.Equal(t, figures.Counter{Current: 2, Peak: 2, Allocated: 2}, s[figures.StatSegment].Large)
	require.EqualValues(t, 2*mib, s[figures.StatReservedBytes].Small.Current)
	require.EqualValues(t, 24*mib+512, s[figures.StatReservedBytes].All.Current)

	s = job(2*mib, 4*mib+512, 30*mib).Stats // a segment was not seen
	require.Equal(t, figures.UnknownCounter, s[figures.StatSegment].All)
	require.EqualValues(t, 30*mib, s[figures.StatReservedBytes].All.Current)
	require.Equal(t, figures.Unknown, s[figures.StatReservedBytes].All.Peak)
}

// TestStageFigures: the figures of both stages, of steps with known sizes. The last step is not complete, and counts for neither.
func TestStageFigures(t *testing.T) {
	j := eventtest.NewJob()
	j.Free(j.Alloc(eventtest.Kept, 5<<20))
	j.Alloc(eventtest.Kept, 1<<20)
	for range 6 {
		j.Pass(eventtest.Adam)
		j.Alloc(eventtest.Kept, 2<<20)
	}
	j.Alloc(eventtest.Kept, 90<<20)
	r := stats(t, j)
	require.Equal(t, []summary.Stages{{
		Init:  summary.Stage{End: 1 << 20, Peak: 5 << 20},
		Train: summary.Stage{Begin: 1 << 20, End: 11 << 20, Peak: 11 << 20},
	}}, r.Stages)
	s := summary.Stage{Begin: 3, End: 5, Peak: 9}
	require.EqualValues(t, 2, s.AllocDelta())
	require.EqualValues(t, 4, s.PeakedDelta())
	s = summary.Stage{Begin: 9, End: 5, Peak: 9}
	require.EqualValues(t, -4, s.AllocDelta())

	none := eventtest.NewJob()
	none.Alloc(eventtest.Kept, 1<<20)
	require.Nil(t, stats(t, none).Stages, "no steps were found")
	again := eventtest.NewJob()
	again.Alloc(eventtest.Kept, 1<<20)
	trace, err := view.NewTrace(&again.Stream, nil)
	require.NoError(t, err)
	r, err = summary.Of(trace, nil)
	require.NoError(t, err)
	require.Nil(t, r.Stages, "steps were not looked for")
	require.Equal(t, event.DeviceCUDA, r.Devices[0].Type)
	require.Zero(t, r.Devices[0].OOMs)
}
