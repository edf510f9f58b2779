// SPDX-License-Identifier: Apache-2.0

package floors

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// survivorsOf are survivors that rise by the given amounts, one after the other.
func survivorsOf(rises ...int64) []Floor {
	out := []Floor{{}}
	for _, r := range rises {
		last := out[len(out)-1]
		out = append(out, Floor{Blocks: last.Blocks + r})
	}
	return out
}

func repeat(rise int64, times int) []int64 {
	out := make([]int64, times)
	for i := range out {
		out[i] = rise
	}
	return out
}

// TestKeepsOn: a rise whose second half is two ninths lower or more slows down, as a cache that fills does; one that rises faster keeps on.
// One rise more or less is no difference.
func TestKeepsOn(t *testing.T) {
	for _, c := range []struct {
		first, second int64 // by step
		want          bool
	}{{100, 100, true}, {100, 78, true}, {100, 76, false}, {100, 50, false}, {100, 0, false}, {50, 100, true}, {0, 100, true}} {
		require.Equal(t, c.want, keepsOn(survivorsOf(append(repeat(c.first, 100), repeat(c.second, 100)...)...), BlocksOf), c)
	}
	require.True(t, keepsOn(survivorsOf(0, 5, 0, 0), BlocksOf), "one rise")
	require.False(t, keepsOn(survivorsOf(5, 5, 0, 0), BlocksOf))
}

// TestLinear: survivors on a line, with steps that are not all equal; not those that rise at one end only, or wave.
func TestLinear(t *testing.T) {
	require.True(t, isLinear(survivorsOf(repeat(7, 40)...), BlocksOf))
	require.True(t, isLinear(survivorsOf(10, 5, 10, 5, 10, 5, 10, 5), BlocksOf))
	require.True(t, isLinear(survivorsOf(0, 0, 30, 0, 0, 30, 0, 0, 30), BlocksOf), "every third")
	require.False(t, isLinear(survivorsOf(append(repeat(10, 20), repeat(0, 20)...)...), BlocksOf))
	require.False(t, isLinear(survivorsOf(append(repeat(0, 20), repeat(10, 20)...)...), BlocksOf))
}

func TestGreatestDivisor(t *testing.T) {
	for _, c := range [][3]int64{{12, 18, 6}, {18, 12, 6}, {7, 5, 1}, {0, 4, 4}, {4, 0, 4}, {0, 0, 0}, {5, 5, 5}} {
		require.Equal(t, c[2], GreatestDivisor(c[0], c[1]), c)
	}
}

// TestSurvivors: of each range what is left of it later, and the sums of floors.
func TestSurvivors(t *testing.T) {
	of := func(n ...int64) (out []Floor) {
		for _, b := range n {
			out = append(out, Floor{b, 10 * b, 100 * b})
		}
		return out
	}
	require.Equal(t, of(1, 2, 2, 4), Survivors(of(1, 5, 2, 4)))
	require.Empty(t, Survivors(nil))
	require.Equal(t, Floor{1, 2, 3}, Least(Floor{1, 9, 3}, Floor{5, 2, 7}))
	require.Equal(t, Floor{4, 5, 6}, Floor{5, 7, 9}.Minus(Floor{1, 2, 3}))
	require.Equal(t, Floor{6, 9, 12}, Floor{5, 7, 9}.Plus(Floor{1, 2, 3}))
}
