// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/sorts"
)

// maxCalls is the number of calls of a line that are shown, because "trainer.train()" alone says little.
const maxCalls = 3

// Call is a place outside PyTorch's core that a line calls, with the part of the line's growth that is allocated there, per step.
type Call struct {
	File     string
	Line     int
	Function string

	Blocks    float64
	Requested float64 // bytes; NaN: not known
	Bytes     float64 // block sizes
}

// Name returns the place for people.
func (c *Call) Name() string {
	l := line{file: c.File, line: c.Line, function: c.Function}
	return l.name()
}

// callsOf returns the innermost calls of a finding's sites, those with the most bytes first; nil if the line makes no such calls.
func (d *detector) callsOf(f *Finding, g []risen) []Call {
	sums := map[line]amount{}
	for i := range g {
		if g[i].from == nil || g[i].stack == nil {
			continue
		}
		if at := stacks.InnerFrame(g[i].stack.Frames, d.library); at >= 0 {
			frame := &g[i].stack.Frames[at]
			l := line{file: frame.File, line: frame.Line, function: frame.Func}
			sums[l] = sums[l].plus(g[i].step)
		}
	}
	var out []Call
	for l, a := range sums {
		c := Call{File: l.file, Line: l.line, Function: l.function, Blocks: a.blocks, Requested: a.requested, Bytes: a.bytes}
		if math.IsNaN(f.Requested) {
			c.Requested = math.NaN()
		}
		out = append(out, c)
	}
	sorts.Func(out, func(a, b Call) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.File, b.File))
	})
	return out[:min(len(out), maxCalls)]
}
