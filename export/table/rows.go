// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/layout"
)

// The widths of the columns of figures, in characters.
const (
	widthBytes  = 11
	widthBlocks = 9
	widthShare  = 7
)

func (p *printer) tables() {
	top := p.in.Top
	if top == 0 {
		top = defaultTop
	}
	const native = " by native symbol, where no Python frame exists"
	p.table("live by Python line", p.in.View.ByPython(top))
	p.table("live"+native, p.in.View.ByNative(top))
	if peak, live := p.in.View.AtPeak(), p.in.View.Total(); peak.Total() > live+live/peakMatters {
		p.table("at the peak by Python line", peak.ByPython(top))
		p.table("at the peak"+native, peak.ByNative(top))
	}
}

// peakMatters: a peak is shown if it exceeds the memory live at the end by 1/peakMatters.
const peakMatters = 20

// table prints nothing for a table without rows.
func (p *printer) table(title string, t view.Table) {
	if len(t.Rows) == 0 {
		return
	}
	p.line("")
	p.Heading(title, figureCells("bytes", "blocks", "share"))
	for i := range t.Rows {
		r := &t.Rows[i]
		l := layout.Label{Name: r.Name}
		if r.File != "" {
			l = layout.Label{Place: r.Name, Name: r.Func, Source: r.Source}
		}
		p.Row(l, figureCells(Bytes(uint64(r.Bytes)), countText(r.Blocks), Share(r.Share)))
		for j := range r.Inner {
			in := &r.Inner[j]
			p.Row(innerLabel(in.Name, in.Func), figureCells(Bytes(uint64(in.Bytes)), countText(in.Blocks), Share(in.Share)))
		}
	}
	if t.More > 0 {
		p.line("  and %s; in all %s in %s", Plural(uint64(t.More), "more row"), Bytes(uint64(t.Bytes)), Plural(t.Blocks, "block"))
	}
}

// innerLabel is of what a line of the program calls, a little farther in.
func innerLabel(place, function string) layout.Label {
	return layout.Label{Place: place, Name: function, Farther: 2}
}

// figureCells are the columns of most tables.
func figureCells(bytes, blocks, share string) string {
	return fmt.Sprintf(" %*s %*s %*s", widthBytes, bytes, widthBlocks, blocks, widthShare, share)
}
