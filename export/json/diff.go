// SPDX-License-Identifier: Apache-2.0

package json

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/leakdiff"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
)

// diffVersion changes when a reader of the last version could misunderstand the new one. Fields may be added without.
const diffVersion = 1

// Diff is what WriteDiff writes.
type Diff struct {
	Difference    *view.Difference
	Before, After string // what was compared: a file and a moment
	Verdict       string // what changed, in a sentence
	// Findings are what grows in either recording; nil: they are not compared.
	Findings *leakdiff.Comparison
}

type diffFile struct {
	Format  string    `json:"format"`
	Version int       `json:"version"`
	Verdict string    `json:"verdict"` // in a sentence, for people
	By      string    `json:"by"`
	Before  diffSide  `json:"before"`
	After   diffSide  `json:"after"`
	Bytes   int64     `json:"bytes"` // after less before
	Rows    []diffRow `json:"rows"`  // of all: also those without a change

	Verdicts *diffVerdicts `json:"verdicts,omitempty"` // left out with Findings when one side is not all of a recording
	Findings []diffFinding `json:"findings,omitempty"`
}

type diffVerdicts struct {
	Before leaks.Verdict `json:"before"`
	After  leaks.Verdict `json:"after"`
}

type diffFinding struct {
	Before *leakFinding `json:"before"` // null: the finding is new
	After  *leakFinding `json:"after"`  // null: it does not grow any more
}

type diffSide struct {
	What   string `json:"what"`
	Bytes  int64  `json:"bytes"`
	Blocks uint64 `json:"blocks"` // as far as they are known
}

type diffRow struct {
	Bytes  int64      `json:"bytes"`  // after less before
	Blocks *int64     `json:"blocks"` // after less before; null: not known
	Moved  bool       `json:"moved"`
	Edited bool       `json:"edited"`
	Before *diffEntry `json:"before"` // null: the row is new
	After  *diffEntry `json:"after"`  // null: the row was removed
}

type diffEntry struct {
	Name     string     `json:"name"`
	Function string     `json:"function,omitempty"`
	File     string     `json:"file,omitempty"`
	Line     int        `json:"line,omitempty"`
	Source   string     `json:"source,omitempty"`
	Stack    []diffCall `json:"stack,omitempty"` // leaf first
	Bytes    int64      `json:"bytes"`
	Blocks   *uint64    `json:"blocks"` // null: not known
}

type diffCall struct {
	Name     string `json:"name"`
	Function string `json:"function,omitempty"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
}

// WriteDiff writes a difference with every row, in the order of the difference.
func WriteDiff(w io.Writer, d Diff) error {
	f := diffFile{
		Format: "gputrace diff", Version: diffVersion, Verdict: d.Verdict, By: d.Difference.By.String(), Bytes: d.Difference.Bytes(),
		Rows:   []diffRow{},
		Before: diffSide{d.Before, d.Difference.Before.Bytes, d.Difference.Before.Blocks},
		After:  diffSide{d.After, d.Difference.After.Bytes, d.Difference.After.Blocks},
	}
	for i := range d.Difference.Rows {
		c := &d.Difference.Rows[i]
		row := diffRow{Bytes: c.Bytes(), Moved: c.Moved, Edited: c.Edited, Before: diffEntryOf(c.Before), After: diffEntryOf(c.After)}
		if blocks := c.Blocks(); c.BlocksKnown() {
			row.Blocks = &blocks
		}
		f.Rows = append(f.Rows, row)
	}
	f.compare(d.Findings)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("write the difference: %w", err)
	}
	return nil
}

// compare adds what grows in either recording; nil: it is not compared.
func (f *diffFile) compare(c *leakdiff.Comparison) {
	if c == nil {
		return
	}
	f.Verdicts = &diffVerdicts{c.Before, c.After}
	for _, change := range c.Changes {
		f.Findings = append(f.Findings, diffFinding{diffFindingOf(change.Before), diffFindingOf(change.After)})
	}
}

func diffFindingOf(f *leaks.Finding) *leakFinding {
	if f == nil {
		return nil
	}
	out := leakFindingOf(f)
	return &out
}

func diffEntryOf(e *view.Row) *diffEntry {
	if e == nil {
		return nil
	}
	out := &diffEntry{Name: e.Name, Function: e.Func, File: e.File, Line: e.Line, Source: e.Source, Bytes: e.Bytes}
	if e.Blocks > 0 || e.Bytes == 0 {
		out.Blocks = &e.Blocks
	}
	for i := range e.Stack {
		c := &e.Stack[i]
		out.Stack = append(out.Stack, diffCall{c.Name, c.Func, c.File, c.Line})
	}
	return out
}
