// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"fmt"
	"slices"
)

// series are values of one thing, a value a round.
type series []float64

// median of the values; 0 for none.
func (s series) median() float64 { return s.quantile(0.5) }

// mean of the values; 0 for none.
func (s series) mean() float64 {
	if len(s) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range s {
		sum += v
	}
	return sum / float64(len(s))
}

// quantile interpolates between the values: 0 is the least, 1 the largest; 0 for no values.
func (s series) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(s))
	at := q * float64(len(v)-1)
	lo := int(at)
	hi := min(lo+1, len(v)-1)
	return v[lo] + (v[hi]-v[lo])*(at-float64(lo))
}

// text returns "median (least to largest)", each as the format says; "-" for none.
func (s series) text(format string) string {
	switch len(s) {
	case 0:
		return "-"
	case 1:
		return fmt.Sprintf(format, s[0])
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.median(), slices.Min(s), slices.Max(s))
}
