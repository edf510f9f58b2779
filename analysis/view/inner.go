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

// innerCall is the innermost call outside PyTorch's core of a site that is named after a line of the program; nil: it is that line.
func (v *View) innerCall(s *Site) *Call {
	if s.Stack == nil || !s.isPython() {
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
func (e *Entry) addInner(samples []*Entry, bytes int64) {
	if bytes <= 0 || float64(e.Bytes) <= innerShare*float64(bytes) {
		return
	}
	index := map[Call]int{}
	var inner []Entry
	for _, s := range samples {
		if s.inner == nil {
			continue
		}
		at, ok := index[*s.inner]
		if !ok {
			at = len(inner)
			index[*s.inner] = at
			inner = append(inner, Entry{Name: s.inner.Name, Func: s.inner.Func, File: s.inner.File, Line: s.inner.Line})
		}
		inner[at].Bytes += s.Bytes
		inner[at].Blocks += s.Blocks
	}
	sorts.Func(inner, compareSize)
	if len(inner) > 0 {
		e.Inner = inner[:min(len(inner), maxInner)]
	}
}

// innerRows is addInner of the row of a table.
func (v *View) innerRows(r *Row, sites []*Site, total uint64) []Row {
	e := Entry{Bytes: int64(r.Bytes)}
	samples := make([]Entry, len(sites))
	pointers := make([]*Entry, len(sites))
	for i, s := range sites {
		samples[i] = Entry{Bytes: int64(s.Inuse.Bytes), Blocks: s.Inuse.Objects, inner: v.innerCall(s)}
		pointers[i] = &samples[i]
	}
	e.addInner(pointers, int64(total))
	var out []Row
	for i := range e.Inner {
		in := &e.Inner[i]
		out = append(out, Row{
			Name: in.Name, Func: in.Func, File: in.File, Line: in.Line, Bytes: uint64(in.Bytes), Blocks: in.Blocks,
			Share: float64(in.Bytes) / float64(total),
		})
	}
	return out
}
