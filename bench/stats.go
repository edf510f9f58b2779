//go:build linux

package main

import (
	"fmt"
	"slices"
)

// series are values of one thing, a value a round.
type series []float64

// median of the values; of an even number the mean of the middle two. 0 for none.
func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(s))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// text gives "median (least to largest)", each as the format says; "-" for none.
func (s series) text(format string) string {
	switch len(s) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf(format, s[0])
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.median(), slices.Min(s), slices.Max(s))
}
