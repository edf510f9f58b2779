// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// HeldNow is the title of what is in use now.
const HeldNow = trailer.HeldNow

// HeldInput is what Held prints.
type HeldInput struct {
	Joined *view.Joined
	Title  string // of what the blocks are, such as HeldNow
	Top    int    // most rows; 0: 10
	Width  int    // of the screen, characters; 0: 80
}

// Held prints a recording's torch blocks by where they were allocated and what holds them. It prints nothing when there are
// none.
func Held(w io.Writer, in HeldInput) error {
	j, top := in.Joined, in.Top
	if len(j.Rows) == 0 {
		return nil
	}
	if top == 0 {
		top = defaultTop
	}
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	p.line("")
	p.Heading(in.Title+" by line, and what holds it", figureCells("bytes", "blocks", "share"))
	for i := range j.Rows[:min(top, len(j.Rows))] {
		r := &j.Rows[i]
		p.heldSite(r, figureCells(Bytes(r.Bytes), countText(r.Blocks), Share(r.Share)))
	}
	if more := len(j.Rows) - top; more > 0 {
		p.line("  and %s", Plural(uint64(more), "more row"))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the holders: %w", err)
	}
	return nil
}

// heldSite prints a row: the line that allocated the memory and what holds it, with the frame of a local variable.
func (p *printer) heldSite(r *view.HeldSite, figures string) {
	l := layout.LabelOf(words.Line(r.Site))
	l.Source, l.Middle = words.Line(r.Holder), true
	if r.Where != "" {
		l.Source += " in " + words.Line(r.Where)
	}
	p.Row(l, figures)
}
