// SPDX-License-Identifier: Apache-2.0

// Package sorts keeps the program small: slices.SortFunc is compiled anew for each type, some 15 kB of program each, which the few rows
// of a table are not worth.
package sorts

import (
	"iter"
	"slices"
	"sort"
)

// Collect lists what a map yields, sorted, so that the order does not depend on the map.
func Collect[T any](values iter.Seq[T], compare func(x, y T) int) []T {
	list := slices.Collect(values)
	Func(list, compare)
	return list
}

// Func sorts as slices.SortFunc does, with the same code for all types. It takes about twice as long.
func Func[T any](s []T, compare func(x, y T) int) {
	sort.Slice(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}
