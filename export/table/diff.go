// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/gputrace/gputrace/analysis/leakdiff"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// DiffInput is what Diff prints.
type DiffInput struct {
	Difference *view.Difference
	// Before and After say what was compared: a file and a moment.
	Before, After string
	Top           int // rows with a change; 0: all
	Width         int // of the screen, characters; 0: 80
	// Findings are what grows in either recording; nil: they are not compared.
	Findings *leakdiff.Comparison
	Verdict  string // what changed, in a sentence
}

// The widths of the columns of a difference, in characters.
const (
	widthDiffBytes  = 10
	widthDiffChange = 11
	widthDiffBlocks = 8
	widthDiffRemark = 7
)

// Diff prints what changed, the largest change first, and below the rows what they add up to.
func Diff(w io.Writer, in DiffInput) error {
	out := bufio.NewWriter(w)
	p := &diffPrinter{printer: printer{Printer: layout.Printer{W: out, Width: in.Width}}, in: &in}
	p.field("verdict", "%s", in.Verdict)
	p.field("before", "%s", words.Line(in.Before))
	p.field("after", "%s", words.Line(in.After))
	p.findings()
	p.line("")
	p.Heading("in use by "+rowTitles[in.Difference.By], diffCells("before", "after", "change", "blocks", ""))
	p.rows()
	p.total()
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the difference: %w", err)
	}
	return nil
}

// findings prints what grows from step to step in either recording: what is new, what still does, and what does not any more.
func (p *diffPrinter) findings() {
	c := p.in.Findings
	if c == nil {
		return
	}
	p.line("")
	p.field("growth", "%s before, %s after", c.Before, c.After)
	for _, change := range c.Changes {
		switch {
		case change.Before == nil:
			p.finding("new", LeakText(change.After), change.After)
		case change.After == nil:
			p.finding("ended", LeakText(change.Before), change.Before)
		default:
			p.finding("still", fmt.Sprintf("%s; before, %s %s", LeakText(change.After), MeanBytes(LeakSize(change.Before)),
				LeakEvery(change.Before)), change.After)
		}
	}
}

func (p *diffPrinter) finding(what, text string, f *leaks.Finding) {
	p.leakField(what, text)
	if f.Holder != "" {
		p.leakText(strings.Repeat(" ", layout.FieldIndent), "held by "+LeakHolder(f))
	}
}

// rowTitles are the headings of the rows, by view.RowKind.
var rowTitles = []string{
	"Python line, or native symbol", "function", "stack", "layer", "device", "phase", "module", "operator", "category", "holder", "step",
}

type diffPrinter struct {
	printer
	in *DiffInput
}

// diffCells are the columns of a difference.
func diffCells(before, after, change, blocks, remark string) string {
	return fmt.Sprintf(" %*s %*s %*s %*s  %-*s", widthDiffBytes, before, widthDiffBytes, after, widthDiffChange, change, widthDiffBlocks,
		blocks,
		widthDiffRemark, remark)
}

// rows prints what changed, then in one row each what more did, and what did not.
func (p *diffPrinter) rows() {
	var more, same diffSum
	for i := range p.in.Difference.Rows {
		c := &p.in.Difference.Rows[i]
		switch changed := c.Bytes() != 0 || c.Blocks() != 0; {
		case !changed:
			same.add(c)
		case p.in.Top > 0 && i >= p.in.Top:
			more.add(c)
		default:
			p.change(c)
		}
	}
	if more.rows > 0 {
		p.Row(layout.Label{Name: "and " + Plural(more.rows, "more row")}, diffCells(signed(more.before), signed(more.after),
			changeText(more.after-more.before), signedCount(more.blocks), ""))
	}
	if same.rows > 0 {
		p.Row(layout.Label{Name: Plural(same.rows, "row") + " without a change"}, diffCells(signed(same.before), signed(same.after), "0 B",
			"0", ""))
	}
}

func (p *diffPrinter) change(c *view.Change) {
	before, after := "-", "-"
	if c.Before != nil {
		before = signed(c.Before.Bytes)
	}
	if c.After != nil {
		after = signed(c.After.Bytes)
	}
	blocks := "unknown"
	if c.BlocksKnown() {
		blocks = signedCount(c.Blocks())
	}
	e := c.Row()
	p.Row(diffLabel(e), diffCells(before, after, changeText(c.Bytes()), blocks, remark(c)))
	if c.Moved && movedFrom(c) != "" {
		p.line("    was at %s", words.Line(movedFrom(c)))
	}
	for _, call := range stackLines(e.Stack) {
		p.line("    %s", call)
	}
}

// diffLabel is what a row is of; the name of a function or a symbol is all there is to say of it.
func diffLabel(e *view.Row) layout.Label {
	if e.File == "" || e.Line == 0 && e.Func == e.Name {
		return layout.Label{Name: e.Name}
	}
	return layout.Label{Place: e.Name, Name: e.Func, Source: e.Source}
}

// remark says what became of a row.
func remark(c *view.Change) string {
	switch {
	case c.Before == nil:
		return "new"
	case c.After == nil:
		return "removed"
	case c.Moved:
		return "moved"
	case c.Edited:
		return "edited"
	}
	return ""
}

// movedFrom is where a row was before; empty: it has no place of its own, as a stack has not.
func movedFrom(c *view.Change) string {
	switch {
	case c.Before.Line > 0 && c.Before.Name != c.After.Name:
		return c.Before.Name
	case path.Base(c.Before.File) != path.Base(c.After.File):
		return path.Base(c.Before.File)
	}
	return ""
}

// total prints what the rows add up to, to the byte.
func (p *diffPrinter) total() {
	d := p.in.Difference
	count, all := d.Blocks()
	blocks := signedCount(count)
	if !all { // of some rows one side is not known
		blocks = "unknown"
	}
	p.Row(layout.Label{Name: "in all"}, diffCells(signed(d.Before.Bytes), signed(d.After.Bytes), changeText(d.Bytes()), blocks, ""))
	p.line("")
	side := func(name string, t view.DiffTotal) {
		text := strings.TrimPrefix(signedCount(t.Bytes), "+") + " B"
		switch {
		case all:
			text += " in " + Plural(t.Blocks, "block")
		case t.Blocks > 0:
			text += " in at least " + Plural(t.Blocks, "block")
		}
		p.field(name, "%s", text)
	}
	side("before", d.Before)
	side("after", d.After)
	p.field("change", "%s B", signedCount(d.Bytes()))
}

// diffSum adds changes up.
type diffSum struct {
	rows          uint64
	before, after int64
	blocks        int64
}

func (s *diffSum) add(c *view.Change) {
	s.rows++
	s.blocks += c.Blocks()
	if c.Before != nil {
		s.before += c.Before.Bytes
	}
	if c.After != nil {
		s.after += c.After.Bytes
	}
}

// changeText returns bytes with their sign; nothing has none.
func changeText(n int64) string {
	if n == 0 {
		return Bytes(0)
	}
	return signedText(n)
}

// signed returns bytes with a sign only when they are negative.
func signed(n int64) string {
	if n < 0 {
		return signedText(n)
	}
	return Bytes(uint64(n))
}
