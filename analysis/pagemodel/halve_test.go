// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHalve: of each two stretches of time the highest and the lowest moment stay, of equal ones the last, and all that are pinned.
func TestHalve(t *testing.T) {
	for name, row := range map[string]struct {
		totals []uint64 // two to a stretch
		pins   []int
		kept   []int
	}{
		"one":       {[]uint64{5}, nil, []int{0}},
		"up":        {[]uint64{1, 2, 3, 4}, nil, []int{0, 3}},
		"down":      {[]uint64{4, 3, 2, 1}, nil, []int{0, 3}},
		"peak":      {[]uint64{2, 4, 1, 3}, nil, []int{1, 2}},
		"equal":     {[]uint64{7, 7, 7, 7}, nil, []int{3}},
		"equal top": {[]uint64{7, 7, 1, 7}, nil, []int{2, 3}},
		"pinned":    {[]uint64{2, 4, 1, 3}, []int{3}, []int{1, 2, 3}},
		"two":       {[]uint64{1, 2, 3, 4, 9, 8, 7, 6}, nil, []int{0, 3, 4, 7}},
	} {
		moments := make([]Moment, len(row.totals))
		for i, total := range row.totals {
			moments[i] = Moment{total: total, stretch: i / 2}
		}
		for _, i := range row.pins {
			moments[i].Kind = MomentPeak
		}
		kept, _ := halve(moments)
		var got []int
		for i := range kept {
			if kept[i] {
				got = append(got, i)
			}
		}
		require.Equal(t, row.kept, got, name)
	}
}
