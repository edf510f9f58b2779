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
	"github.com/gputrace/gputrace/internal/words"
)

// SelectionInput is what Selection prints.
type SelectionInput struct {
	View  *view.View // as Trace.Select gives it
	Title string     // what is selected: "at the peak of each device"
	Range bool       // it is a range: what was allocated in it is shown too
	By    view.RowKind
	Top   int // rows of each table; 0: 10
}

// Selection prints what is in use at a moment, or was allocated in a range, in one table each. The rows add up to the total above
// them.
func Selection(w io.Writer, in SelectionInput) error {
	out := bufio.NewWriter(w)
	p := &printer{w: out}
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
	p.columns(Fit(fmt.Sprintf("%s: %s in all", title, sum), widthName+1+widthFunc+1+widthSource+2), "bytes", "blocks", "share")
	shown := rows[:min(in.Top, len(rows))]
	rest, restBlocks := total, blocks
	for i := range shown {
		p.entry(&shown[i], in.By, total)
		rest, restBlocks = rest-shown[i].Bytes, restBlocks-shown[i].Blocks
	}
	if more := len(rows) - len(shown); more > 0 {
		p.columns(Fit("  "+Plural(uint64(more), "more row"), widthName+1+widthFunc+1+widthSource+2), SignedBytes(rest), countText(restBlocks), shareOf(rest, total))
	}
}

func (p *printer) entry(e *view.Row, by view.RowKind, total int64) {
	name := Fit(e.Name, widthName+1+widthFunc+1+widthSource)
	switch {
	case e.Func == "":
	case e.Name == e.Func:
		name = Fit(e.Func, widthName+1+widthFunc) + " " + Fit(path.Base(e.File), widthSource)
	default:
		name = fitTail(e.Name, widthName) + " " + Fit(e.Func, widthFunc) + " " + Fit(e.Source, widthSource)
	}
	blocks := countText(e.Blocks)
	if e.Blocks == 0 {
		blocks = "unknown"
	}
	p.columns("  "+name, SignedBytes(e.Bytes), blocks, shareOf(e.Bytes, total))
	for i := range e.Inner {
		in := &e.Inner[i]
		p.columns("  "+innerName(in.Name, in.Func), SignedBytes(in.Bytes), countText(in.Blocks), shareOf(in.Bytes, total))
	}
	if by != view.ByStack {
		return
	}
	for _, call := range stackLines(e.Stack) {
		p.line("    %s", call)
	}
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
	return shareText(float64(part) / float64(whole))
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
			parts = append(parts, fmt.Sprintf("%s %s", shareText(float64(u.Bytes)/float64(all)), u.Status))
		}
	}
	if len(parts) > 0 {
		p.field("stacks", "of the live bytes since attach: %s", strings.Join(parts, ", "))
	}
}
