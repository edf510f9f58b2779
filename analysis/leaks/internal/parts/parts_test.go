// SPDX-License-Identifier: Apache-2.0

package parts

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDivide: containers have whole numbers of blocks in as few periods as fit, up to the place at which the loop is; few blocks, other
// numbers and other sizes divide nothing.
func TestDivide(t *testing.T) {
	even := func(blocks ...uint64) (out []Container) {
		for _, n := range blocks {
			out = append(out, Container{n, n * 512})
		}
		return out
	}
	for name, c := range map[string]struct {
		of      []Container
		group   int
		blocks  []int
		periods int
	}{
		"two in a step":              {even(60, 60), 2, []int{1, 1}, 1},
		"one is a block ahead":       {even(61, 60), 2, []int{1, 1}, 1},
		"two and one":                {even(80, 40), 3, []int{2, 1}, 1},
		"in turn":                    {even(60, 60), 1, []int{1, 1}, 2},
		"every third":                {even(80, 40), 1, []int{2, 1}, 3},
		"three":                      {even(50, 50, 50), 3, []int{1, 1, 1}, 1},
		"one in twelve":              {even(1100, 100), 1, []int{11, 1}, 12},
		"one in thirteen":            {even(1200, 100), 1, nil, 0},
		"too few to tell":            {even(11, 11), 2, nil, 0},
		"no whole numbers":           {even(51, 69), 2, nil, 0},
		"one took nothing for long":  {even(119, 1), 2, nil, 0},
		"blocks of another size":     {[]Container{{60, 60 * 512}, {60, 60 * 1024}}, 2, nil, 0},
		"nothing is allocated":       {even(60, 60), 0, nil, 0},
		"nothing was found of them":  {nil, 2, nil, 0},
		"a hundredth larger, of one": {[]Container{{60, 60 * 512}, {60, 61 * 512}}, 2, nil, 0},
	} {
		blocks, periods := divide(c.of, c.group)
		require.Equal(t, c.blocks, blocks, name)
		require.Equal(t, c.periods, periods, name)
	}
}
