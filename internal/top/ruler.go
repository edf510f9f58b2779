// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strings"

	"github.com/gputrace/gputrace/export/table"
)

// rulerGap is the least number of columns between two marks of a ruler.
const rulerGap = 9

// ruler is a line of so many columns that marks steps below a curve: counts are the steps that were complete at each column, -1 where it is
// not known. Stretches of as many steps are drawn as bands of two kinds, so that where they are shorter, steps were faster.
func ruler(counts []int) string {
	first, last, columns := -1, -1, 0
	for _, n := range counts {
		if n >= 0 {
			if first < 0 {
				first = n
			}
			last, columns = n, columns+1
		}
	}
	if last <= first {
		return ""
	}
	every := niceSteps((last - first) * rulerGap / columns)
	out := []rune(strings.Repeat(" ", len(counts)))
	marks := map[int]int{}
	before := -1
	for i, n := range counts {
		if n < 0 {
			continue
		}
		band := n / every
		out[i] = []rune("─━")[band%2]
		if before >= 0 && band != before {
			marks[i] = band * every
		}
		before = band
	}
	free := 0
	for i := range out {
		if step, ok := marks[i]; ok && i >= free {
			text := []rune("┃" + table.Count(uint64(step)))
			if i+len(text) > len(out) { // half a number would be another one
				text = text[:1]
			}
			free = i + copy(out[i:], text) + 1
		}
	}
	return string(out)
}

// niceSteps is the least of 1, 2, 5, 10, 20, ... that is at least n.
func niceSteps(n int) int {
	for unit := 1; ; unit *= 10 {
		for _, k := range []int{1, 2, 5} {
			if k*unit >= n {
				return k * unit
			}
		}
	}
}
