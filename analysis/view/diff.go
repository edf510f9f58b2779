// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Difference is what changed between two tables of the same kind.
type Difference struct {
	By   RowKind
	Rows []Change // by the size of the change, largest first; those without one come last
	// Totals of all rows. They are those of the tables.
	Before, After DiffTotal
}

// DiffTotal is the sum of one side.
type DiffTotal struct {
	Bytes  int64
	Blocks uint64
}

// Change is a row of either table, or one of each that are the same.
type Change struct {
	Before *Row // nil: it is new
	After  *Row // nil: it was removed
	// Moved: it is on another line, or in another file, than before. The function and the text of the line are the same,
	// or the functions of the stack.
	Moved bool
	// Edited: it is on the same line, but the text of the line is another one.
	Edited bool
}

// Row is how the row is called: as after, or, when it was removed, as before.
func (c *Change) Row() *Row { return cmp.Or(c.After, c.Before) }

// Bytes is what was added, in bytes.
func (c *Change) Bytes() int64 {
	before, after := c.sides()
	return after.Bytes - before.Bytes
}

// Blocks is how many blocks were added.
func (c *Change) Blocks() int64 {
	before, after := c.sides()
	return int64(after.Blocks) - int64(before.Blocks)
}

// BlocksKnown says whether it is known how many blocks there are on both sides: of what only an allocator's total tells, it is
// not. Blocks counts those that are.
func (c *Change) BlocksKnown() bool {
	before, after := c.sides()
	return before.known() && after.known()
}

func (t DiffTotal) known() bool { return t.Blocks > 0 || t.Bytes == 0 }

// sides are both rows; one that is not there is empty.
func (c *Change) sides() (before, after DiffTotal) {
	if c.Before != nil {
		before = DiffTotal{c.Before.Bytes, c.Before.Blocks}
	}
	if c.After != nil {
		after = DiffTotal{c.After.Bytes, c.After.Blocks}
	}
	return before, after
}

// Blocks is the change of the blocks, of the rows of which both sides are known. all is false where there are others.
func (d *Difference) Blocks() (blocks int64, all bool) {
	all = true
	for i := range d.Rows {
		if c := &d.Rows[i]; c.BlocksKnown() {
			blocks += c.Blocks()
		} else {
			all = false
		}
	}
	return blocks, all
}

// Bytes is the change of the total.
func (d *Difference) Bytes() int64 { return d.After.Bytes - d.Before.Bytes }

// Diff compares what is in use in two views or profiles. Rows of both that are the same make one: the same line of the same
// function, where a file is the same in another folder, and a line is when its text is and nothing else could be meant.
func Diff(before, after []Row, by RowKind) *Difference {
	m := newMatcher(GroupRows(before, by), GroupRows(after, by))
	for _, step := range matchSteps[by] {
		m.step(step)
	}
	d := &Difference{By: by, Rows: m.changes()}
	for i := range d.Rows {
		before, after := d.Rows[i].sides()
		d.Before = DiffTotal{d.Before.Bytes + before.Bytes, d.Before.Blocks + before.Blocks}
		d.After = DiffTotal{d.After.Bytes + after.Bytes, d.After.Blocks + after.Blocks}
	}
	slices.SortStableFunc(d.Rows, compareChange)
	return d
}

func compareChange(x, y Change) int {
	size := func(c *Change) int64 { return max(c.Bytes(), -c.Bytes()) }
	before, after := x.sides()
	otherBefore, otherAfter := y.sides()
	return cmp.Or(cmp.Compare(size(&y), size(&x)), cmp.Compare(max(otherBefore.Bytes, otherAfter.Bytes), max(before.Bytes, after.Bytes)),
		compareRow(x.Row(), y.Row()))
}

// matchStep pairs rows that have the same key, where there is one of it on either side. An empty key is none.
type matchStep struct {
	key   func(m *matcher, e *Row, file func(string) string) string
	moved bool // rows that are paired by it have moved
	alike bool // but only where the texts of the lines are unknown or alike
}

// matchSteps are tried in turn, the surest first.
var matchSteps = map[RowKind][]matchStep{
	ByLine: {
		{key: (*matcher).lineAndText},
		{key: (*matcher).functionAndText, moved: true},
		{key: (*matcher).whole, alike: true},
		{key: (*matcher).textAnywhere, moved: true},
	},
	ByFunction: {{key: (*matcher).whole}, {key: (*matcher).functionAnywhere, moved: true}},
	ByStack:    {{key: (*matcher).whole}, {key: (*matcher).withoutLines, moved: true}},
	ByLayer:    {{key: (*matcher).whole}},
	ByDevice:   {{key: (*matcher).whole}},
	ByCategory: {{key: (*matcher).whole}},
	ByPhase:    {{key: (*matcher).whole}},
	ByModule:   {{key: (*matcher).whole}},
	ByOperator: {{key: (*matcher).whole}},
	ByStep:     {{key: (*matcher).whole}},
	ByHolder:   {{key: (*matcher).whole}, {key: (*matcher).container}},
}

func (*matcher) container(e *Row, _ func(string) string) string { return varpath.Key(e.Name) }

func (*matcher) whole(e *Row, file func(string) string) string        { return e.key(file, true) }
func (*matcher) withoutLines(e *Row, file func(string) string) string { return e.key(file, false) }

func (*matcher) lineAndText(e *Row, file func(string) string) string {
	if e.Source == "" && e.File != "" {
		return ""
	}
	return e.key(file, true) + e.Source
}

func (*matcher) functionAndText(e *Row, file func(string) string) string {
	if e.Source == "" {
		return ""
	}
	return e.key(file, false) + e.Source
}

func (*matcher) textAnywhere(e *Row, _ func(string) string) string {
	if e.Source == "" {
		return ""
	}
	return e.Func + "\n" + e.Source
}

func (*matcher) functionAnywhere(e *Row, _ func(string) string) string { return e.Func }

// matcher finds the rows of two tables that are the same.
type matcher struct {
	before, after []Row
	pairs         []Change
	done          [2][]bool         // rows that are in pairs, by side
	files         map[string]string // of before, and what they are after
}

func newMatcher(before, after []Row) *matcher {
	m := &matcher{before: before, after: after, files: pairFiles(filesOf(before), filesOf(after))}
	m.done = [2][]bool{make([]bool, len(before)), make([]bool, len(after))}
	return m
}

func (m *matcher) step(s matchStep) {
	renamed := func(file string) string { return cmp.Or(m.files[file], file) }
	same := func(file string) string { return file }
	after := m.unique(1, m.after, func(e *Row) string { return s.key(m, e, same) })
	for key, i := range m.unique(0, m.before, func(e *Row) string { return s.key(m, e, renamed) }) {
		j, ok := after[key]
		if !ok || i < 0 || j < 0 {
			continue
		}
		b, a := &m.before[i], &m.after[j]
		edited := b.Source != "" && a.Source != "" && b.Source != a.Source
		if s.alike && edited && !alike(b.Source, a.Source) {
			continue
		}
		m.done[0][i], m.done[1][j] = true, true
		m.pairs = append(m.pairs, Change{Before: b, After: a, Moved: s.moved, Edited: edited})
	}
}

// unique is the rows that are not in pairs yet, by key; -1 for a key that several have.
func (m *matcher) unique(side int, rows []Row, key func(*Row) string) map[string]int {
	out := map[string]int{}
	for i := range rows {
		k := key(&rows[i])
		if m.done[side][i] || k == "" {
			continue
		}
		if _, several := out[k]; several {
			i = -1
		}
		out[k] = i
	}
	return out
}

// changes is the pairs, and the rows that are in none.
func (m *matcher) changes() []Change {
	out := m.pairs
	for i := range m.before {
		if !m.done[0][i] {
			out = append(out, Change{Before: &m.before[i]})
		}
	}
	for i := range m.after {
		if !m.done[1][i] {
			out = append(out, Change{After: &m.after[i]})
		}
	}
	return out
}

// alike says whether one text became the other by a change in one place that leaves half of it.
func alike(x, y string) bool {
	least := min(len(x), len(y))
	front := 0
	for front < least && x[front] == y[front] {
		front++
	}
	back := 0
	for back < least-front && x[len(x)-1-back] == y[len(y)-1-back] {
		back++
	}
	return 2*(front+back) >= max(len(x), len(y))
}

// filesOf is the Python files that entries are of, each once.
func filesOf(entries []Row) []string {
	known := map[string]bool{"": true}
	var out []string
	note := func(file string) {
		if !known[file] {
			known[file] = true
			out = append(out, file)
		}
	}
	for i := range entries {
		note(entries[i].File)
		for j := range entries[i].Stack {
			note(entries[i].Stack[j].File)
		}
	}
	return out
}

// maxEnd is the number of names at the end of a path by which a file is recognised, at most.
const maxEnd = 64

// pairFiles finds the files that are the same but for the folder of the program: those whose paths end alike, the longest ends
// first, as far as it is clear which. When one file of the program is left on either side, it has another name now.
func pairFiles(before, after []string) map[string]string {
	pairs := map[string]string{}
	for _, f := range before {
		if slices.Contains(after, f) {
			pairs[f] = f
		}
	}
	before = slices.DeleteFunc(slices.Clone(before), func(f string) bool { return pairs[f] != "" })
	after = slices.DeleteFunc(slices.Clone(after), func(f string) bool { return pairs[f] != "" })
	for n := maxEnd; n > 0; n-- {
		ends, others := byEnd(before, n), byEnd(after, n)
		for end, files := range ends {
			if len(files) == 1 && len(others[end]) == 1 {
				pairs[files[0]] = others[end][0]
				before = without(before, files[0])
				after = without(after, others[end][0])
			}
		}
	}
	library := func(f string) bool { return stacks.IsLibrary(f, nil) }
	before, after = slices.DeleteFunc(before, library), slices.DeleteFunc(after, library)
	if len(before) == 1 && len(after) == 1 {
		pairs[before[0]] = after[0]
	}
	return pairs
}

// byEnd is files by the last n names of their paths.
func byEnd(files []string, n int) map[string][]string {
	out := map[string][]string{}
	for _, f := range files {
		names := strings.Split(path.Clean(f), "/")
		if len(names) >= n {
			end := strings.Join(names[len(names)-n:], "/")
			out[end] = append(out[end], f)
		}
	}
	return out
}

func without(files []string, file string) []string {
	return slices.DeleteFunc(files, func(f string) bool { return f == file })
}
