// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRows: equal names are one row, the largest first, and holders that differ in numbers of elements are too.
func TestRows(t *testing.T) {
	all := []Identity{{0, 11}, {1, 12}, {2, 13}}
	rows := Rows([]Part{
		{0, "train.py:9 main", "x = y", 10, 1}, {1, "train.py:9 main", "x = y", 20, 2}, {1, "train.py:8 main", "", 50, 1},
		{0, "losses[0..24]", "", 5, 1}, {1, "losses[0..25]", "", 5, 1}, {2, "losses[0..24]", "", 10, 1}, {2, "losses[0..24]", "", 0, 1},
	}, all)
	require.Equal(t, []Row{
		{Part{1, "train.py:8 main", "", 50, 1}, 0.5, []int{1}, "rank 1"},
		{Part{0, "train.py:9 main", "x = y", 30, 3}, 0.3, []int{0, 1}, "ranks 0-1"},
		{Part{0, "losses[*]", "", 20, 4}, 0.2, []int{0, 1, 2}, "all 3"},
	}, rows)
	require.Empty(t, Rows(nil, all))
}

func TestWhich(t *testing.T) {
	job := make([]Identity, 12)
	for i := range job {
		job[i] = Identity{i, 100 + i}
	}
	mixed := []Identity{{0, 5}, {-1, 6}, {-1, 7}, {-1, 9}}
	for _, tt := range []struct {
		all  []Identity
		some []int
		want string
	}{
		{job, []int{0, 1, 2, 3, 6}, "ranks 0-3, 6"},
		{job, []int{9, 0, 2, 4, 6, 7}, "ranks 0, 2, 4 + 3"},
		{job, []int{5}, "rank 5"},
		{mixed, []int{0, 1, 2, 3}, "all 4"},
		{mixed, []int{0, 1, 3}, "rank 0, pids 6, 9"},
		{mixed[1:], []int{2}, "pid 9"},
		{mixed[:1], []int{0}, "rank 0"},
		{job, nil, ""},
	} {
		require.Equal(t, tt.want, Which(tt.some, tt.all), tt)
	}
}
