// SPDX-License-Identifier: Apache-2.0

package sorts

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFunc: rows that compare as equal come in the order of slices.SortFunc too, which is what makes outputs the same.
func TestFunc(t *testing.T) {
	type row struct{ key, number int }
	random := rand.New(rand.NewPCG(1, 2))
	compare := func(x, y row) int { return cmp.Compare(x.key, y.key) }
	for n := range 300 {
		rows := make([]row, n)
		for i := range rows {
			rows[i] = row{random.IntN(1 + n/2), i}
		}
		want := slices.Clone(rows)
		slices.SortFunc(want, compare)
		Func(rows, compare)
		require.Equal(t, want, rows)
	}
}

// TestCollect: what a map has comes in order.
func TestCollect(t *testing.T) {
	require.Equal(t, []int{1, 2, 3}, Collect(maps.Keys(map[int]bool{3: true, 1: true, 2: true}), cmp.Compare))
}
