// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/words"
)

// SumBy adds up a view: the rows of GroupRows, with what was allocated beside what is in use. The largest come first.
func (v *View) SumBy(by RowKind) []Row {
	index := map[string]int{}
	var out []Row
	for _, m := range []Measure{InUse, Allocated} {
		for _, e := range GroupRows(v.RowsOf(m), by) {
			key := e.key(func(file string) string { return file }, true)
			i, ok := index[key]
			if !ok {
				i = len(out)
				index[key] = i
				row := e
				row.Text, row.File, row.Bytes, row.Blocks = e.text(by), words.Line(e.File), 0, 0
				out = append(out, row)
			}
			if m == InUse {
				out[i].Bytes, out[i].Blocks = e.Bytes, e.Blocks
			} else {
				out[i].AllocBytes, out[i].AllocBlocks = e.Bytes, e.Blocks
			}
		}
	}
	slices.SortStableFunc(out, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.AllocBytes, x.AllocBytes), cmp.Compare(x.Text, y.Text),
			cmp.Compare(x.File, y.File))
	})
	return out
}

// text is the row in one line.
func (e *Row) text(by RowKind) string {
	switch {
	case by == ByStack && len(e.Stack) > 0:
		return stacks.Join(len(e.Stack), func(i int) string { return e.Stack[i].Text() })
	case e.Func == "" || e.Func == e.Name:
		return words.Line(e.Name)
	}
	return words.Line(e.Name + " " + e.Func)
}
