// SPDX-License-Identifier: Apache-2.0

package html

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"io"

	"github.com/gputrace/gputrace/analysis/view"
)

// DiffInput is what WriteDiff shows.
type DiffInput struct {
	Difference    *view.Difference
	Before, After string // what was compared: a file and a moment
}

// diffScripts are the parts of the program of the page of a difference.
var diffScripts = []string{"data.js", "format.js", "diff.js"}

// maxDiffRows is how many rows are in the page: beyond, a browser takes long to open it. The rest makes up one row.
const maxDiffRows = 20_000

type diffData struct {
	By     string        `json:"by"`
	Title  string        `json:"title"` // of the column of names
	Bytes  int64         `json:"bytes"` // after less before
	Before diffSide      `json:"before"`
	After  diffSide      `json:"after"`
	Rows   list[diffRow] `json:"rows"`
}

type diffSide struct {
	What   string `json:"what"`
	Bytes  int64  `json:"bytes"`
	Blocks uint64 `json:"blocks"`
}

type diffRow struct {
	Bytes  int64      `json:"bytes"`
	Blocks *int64     `json:"blocks"` // null: not known
	Moved  bool       `json:"moved,omitempty"`
	Edited bool       `json:"edited,omitempty"`
	Before *diffEntry `json:"before,omitempty"` // none: the row is new
	After  *diffEntry `json:"after,omitempty"`  // none: the row was removed
}

type diffEntry struct {
	Name     string   `json:"name"`
	Function string   `json:"function,omitempty"`
	File     string   `json:"file,omitempty"`
	Source   string   `json:"source,omitempty"`
	Stack    []string `json:"stack,omitempty"` // leaf first
	Bytes    int64    `json:"bytes"`
}

// WriteDiff writes a difference as a page that needs no network: a table that can be sorted and searched.
func WriteDiff(w io.Writer, in DiffInput) error {
	var style bytes.Buffer
	for _, name := range []string{"page/page.css", "page/diff.css"} {
		text, err := files.ReadFile(name)
		if err != nil {
			return fmt.Errorf("page: %w", err)
		}
		style.Write(text)
	}
	script, err := script(diffScripts)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	data, err := json.Marshal(diffOf(&in))
	if err == nil {
		data, err = pack(data)
	}
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	t, err := template.ParseFS(files, "page/diff.html", "page/head.html")
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	p := page{
		Title: "What changed", Policy: policy(style.Bytes(), script),
		Style: element("<style>", style.Bytes(), "</style>"), Script: element("<script>", script, "</script>"),
		Blocks: []template.HTML{element(`<script type="application/octet-stream" id="diff">`, data, "</script>")},
	}
	if err := t.ExecuteTemplate(w, "diff.html", p); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

// diffTitles are the headings of the names, by view.RowKind.
var diffTitles = []string{"Line", "Function", "Leaf and stack", "Layer", "Device", "Phase", "Module", "Operator", "Category", "Holder",
	"Step"}

func diffOf(in *DiffInput) *diffData {
	d := in.Difference
	out := &diffData{
		By: d.By.String(), Title: diffTitles[d.By], Bytes: d.Bytes(),
		Before: diffSide{printable(in.Before), d.Before.Bytes, d.Before.Blocks}, After: diffSide{printable(in.After), d.After.Bytes,
			d.After.Blocks},
	}
	for i := range d.Rows[:min(len(d.Rows), maxDiffRows)] {
		out.Rows = append(out.Rows, diffRowOf(&d.Rows[i]))
	}
	if len(d.Rows) > maxDiffRows {
		out.Rows = append(out.Rows, restOf(d.Rows[maxDiffRows:]))
	}
	return out
}

func diffRowOf(c *view.Change) diffRow {
	out := diffRow{Bytes: c.Bytes(), Moved: c.Moved, Edited: c.Edited, Before: diffEntryOf(c.Before), After: diffEntryOf(c.After)}
	if blocks := c.Blocks(); c.BlocksKnown() {
		out.Blocks = &blocks
	}
	return out
}

// restOf is one row for all that are left out.
func restOf(rows []view.Change) diffRow {
	name := fmt.Sprintf("[%d more rows]", len(rows))
	out := diffRow{Before: &diffEntry{Name: name}, After: &diffEntry{Name: name}}
	for i := range rows {
		c := &rows[i]
		out.Bytes += c.Bytes()
		if c.Before != nil {
			out.Before.Bytes += c.Before.Bytes
		}
		if c.After != nil {
			out.After.Bytes += c.After.Bytes
		}
	}
	return out
}

func diffEntryOf(e *view.Row) *diffEntry {
	if e == nil {
		return nil
	}
	out := &diffEntry{Name: printable(e.Name), Function: printable(e.Func), File: printable(e.File), Source: printable(e.Source),
		Bytes: e.Bytes}
	for i := range e.Stack {
		out.Stack = append(out.Stack, printable(e.Stack[i].Text()))
	}
	return out
}
