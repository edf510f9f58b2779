// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// SelectionInput is what Selection prints.
type SelectionInput struct {
	View  *view.View // as Trace.Select gives it
	Title string     // what is selected: "at the peak of each device"
	Range bool       // it is a range: what was allocated in it is shown too
	By    view.RowKind
	Top   int // rows of each table; 0: 10
	Width int // of the screen, characters; 0: 80
}

// Selection prints what is in use at a moment, or was allocated in a range, in one table each. The rows add up to the total above
// them.
func Selection(w io.Writer, in SelectionInput) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	if in.Top == 0 {
		in.Top = defaultTop
	}
	p.line("%s", words.Line(in.Title))
	if in.Range {
		p.entries("allocated by "+in.By.String(), in.View.RowsOf(view.Allocated), &in)
		p.entries("of it, live at the end by "+in.By.String(), in.View.RowsOf(view.InUse), &in)
	} else {
		p.entries("live by "+in.By.String(), in.View.RowsOf(view.InUse), &in)
	}
	p.line("")
	p.stacksOf(in.View)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print selection: %w", err)
	}
	return nil
}

// entries prints one table, with its sum in the title.
func (p *printer) entries(title string, entries []view.Row, in *SelectionInput) {
	rows := view.GroupRows(entries, in.By)
	total, blocks := int64(0), uint64(0)
	for i := range rows {
		total, blocks = total+rows[i].Bytes, blocks+rows[i].Blocks
	}
	p.line("")
	sum := exactText(uint64(max(0, total)))
	if total < 0 {
		sum = signedText(total)
	}
	p.Heading(fmt.Sprintf("%s: %s in all", title, sum), figureCells("bytes", "blocks", "share"))
	shown := rows[:min(in.Top, len(rows))]
	rest, restBlocks := total, blocks
	for i := range shown {
		p.entry(&shown[i], in.By, total)
		rest, restBlocks = rest-shown[i].Bytes, restBlocks-shown[i].Blocks
	}
	if more := len(rows) - len(shown); more > 0 {
		p.Row(layout.Label{Name: Plural(uint64(more), "more row")}, figureCells(SignedBytes(rest), countText(restBlocks), shareOf(rest, total)))
	}
}

func (p *printer) entry(e *view.Row, by view.RowKind, total int64) {
	blocks := countText(e.Blocks)
	if e.Blocks == 0 {
		blocks = "unknown"
	}
	p.Row(entryLabel(e), figureCells(SignedBytes(e.Bytes), blocks, shareOf(e.Bytes, total)))
	for i := range e.Inner {
		in := &e.Inner[i]
		p.Row(innerLabel(in.Name, in.Func), figureCells(SignedBytes(in.Bytes), countText(in.Blocks), shareOf(in.Bytes, total)))
	}
	if by != view.ByStack {
		return
	}
	for _, call := range stackLines(e.Stack) {
		p.line("    %s", call)
	}
}

// entryLabel is what a row is of: a line with its function and text, a function with its file, or a name.
func entryLabel(e *view.Row) layout.Label {
	switch {
	case e.Func == "":
		return layout.Label{Name: e.Name}
	case e.Name == e.Func:
		return layout.Label{Name: e.Func, Source: path.Base(e.File), Unspaced: true}
	}
	return layout.Label{Place: e.Name, Name: e.Func, Source: e.Source}
}

// stackLines is a stack, leaf first: the leaf and what is of Python, or all where nothing is.
func stackLines(stack []view.Call) []string {
	var out []string
	python := slices.ContainsFunc(stack, func(c view.Call) bool { return c.Func != "" })
	for i := range stack {
		if c := &stack[i]; c.Func != "" || !python || i == 0 {
			out = append(out, words.Line(c.Text()))
		}
	}
	return out
}

// SignedBytes is Bytes, with the sign of what is negative.
func SignedBytes(n int64) string {
	if n < 0 {
		return signedText(n)
	}
	return Bytes(uint64(n))
}

func shareOf(part, whole int64) string {
	if whole == 0 {
		return "-"
	}
	return Share(float64(part) / float64(whole))
}

// stacksOf says how complete the stacks of a view are.
func (p *printer) stacksOf(v *view.View) {
	var parts []string
	uses := v.Stacks()
	var all uint64
	for _, u := range uses {
		all += u.Bytes
	}
	for _, u := range uses {
		if all > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", Share(float64(u.Bytes)/float64(all)), u.Status))
		}
	}
	if len(parts) > 0 {
		p.field("stacks", "of the live bytes since attach: %s", strings.Join(parts, ", "))
	}
}
