// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"math"
	"strconv"
)

// tick is a round number on an axis.
type tick struct {
	value float64
	label string
}

// ticks is how many steps there are at most.
const ticks = 8

// byteTicks marks round numbers of binary units, from 0 on: powers of two apart.
func byteTicks(high float64) (out []tick) {
	step := math.Exp2(math.Ceil(math.Log2(math.Max(1, high/ticks))))
	for v := 0.0; v <= high; v += step {
		out = append(out, tick{v, tickLabel(v)})
	}
	return out
}

var tickUnits = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// tickLabel is exact: a step is a power of two.
func tickLabel(v float64) string {
	unit := 0
	for ; v >= 1024 && unit < len(tickUnits)-1; unit++ {
		v /= 1024
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + " " + tickUnits[unit]
}

// secondTicks marks round numbers of seconds.
func secondTicks(low, high float64) (out []tick) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/ticks)))
	for _, times := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*times) <= ticks {
			step *= times
			break
		}
	}
	digits := max(0, int(-math.Floor(math.Log10(step))))
	for i := math.Ceil(low / step); i*step <= high; i++ {
		out = append(out, tick{i * step, strconv.FormatFloat(i*step, 'f', digits, 64)})
	}
	return out
}
