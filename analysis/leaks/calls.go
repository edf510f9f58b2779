// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"cmp"
	"math"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/sorts"
)

// maxCalls is how many of what a line calls is shown: "trainer.train()" says little.
const maxCalls = 3

// Call is a place outside PyTorch's core that a line leads to, and what of the line's growth is allocated there, each step.
type Call struct {
	File     string
	Line     int
	Function string

	Blocks    float64
	Requested float64 // bytes; NaN: not known
	Bytes     float64 // of the blocks
}

// Name is the place for people.
func (c *Call) Name() string {
	l := line{file: c.File, line: c.Line, function: c.Function}
	return l.name()
}

// callsOf are the innermost calls of a finding's sites, the most bytes first; nil where the line makes no such calls.
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
