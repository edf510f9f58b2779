// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

const mib = 1 << 20

func TestCached(t *testing.T) {
	torch := func(reserved, largest figures.Bytes) []figures.TorchMemory {
		return []figures.TorchMemory{{Reserved: reserved * mib, Largest: largest * mib}, {Device: 1}}
	}
	for name, tt := range map[string]struct {
		reserved, late uint64
		torch          []figures.TorchMemory
		want           *Cached
	}{
		"most of it": {5000, 1300, torch(5000, 256), &Cached{Bytes: 3700 * mib, Reserved: 5000 * mib, Used: 1300 * mib,
			Largest: 256 * mib}},
		"a quarter":           {400, 300, torch(400, 1), &Cached{Bytes: 100 * mib, Reserved: 400 * mib, Used: 300 * mib, Largest: mib}},
		"less than a quarter": {400, 301, torch(400, 1), nil},
		"little":              {80, 17, torch(80, 1), nil},
		"the step needs it":   {5000, 4900, torch(5000, 4000), nil},
		"read at another moment": {5000, 1300, torch(4000, 256), &Cached{Bytes: 3700 * mib, Reserved: 5000 * mib, Used: 1300 * mib,
			Largest: event.Unknown}},
		"an older recording": {5000, 1300, torch(5000, 0), &Cached{Bytes: 3700 * mib, Reserved: 5000 * mib, Used: 1300 * mib,
			Largest: event.Unknown}},
		"no state":                {5000, 1300, nil, &Cached{Bytes: 3700 * mib, Reserved: 5000 * mib, Used: 1300 * mib, Largest: event.Unknown}},
		"nothing was allocated":   {5000, 0, torch(5000, 256), nil},
		"more in use than before": {1000, 1300, torch(1000, 256), nil},
	} {
		a := &Answer{Reserved: tt.reserved * mib}
		a.spare(&Input{Course: &Course{Late: tt.late * mib}, Spare: SpareInput{Torch: tt.torch}})
		require.Equal(t, tt.want, a.Cached, name)
	}
	unknown := &Answer{Reserved: event.Unknown}
	unknown.spare(&Input{Course: &Course{Late: mib}})
	require.Nil(t, unknown.Cached)
	failed := &Answer{Reserved: 5000 * mib, Case: &oom.Case{}}
	failed.spare(&Input{Course: &Course{Late: 1300 * mib}, Spare: SpareInput{Torch: torch(5000, 256)}})
	require.Nil(t, failed.Cached, "the case says it")
}

// TestReservedRises: reserved memory goes on rising if it rose in both halves of the recording, by enough.
func TestReservedRises(t *testing.T) {
	for name, c := range map[string]struct {
		first, half, last, want uint64
	}{
		"in both halves":    {90, 220, 400, 90},
		"a warm-up":         {90, 400, 400, 0},
		"a late load":       {90, 90, 400, 0},
		"by little":         {600, 625, 700, 0},
		"few bytes":         {200, 220, 262, 0},
		"of a small amount": {44, 66, 88, 44},
		"it was not known":  {0, 0, 0, 0},
	} {
		course := &Course{Late: mib, Streams: 7, NewStreams: 2}
		course.Reserved.First, course.Reserved.Half, course.Reserved.Last = c.first*mib, c.half*mib, c.last*mib
		a := &Answer{Reserved: 400 * mib}
		a.spare(&Input{Course: course})
		require.Equal(t, c.want*mib, a.Cached.From, name)
		require.Equal(t, []int{7, 2}, []int{a.Cached.Streams, a.Cached.NewStreams})
	}
}

// TestFollowReserved: the sum of the allocators, at three moments, and the streams for which something was allocated.
func TestFollowReserved(t *testing.T) {
	f := NewFollower(&steps.Table{}, 0, 10)
	see := func(time uint64, device int8, reserved, stream uint64, kind event.Kind) {
		f.See(&event.Event{
			Time: time, Kind: kind, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA, Index: device}, Reserved: reserved,
			Stream: stream,
		})
	}
	see(1, 0, 100, 0, event.KindAlloc)
	see(2, 1, 50, 7, event.KindAlloc)
	see(4, 0, 120, 9, event.KindFree)
	see(6, 0, event.Unknown, event.Unknown, event.KindAlloc)
	see(9, 1, 500, 7, event.KindAlloc)
	see(10, 1, 500, 8, event.KindAlloc)
	c := f.Course(false)
	require.Equal(t, []uint64{100, 170, 620}, []uint64{c.Reserved.First, c.Reserved.Half, c.Reserved.Last})
	require.Equal(t, []int{3, 1}, []int{c.Streams, c.NewStreams}, "7 has been used in the first half")
}

func TestWaiting(t *testing.T) {
	for name, tt := range map[string]struct {
		pending, reserved figures.Bytes
		want              *Waiting
	}{
		"much":          {416 * mib, 1000 * mib, &Waiting{416 * mib, 7}},
		"a tenth":       {100 * mib, 1000 * mib, &Waiting{100 * mib, 7}},
		"less":          {99 * mib, 1000 * mib, nil},
		"few bytes":     {63 * mib, 100 * mib, nil},
		"not known":     {figures.Unknown, 1000 * mib, nil},
		"nothing waits": {0, 0, nil},
	} {
		a := &Answer{Reserved: event.Unknown}
		a.spare(&Input{Spare: SpareInput{Time: 7, Torch: []figures.TorchMemory{{Pending: tt.pending, Reserved: tt.reserved}}}})
		require.Equal(t, tt.want, a.Waiting, name)
	}
}

func TestRetried(t *testing.T) {
	require.Nil(t, retried(&SpareInput{}))
	// Ten steps: of 100 ns, those of number 3, 5 and 8 of 210 ns.
	begins, at := []uint64{}, uint64(1000)
	for step := range 11 {
		begins = append(begins, at)
		at += 100
		if n := step + 1; n == 3 || n == 5 || n == 8 {
			at += 110
		}
	}
	table := steps.TableOf(1, begins, at)
	inStep := func(n int) uint64 { return begins[n-1] + 10 }
	got := retried(&SpareInput{Recovered: 4, Times: []uint64{inStep(3), inStep(3) + 1, inStep(5), inStep(8)}, Steps: table})
	require.Equal(t, &Retried{Count: 4, Steps: 3, Slower: got.Slower, With: 209, Without: 99}, got)
	require.InDelta(t, 209.0/99, got.Slower, 1e-9)

	got = retried(&SpareInput{Recovered: 3, Times: []uint64{inStep(1), inStep(2), inStep(4)}, Steps: table})
	require.Zero(t, got.Slower, "they were no longer than others")
	got = retried(&SpareInput{Recovered: 2, Times: []uint64{inStep(3), inStep(5)}, Steps: table})
	require.Equal(t, &Retried{Count: 2, Steps: 2}, got, "too few to compare")
	require.Equal(t, &Retried{Count: 5000}, retried(&SpareInput{Recovered: 5000, Times: []uint64{inStep(3)}, Steps: table}),
		"not all are known")
	require.Equal(t, &Retried{Count: 1}, retried(&SpareInput{Recovered: 1, Times: []uint64{5}, Steps: table}), "before the first step")
}
