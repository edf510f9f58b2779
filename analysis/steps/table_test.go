// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTable: which step a time is in, and from when to when a step is.
func TestTable(t *testing.T) {
	all := &Table{first: 4, begins: []uint64{100, 200, 350}, end: 400}
	for time, step := range map[uint64]int{0: 0, 99: 0, 100: 4, 199: 4, 200: 5, 349: 5, 350: 6, 1000: 6} {
		require.Equal(t, step, all.At(time), "at %d", time)
	}
	require.Equal(t, []int{4, 6, 2}, []int{all.First(), all.Last(), all.Count()})
	require.InDelta(t, 125, all.Period(), 0)
	for step, want := range map[int][2]uint64{4: {100, 199}, 5: {200, 349}, 6: {350, 400}} {
		from, to, ok := all.Span(step)
		require.True(t, ok)
		require.Equal(t, want, [2]uint64{from, to})
	}
	for _, none := range []int{-1, 0, 3, 7} {
		_, _, ok := all.Span(none)
		require.False(t, ok, "step %d", none)
	}
}

// TestNoSteps: the zero value has none.
func TestNoSteps(t *testing.T) {
	none := &Table{}
	require.Zero(t, none.At(5))
	require.Equal(t, []int{0, 0, 0}, []int{none.First(), none.Last(), none.Count()})
	require.Zero(t, none.Period())
	_, _, ok := none.Span(0)
	require.False(t, ok)
}
