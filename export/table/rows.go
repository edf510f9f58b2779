// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/view"
)

// The widths of the tables' columns, in characters; with two spaces in front and one between they make maxWidth.
const (
	widthName   = 26
	widthFunc   = 24
	widthSource = 33
	widthBytes  = 11
	widthBlocks = 10
	widthShare  = 8
)

func (p *printer) tables() {
	top := p.in.Top
	if top == 0 {
		top = defaultTop
	}
	const native = " by native symbol, where no Python frame exists"
	p.table("live by Python line", p.in.View.ByPython(top), pythonColumns)
	p.table("live"+native, p.in.View.ByNative(top), nativeColumn)
	if peak, live := p.in.View.AtPeak(), p.in.View.Total(); peak.Total() > live+live/peakMatters {
		p.table("at the peak by Python line", peak.ByPython(top), pythonColumns)
		p.table("at the peak"+native, peak.ByNative(top), nativeColumn)
	}
}

// peakMatters is how much more than what is live at the end a peak must be to be shown: one part in so many.
const peakMatters = 20

func pythonColumns(r *view.Row) string {
	return fitTail(r.Name, widthName) + " " + Fit(r.Func, widthFunc) + " " + Fit(r.Source, widthSource)
}

func nativeColumn(r *view.Row) string { return Fit(r.Name, widthName+1+widthFunc+1+widthSource) }

// table prints nothing for a table without rows.
func (p *printer) table(title string, t view.Table, name func(*view.Row) string) {
	if len(t.Rows) == 0 {
		return
	}
	p.line("")
	p.columns(Fit(title, widthName+1+widthFunc+1+widthSource+2), "bytes", "blocks", "share")
	for i := range t.Rows {
		r := &t.Rows[i]
		p.columns("  "+name(r), Bytes(uint64(r.Bytes)), countText(r.Blocks), shareText(r.Share))
		for j := range r.Inner {
			in := &r.Inner[j]
			p.columns("  "+innerName(in.Name, in.Func), Bytes(uint64(in.Bytes)), countText(in.Blocks), shareText(in.Share))
		}
	}
	if t.More > 0 {
		p.line("  and %s; in all %s in %s", Plural(uint64(t.More), "more row"), Bytes(uint64(t.Bytes)), Plural(t.Blocks, "block"))
	}
}

// innerName is what a line of the program calls, a little farther in.
func innerName(name, function string) string {
	return "  " + fitTail(name, widthName-2) + " " + Fit(function, widthFunc+1+widthSource)
}

func (p *printer) columns(name, bytes, blocks, share string) {
	p.line("%s %*s %*s %*s", name, widthBytes, bytes, widthBlocks, blocks, widthShare, share)
}

func shareText(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
