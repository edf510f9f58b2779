// SPDX-License-Identifier: Apache-2.0

package tally

// Ring counts values and keeps the last ones.
type Ring[T any] struct {
	Kept  []T    // in no order; see List
	Total uint64 // number of values, also of those that are not kept
}

// Add adds a value in place of the oldest one if the ring has its maximum.
func (l *Ring[T]) Add(v T, maximum int) {
	if len(l.Kept) < maximum {
		l.Kept = append(l.Kept, v)
	} else {
		l.Kept[l.Total%uint64(maximum)] = v
	}
	l.Total++
}

// List returns the kept values, oldest first.
func (l *Ring[T]) List() []T {
	out := make([]T, 0, len(l.Kept))
	for i := range l.Kept {
		out = append(out, l.Kept[(l.Total+uint64(i))%uint64(len(l.Kept))])
	}
	return out
}
