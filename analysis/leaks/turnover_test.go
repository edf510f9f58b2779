// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// cached is a program with a full cache of 200 entries, seen from the middle on: it replaces one entry each step, for a number of steps.
func cached(steps int, also func(j *job)) *job {
	j := newJob()
	var entries []uint64
	for range 200 {
		entries = append(entries, j.Alloc(input, 9000))
	}
	before := len(j.Events)
	for range steps {
		j.Pass(input, forward, backward, adam)
		j.Free(entries[0])
		entries = append(entries[1:], j.Alloc(second, 9000))
		also(j)
	}
	j.Events = j.Events[before:]
	return j
}

// TestTurnover: what replaces blocks from before the attach is no leak, neither in the recording nor at any moment
// while it is made, whether the cache has turned over or not.
func TestTurnover(t *testing.T) {
	for _, steps := range []int{60, 150, 500} {
		j := cached(steps, func(*job) {})
		require.Empty(t, j.find(t, nil).Findings, steps)
		require.Equal(t, leaks.Steady, j.find(t, nil).Verdict, steps)
		j.watch(func(w *leaks.Watch, step int) {
			require.Empty(t, w.Report(nil).Findings, step)
		})
	}
}

// TestTurnoverHidesNothing: what leaks beside such a cache is found, of another size and of the same one.
func TestTurnoverHidesNothing(t *testing.T) {
	for _, size := range []uint64{700, 9000} {
		j := cached(60, func(j *job) { j.Alloc(kept, size); j.Alloc(kept, size) })
		found := j.find(t, nil).Findings
		require.NotEmpty(t, found, size)
		require.Equal(t, "train.py:30 main", found[0].Name())
		require.EqualValues(t, 2*size, found[0].Requested)
		live := j.watch(nil).Report(nil).Findings
		require.NotEmpty(t, live, size)
		require.Equal(t, found[0].Name(), live[0].Name())
	}
}
