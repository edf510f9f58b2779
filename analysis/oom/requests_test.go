// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDeparts: the first request of a step that is a quarter larger than all of its line before, where the line was seen in three steps.
func TestDeparts(t *testing.T) {
	steps := func(n int, of ...uint64) *requests {
		r := &requests{}
		for step := 1; step <= n; step++ {
			for i, size := range of {
				r.see([]string{"input", "forward", "backward"}[i], size, step)
			}
		}
		return r
	}
	r := steps(4, 800, 1000)
	r.see("input", 900, 5)
	r.see("forward", 1251, 5)
	r.see("input", 5000, 5)
	d, _ := r.atFailure("forward", 9000, 5)
	require.Equal(t, Departure{"forward", 1251, 1000}, d, "the first one, and beyond a quarter")
	d, _ = r.atFailure("forward", 9000, 6)
	require.Equal(t, Departure{"forward", 9000, 1251}, d, "of the step that fails, whose first is what failed")
	d, _ = r.atFailure("forward", 1500, 6)
	require.Zero(t, d)

	r = steps(2, 800)
	r.see("input", 5000, 3)
	d, _ = r.atFailure("input", 9000, 3)
	require.Zero(t, d, "two steps are too few")
	r = steps(4, 800)
	d, _ = r.atFailure("new", 9000, 5)
	require.Zero(t, d, "a line that no step had")
	r = &requests{}
	for range 5 {
		r.see("input", 800, 0)
	}
	d, _ = r.atFailure("input", 9000, 0)
	require.Zero(t, d, "no steps")
}

// TestLadder: requests of a line that grow by the same number of bytes each time, up to the one that failed; other tensors in between.
func TestLadder(t *testing.T) {
	climb := func(rungs int, each uint64) *requests {
		r := &requests{}
		for i := range uint64(rungs) {
			r.see("cat", 1000*1000+i*each, int(i/3))
			r.see("cat", 512*(i%2+1), int(i/3))
			r.see("cat", 70_000+i*100, int(i/3))
		}
		return r
	}
	_, l := climb(7, 5000).atFailure("cat", roundedUp(1000*1000+7*5000), 9)
	require.Equal(t, Ladder{8, 5000}, l)
	_, l = climb(40, 100).atFailure("cat", roundedUp(70_000+40*100), 9)
	require.Equal(t, Ladder{41, 100}, l, "the other tensor of the line")
	for name, r := range map[string]*requests{"few": climb(6, 5000), "flat": climb(20, 0)} {
		_, l = r.atFailure("cat", roundedUp(1000*1000+6*5000), 9)
		require.Zero(t, l, name)
	}
	_, l = climb(20, 5000).atFailure("cat", 4_000_000, 9)
	require.Zero(t, l, "another request")
	_, l = climb(20, 5000).atFailure("other", roundedUp(1000*1000+20*5000), 9)
	require.Zero(t, l, "another line")
}
