// SPDX-License-Identifier: Apache-2.0

package view

import (
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/sorts"
)

const (
	// innerShare is the part of the memory above which what a line calls is shown too: "trainer.train()" says little.
	innerShare = 0.3
	// maxInner is how many calls of a line are shown.
	maxInner = 3
)

// Call is the name of the innermost call outside PyTorch's core of a site that is named after a line of the program, such as
// "trainer_pt_utils.py:86 nested_concat"; empty: it is that line. A line such as "trainer.train()" has sites of very different kinds.
func (v *View) Call(s *Site) string {
	c := v.innerCall(s)
	if c == nil {
		return ""
	}
	return c.String()
}

// String is the call in a word.
func (c *Call) String() string { return c.Name + " " + c.Func }

// Call is the name of what a sample's line calls, as View.Call; empty: nothing.
func (e *Row) Call() string {
	if e.inner == nil {
		return ""
	}
	return e.inner.String()
}

// innerCall is the innermost call outside PyTorch's core of a site that is named after a line of the program; nil: it is that line.
func (v *View) innerCall(s *Site) *Call {
	if !s.isPython() {
		return nil
	}
	i := stacks.InnerFrame(s.Stack.Frames, v.options.Library)
	if i < 0 {
		return nil
	}
	c := CallOf(&s.Stack.Frames[i])
	return &c
}

// addInner adds to the row of a line what its samples call, where it has a large part of all bytes.
func (e *Row) addInner(samples []*Row, bytes int64) {
	if bytes <= 0 || float64(e.Bytes) <= innerShare*float64(bytes) {
		return
	}
	index := map[Call]int{}
	var inner []Row
	for _, s := range samples {
		if s.inner == nil {
			continue
		}
		at, ok := index[*s.inner]
		if !ok {
			at = len(inner)
			index[*s.inner] = at
			inner = append(inner, Row{Name: s.inner.Name, Func: s.inner.Func, File: s.inner.File, Line: s.inner.Line})
		}
		inner[at].Bytes += s.Bytes
		inner[at].Blocks += s.Blocks
	}
	sorts.Func(inner, compareSize)
	e.Inner = inner[:min(len(inner), maxInner)]
}
