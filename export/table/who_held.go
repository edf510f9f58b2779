// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/words"
)

// The widths of the columns of Held, in characters; with the columns behind them they make maxWidth.
const (
	widthSite = 27
	widthHeld = 33
	widthIn   = 24
)

// HeldNow is the title of what is in use now.
const HeldNow = "live in torch"

// HeldInput is what Held prints.
type HeldInput struct {
	Joined *view.Joined
	Title  string // of what the blocks are, such as HeldNow
	Top    int    // most rows; 0: 10
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
	p := &printer{w: out}
	p.line("")
	p.columns(Fit(in.Title+", allocated at", widthSite+2)+" "+Fit("held by", widthHeld)+" "+Fit("in", widthIn), "bytes", "blocks", "share")
	for i := range j.Rows[:min(top, len(j.Rows))] {
		r := &j.Rows[i]
		p.columns("  "+fitTail(r.Site, widthSite)+" "+FitMiddle(r.Holder, widthHeld)+" "+FitMiddle(r.Where, widthIn), Bytes(r.Bytes), countText(r.Blocks), shareText(r.Share))
	}
	if more := len(j.Rows) - top; more > 0 {
		p.line("  and %s", Plural(uint64(more), "more row"))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the holders: %w", err)
	}
	return nil
}

// FitMiddle is fit that keeps both ends: of a path, where it begins and where it leads to.
func FitMiddle(s string, width int) string {
	r := []rune(words.Line(s))
	if len(r) <= width {
		return Fit(s, width)
	}
	head := width / 2
	return string(r[:head]) + "…" + string(r[len(r)-(width-head-1):])
}
