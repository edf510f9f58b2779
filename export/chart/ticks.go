package chart

import (
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// byteTicks marks round numbers of binary units: powers of two apart.
type byteTicks struct{}

// ticks is how many steps there are at most.
const ticks = 8

// Ticks implements plot.Ticker.
func (byteTicks) Ticks(low, high float64) []plot.Tick {
	step := math.Exp2(math.Ceil(math.Log2(math.Max(1, (high-low)/ticks))))
	var out []plot.Tick
	for v := math.Ceil(low/step) * step; v <= high; v += step {
		out = append(out, plot.Tick{Value: v, Label: tickLabel(v)})
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
type secondTicks struct{}

// Ticks implements plot.Ticker.
func (secondTicks) Ticks(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/ticks)))
	for _, times := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*times) <= ticks {
			step *= times
			break
		}
	}
	var out []plot.Tick
	digits := max(0, int(-math.Floor(math.Log10(step))))
	for i := math.Ceil(low / step); i*step <= high; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'f', digits, 64)})
	}
	return out
}
