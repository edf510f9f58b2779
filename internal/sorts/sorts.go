// SPDX-License-Identifier: Apache-2.0

// Package sorts keeps the program small: slices.SortFunc is compiled anew for each type, some 15 kB of program each, which the few rows
// of a table are not worth.
package sorts

import "sort"

// Func sorts as slices.SortFunc does, with the same code for all types. It takes about twice as long.
func Func[T any](s []T, compare func(x, y T) int) {
	sort.Slice(s, func(i, j int) bool { return compare(s[i], s[j]) < 0 })
}
