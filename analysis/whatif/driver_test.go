// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestPlaces: segments are where the recording had those of their size, in its order, then beyond all that were recorded, in its direction.
func TestPlaces(t *testing.T) {
	recorded := []gap{{1000, 10}, {5000, 20}, {3000, 10}}
	up, down := newDriver(0, true, recorded), newDriver(0, false, recorded)
	for _, d := range []*driver{&up, &down} {
		require.EqualValues(t, 1000, d.reserve(10))
		require.EqualValues(t, 3000, d.reserve(10))
		require.EqualValues(t, 5000, d.reserve(20))
	}
	require.EqualValues(t, 5020, up.reserve(7))
	require.EqualValues(t, 5027, up.reserve(7))
	require.EqualValues(t, 993, down.reserve(7))
	require.EqualValues(t, 986, down.reserve(7))
	none := newDriver(0, true, nil)
	require.EqualValues(t, firstEdge, none.reserve(7))
	none = newDriver(0, false, nil)
	require.EqualValues(t, firstEdge-7, none.reserve(7))
}

// TestPlaceIsTaken: a recorded address is not used while something lies there, and again once that was given back.
func TestPlaceIsTaken(t *testing.T) {
	for what, c := range map[string]struct {
		second gap
		ok     bool
	}{
		"it overlaps the end": {gap{1009, 20}, false}, "it overlaps the begin": {gap{981, 20}, false}, "it is around": {gap{990, 100}, false},
		"it is behind": {gap{1010, 20}, true}, "it is before": {gap{980, 20}, true},
	} {
		d := newDriver(0, true, []gap{{1000, 10}, c.second})
		require.EqualValues(t, 1000, d.reserve(10))
		addr, ok := d.place(c.second.size)
		require.Equal(t, c.ok, ok, what)
		if ok {
			require.Equal(t, c.second.addr, addr)
			continue
		}
		d.release(1000, 10)
		require.Empty(t, d.gaps, "a recorded address is no gap")
		addr, ok = d.place(c.second.size)
		require.True(t, ok, what)
		require.Equal(t, c.second.addr, addr)
	}
}

// TestGaps: addresses that were given back are joined with those beside them, and used again: upwards the first
// that is large enough from its begin, downwards the last from its end.
func TestGaps(t *testing.T) {
	for _, up := range []bool{true, false} {
		d := newDriver(0, up, nil)
		d.release(100, 10)
		d.release(120, 10)
		require.Equal(t, []gap{{100, 10}, {120, 10}}, d.gaps)
		d.release(110, 10)
		require.Equal(t, []gap{{100, 30}}, d.gaps)
		d.release(130, 5)
		d.release(95, 5)
		d.release(200, 40)
		require.Equal(t, []gap{{95, 40}, {200, 40}}, d.gaps)
		if up {
			require.EqualValues(t, 95, d.reserve(15))
			require.Equal(t, []gap{{110, 25}, {200, 40}}, d.gaps)
			require.EqualValues(t, 200, d.reserve(26), "the first is too small")
			require.EqualValues(t, 110, d.reserve(25), "exactly")
			require.Equal(t, []gap{{226, 14}}, d.gaps)
			continue
		}
		require.EqualValues(t, 225, d.reserve(15))
		require.Equal(t, []gap{{95, 40}, {200, 25}}, d.gaps)
		require.EqualValues(t, 109, d.reserve(26))
		require.EqualValues(t, 200, d.reserve(25))
		require.Equal(t, []gap{{95, 14}}, d.gaps)
	}
}

// TestCharge: a device gives what nobody uses, to the last byte; one without an end gives all.
func TestCharge(t *testing.T) {
	d := driver{total: 100, outside: 30}
	require.True(t, d.charge(70))
	require.False(t, d.charge(1))
	require.EqualValues(t, 70, d.used)
	endless := driver{outside: 30}
	require.True(t, endless.charge(1<<60))
	require.EqualValues(t, 1<<60, endless.used)
}

// TestRoom: a process may use what others leave of a device, and what a fraction leaves beside what it has outside the allocator.
func TestRoom(t *testing.T) {
	require.Zero(t, (&Settings{}).Room(5, 5))
	require.EqualValues(t, 95, (&Settings{Device: 100}).Room(5, 7))
	require.Zero(t, (&Settings{Device: 100}).Room(500, 7))
	require.EqualValues(t, 57, (&Settings{Device: 100, Fraction: 0.5}).Room(5, 7))
	require.EqualValues(t, 40, (&Settings{Device: 100, Fraction: 0.5}).Room(60, 7))
}

// TestTrusted: a replay is trusted when fewer than one of twenty totals is another one.
func TestTrusted(t *testing.T) {
	for _, c := range []struct {
		compared, equal uint64
		want            bool
	}{{0, 0, false}, {20, 20, true}, {20, 19, false}, {21, 20, true}, {1, 1, true}, {1, 0, false}} {
		r := &Report{Check: Agreement{Compared: c.compared, Equal: c.equal}}
		require.Equal(t, c.want, r.IsTrusted(), c)
	}
}

// TestFailureFigures: of a failure it is known how much was reserved, allocated and free then; on a device without
// an end nothing is free or not.
func TestFailureFigures(t *testing.T) {
	s := &Stream{ids: 2, ops: []op{
		{size: 30 << 20, time: 1}, {kind: opAlloc, id: 1, size: 90 << 20, time: 2, outside: 10 << 20, stack: 7},
	}}
	r := s.Run(&Settings{Device: 100 << 20}, &Options{Outside: 5 << 20})
	require.Equal(t, &Failure{Time: 2, Requested: 90 << 20, Size: 90 << 20, Reserved: 30 << 20, Allocated: 30 << 20, Free: 55 << 20,
		Stack: 7}, r.Failed)
	require.EqualValues(t, 30<<20, r.Peak)
	require.EqualValues(t, 1, r.PeakAt)
	require.EqualValues(t, 55<<20, r.HeadRoom)
	require.Equal(t, 1, r.Retries)
	r = s.Run(&Settings{}, nil)
	require.Nil(t, r.Failed)
	require.EqualValues(t, event.Unknown, r.HeadRoom)
	require.EqualValues(t, 120<<20, r.Peak)
	r = s.Run(&Settings{Device: 200 << 20, Fraction: 0.65}, nil)
	require.Nil(t, r.Failed)
	require.EqualValues(t, 10<<20, r.HeadRoom, "of what the fraction leaves")

	s.ops[1].kind = opRefused
	r = s.Run(&Settings{}, nil)
	require.NotNil(t, r.Past, "here it is not refused")
	require.EqualValues(t, event.Unknown, r.Past.Free)
}

// TestLine: the largest batch that fits is on the line, less what the recordings are off it; without room, or where
// more samples need no more memory, it is not known.
func TestLine(t *testing.T) {
	points := []Batch{{Size: 1, Need: 110}, {Size: 2, Need: 120}, {Size: 3, Need: 130}}
	b := NewBatches(points, 155)
	require.InDelta(t, 10, b.Slope, 1e-9)
	require.InDelta(t, 100, b.Intercept, 1e-9)
	require.InDelta(t, 0, b.Residual, 1e-9)
	require.True(t, b.Known)
	require.False(t, b.Replayed)
	require.Equal(t, []float64{5, 6, 3}, []float64{b.Largest, b.Fails, float64(b.Points)})
	require.False(t, NewBatches(points, 0).Known)
	require.False(t, NewBatches([]Batch{{Size: 1, Need: 10}, {Size: 2, Need: 10}}, 155).Known)
	require.Nil(t, NewBatches([]Batch{{Size: 2, Need: 10}, {Size: 2, Need: 30}}, 155), "one size")
	require.Nil(t, NewBatches(points[:1], 155))
	points[1].Need = 126 // off the line by 4, the others by 2
	b = NewBatches(points, 155)
	require.InDelta(t, 4, b.Residual, 1e-9)
	require.InDelta(t, 102, b.Intercept, 1e-9)
	require.Equal(t, []float64{4, 6}, []float64{b.Largest, b.Fails})
	require.Zero(t, NewBatches(points, 1).Largest, "not even without samples")
}

// TestCollectOne: the only segment that is free as a whole is returned when more than the threshold is reserved;
// where there is none, nothing is.
func TestCollectOne(t *testing.T) {
	c := newCache(&Settings{Device: 100 << 20, Fraction: 1, GC: 0.5}, Rules{}, false, nil)
	b := c.malloc(40<<20, 0)
	c.malloc(30<<20, 1)
	c.collect()
	require.EqualValues(t, 70<<20, c.used, "both are in use")
	c.free(b)
	c.collect()
	require.EqualValues(t, 30<<20, c.used)
	c = newCache(&Settings{Device: 100 << 20, Fraction: 1, GC: 0.5}, Rules{}, false, nil)
	c.free(c.malloc(50<<20, 0))
	c.collect()
	require.EqualValues(t, 50<<20, c.used, "at the threshold")
}
