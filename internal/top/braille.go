// SPDX-License-Identifier: Apache-2.0

package top

import "strings"

// A character of braille has 2 by 4 dots, numbered as Unicode does: U+2800 plus a bit a dot.
const (
	dotsAcross = 2
	dotsDown   = 4
	blank      = 0x2800
)

// dotBits are the bits of a character's dots, by column, from the top row.
var dotBits = [dotsAcross][dotsDown]rune{{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}

// area draws values as filled columns of dots, the newest at the right, and a second series as a line above them. Each string is a row
// of width characters; full is the value that reaches the top. A negative value is unknown and stays empty.
func area(values, line []float64, width, height int, full float64) []string {
	cells := make([][]rune, height)
	for i := range cells {
		cells[i] = []rune(strings.Repeat(string(rune(blank)), width))
	}
	dot := func(x, y int) { // y from the bottom
		if x < 0 || x >= width*dotsAcross || y < 0 || y >= height*dotsDown {
			return
		}
		row := height*dotsDown - 1 - y
		cells[row/dotsDown][x/dotsAcross] |= dotBits[x%dotsAcross][row%dotsDown]
	}
	level := func(v float64) int {
		if full <= 0 || v < 0 {
			return -1
		}
		return min(height*dotsDown-1, int(v/full*float64(height*dotsDown-1)+0.5))
	}
	columns := width * dotsAcross
	for i, v := range values {
		x := columns - len(values) + i
		for y := 0; y <= level(v); y++ {
			dot(x, y)
		}
		if i < len(line) {
			dot(x, level(line[i]))
		}
	}
	out := make([]string, height)
	for i, row := range cells {
		out[i] = string(row)
	}
	return out
}

// squeeze makes at most n values of a series: of each stretch the largest, so that no peak is left out.
func squeeze(values []float64, n int) []float64 {
	if len(values) <= n {
		return values
	}
	out := make([]float64, n)
	for i := range out {
		from, to := i*len(values)/n, (i+1)*len(values)/n
		out[i] = values[from]
		for _, v := range values[from:to] {
			out[i] = max(out[i], v)
		}
	}
	return out
}
