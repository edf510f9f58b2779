// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/words"
)

// Sum is the memory of a view that has something in common.
type Sum struct {
	Name string // the line, function, stack, layer or device, in one line of printable text
	File string // of lines and functions of Python, the whole path; else empty
	Line int    // of lines of Python; 0: not known
	// In use; the sums add up to View.Total. Bytes is negative for stacks.LostEvents when more frees than allocations were lost.
	Bytes  int64
	Blocks uint64
	// Allocated since the first event, or in the range.
	AllocBytes  int64
	AllocBlocks uint64
}

// SumBy adds up a view: the rows of GroupEntries, with what was allocated beside what is in use. The largest come first.
func (v *View) SumBy(by RowKind) []Sum {
	index := map[string]int{}
	var out []Sum
	for _, m := range []Measure{InUse, Allocated} {
		for _, e := range GroupEntries(v.EntriesOf(m), by) {
			key := e.key(func(file string) string { return file }, true)
			i, ok := index[key]
			if !ok {
				i = len(out)
				index[key] = i
				out = append(out, Sum{Name: e.text(by), File: words.Line(e.File), Line: e.Line})
			}
			if m == InUse {
				out[i].Bytes, out[i].Blocks = e.Bytes, e.Blocks
			} else {
				out[i].AllocBytes, out[i].AllocBlocks = e.Bytes, e.Blocks
			}
		}
	}
	slices.SortStableFunc(out, func(x, y Sum) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.AllocBytes, x.AllocBytes), cmp.Compare(x.Name, y.Name), cmp.Compare(x.File, y.File))
	})
	return out
}

// text is the entry in one line.
func (e *Entry) text(by RowKind) string {
	switch {
	case by == ByStack && len(e.Stack) > 0:
		return stacks.Join(len(e.Stack), func(i int) string { return e.Stack[i].Text() })
	case e.Func == "" || e.Func == e.Name:
		return words.Line(e.Name)
	}
	return words.Line(e.Name + " " + e.Func)
}
