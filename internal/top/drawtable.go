// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/varpath"
)

// tableHeight is the lines of the table, its header among them.
func (m *Model) tableHeight() int { return max(2, m.height-headerHeight-m.chartHeight()-2) }

// rowAt is the row on a line of the terminal; -1: there is none.
func (m *Model) rowAt(y int) int {
	row := y - headerHeight - m.chartHeight() - 2 + m.top
	if m.detail || m.help || row < m.top || row >= len(m.Rows()) || row >= m.top+m.tableHeight()-1 {
		return -1
	}
	return row
}

// tableLines are the header and the rows that fit, with the chosen one among them.
func (m *Model) tableLines() []string {
	rows, sum := m.Rows(), &totals{}
	all := m.Shown().Tables[Tables[m.table]] // a share is of all rows, also of those that a filter leaves out
	for i := range all {
		sum.add(&all[i])
	}
	most := m.tableHeight() - 1
	m.selected = max(0, min(m.selected, len(rows)-1))
	m.top = max(0, min(m.top, m.selected, len(rows)-1))
	if m.selected >= m.top+most {
		m.top = m.selected - most + 1
	}
	lines := []string{styleDim.Render(m.columns())}
	if len(rows) == 0 {
		return append(lines, m.noRows())
	}
	base := m.baseline()
	for i := m.top; i < min(len(rows), m.top+most); i++ {
		line := m.rowLine(&rows[i], sum, base)
		if i == m.selected {
			line = styleChosen.Render(ansi.Strip(line))
		}
		lines = append(lines, line)
	}
	return lines
}

// noRows says why a table is empty.
func (m *Model) noRows() string {
	by := Tables[m.table]
	switch {
	case m.filter != nil:
		return "no match for " + string(m.query) + "; esc shows all"
	case (by == ByHolder || by == ByCategory) && m.Shown().Held == nil && (m.paused || m.back > 0):
		return fmt.Sprintf("who holds the blocks was not read at +%.1f s; end shows now, and reads it", m.Shown().Elapsed)
	case (by == ByHolder || by == ByCategory) && m.Shown().Held == nil:
		return "reading who holds the blocks ..."
	}
	return "nothing is in use"
}

// narrow is whether there is no room for the change, wide for the peak and the number of blocks, full for all columns.
func (m *Model) narrow() bool { return m.width < 72 }
func (m *Model) wide() bool   { return m.width >= 100 }
func (m *Model) full() bool   { return m.width >= 120 }

// cells puts the columns together that there is room for.
func (m *Model) cells(live, share, change, perStep, peak, ofPeak, age, blocks string) string {
	out := fmt.Sprintf("%10s %7s", live, share)
	if !m.narrow() {
		out += fmt.Sprintf(" %11s", change)
	}
	out += fmt.Sprintf(" %11s", perStep)
	if m.wide() {
		out += fmt.Sprintf(" %10s", peak)
	}
	if m.full() {
		out += fmt.Sprintf(" %7s %8s", ofPeak, age)
	}
	if m.wide() {
		out += fmt.Sprintf(" %9s", blocks)
	}
	return out
}

func (m *Model) columns() string {
	return m.cells("LIVE", "SHARE", "CHANGE", "PER STEP", "PEAK", "OF PEAK", "AGE", "BLOCKS") + "  " + strings.ToUpper(string(Tables[m.table]))
}

// totals are what the shares of a table are of.
type totals struct {
	live, peak int64
}

func (t *totals) add(r *Row) {
	t.live += r.Bytes
	if r.Peak != nil {
		t.peak += *r.Peak
	}
}

// shareOf is a part of a whole; "-" of none.
func shareOf(part, whole int64) string {
	if whole <= 0 {
		return "-"
	}
	return table.Share(float64(part) / float64(whole))
}

// ageOf is for how long a row has been in use.
func ageOf(r *Row) string {
	if r.Age == nil {
		return "-"
	}
	switch seconds := int(*r.Age); {
	case seconds < 100:
		return fmt.Sprintf("%d s", seconds)
	case seconds < 100*60:
		return fmt.Sprintf("%d min", seconds/60)
	default:
		return fmt.Sprintf("%d h", seconds/3600)
	}
}

// rowLine is one row. What tells rows apart, the file and line or the path's end, is never cut.
func (m *Model) rowLine(r *Row, sum *totals, base map[string]int64) string {
	perStep, peak, ofPeak := "-", "-", "-"
	if r.PerStep != nil {
		perStep = "+" + table.Bytes(uint64(math.Round(*r.PerStep)))
	}
	if r.Peak != nil {
		peak, ofPeak = signed(*r.Peak), shareOf(*r.Peak, sum.peak)
	}
	out := m.cells(signed(r.Bytes), shareOf(r.Bytes, sum.live), changeOf(r, base), perStep, peak, ofPeak, ageOf(r), table.Count(r.Blocks))
	if r.PerStep != nil {
		out = styleBad.Render(out)
	}
	return out + "  " + m.nameOf(r, m.width-ansi.StringWidth(out)-2)
}

// changeOf is by how much a row changed since the baseline; "-" where there is none.
func changeOf(r *Row, base map[string]int64) string {
	if base == nil {
		return "-"
	}
	change := r.Bytes - base[r.Key()]
	if change > 0 {
		return "+" + signed(change)
	}
	return signed(change)
}

// nameOf is what a row is called, in so many columns: the name, then the function, then the text of the line.
func (m *Model) nameOf(r *Row, width int) string {
	name := shortSymbol(r, width)
	if ansi.StringWidth(name) > width && width > 1 {
		return varpath.Fit(name, width)
	}
	for _, more := range []string{r.Function, r.Source, r.Category} {
		if more == "" {
			continue
		}
		left := width - ansi.StringWidth(name) - 2
		if left < 4 {
			break
		}
		name += "  " + ansi.Truncate(more, left, "…")
	}
	return name
}

// shortSymbol leaves out namespaces of a native symbol, outermost first, until it fits: "AddmmBackward0::apply".
func shortSymbol(r *Row, width int) string {
	name := r.Name
	if r.File != "" || strings.ContainsAny(name, " <(") {
		return name
	}
	if ansi.StringWidth(name) > width {
		name = strings.TrimSuffix(name, "::apply") // of a node of autograd: the class says it
	}
	for ansi.StringWidth(name) > width {
		_, rest, more := strings.Cut(name, "::")
		if !more {
			break
		}
		name = rest
	}
	return name
}

// detailLines are the chosen row in full, and its stacks.
func (m *Model) detailLines(s *Screen) []string {
	rows := m.Rows()
	if m.selected >= len(rows) {
		return nil
	}
	r := &rows[m.selected]
	lines := []string{"", styleHead.Render(r.Name) + "  " + r.Function}
	add := func(title, text string) {
		if text != "" {
			lines = append(lines, fmt.Sprintf("  %-9s %s", title, text))
		}
	}
	add("file", r.File)
	add("line", r.Source)
	add("in use", fmt.Sprintf("%s in %s", table.Bytes(uint64(max(0, r.Bytes))), table.Plural(r.Blocks, "block")))
	if r.Peak != nil {
		add("at peak", signed(*r.Peak))
	}
	if r.PerStep != nil {
		add("grows", fmt.Sprintf("%s a step", table.Bytes(uint64(math.Round(*r.PerStep)))))
	}
	add("held by", r.Holder)
	add("category", r.Category)
	for i := range s.Stacks {
		if st := &s.Stacks[i]; st.Row == r.Key() && Tables[m.table] == ByLine {
			lines = append(lines, "", fmt.Sprintf("  %s in %s from", signed(st.Bytes), table.Plural(st.Blocks, "block")))
			lines = append(lines, st.lines()...)
		}
	}
	return lines
}

// lines are the frames of a stack, Python's first: they say where in the program it is.
func (st *StackOfLine) lines() []string {
	var python, native []string
	for i, f := range st.Frames {
		if slices.Contains(st.Python, i) {
			python = append(python, "    "+f)
		} else {
			native = append(native, styleDim.Render("    "+f))
		}
	}
	if len(python) > 0 && len(native) > 0 {
		python = append(python, styleDim.Render("    which calls, innermost first:"))
	}
	return append(python, native...)
}

// scrolled is the part of the detail that fits, from the line on that was scrolled to.
func (m *Model) scrolled(lines []string) []string {
	room := m.tableHeight()
	m.scroll = max(0, min(m.scroll, len(lines)-room))
	if m.scroll+room >= len(lines) {
		return lines[m.scroll:]
	}
	out := append([]string(nil), lines[m.scroll:m.scroll+room-1]...)
	return append(out, styleWarn.Render(fmt.Sprintf("  %s below: down, pgdown", table.Plural(uint64(len(lines)-m.scroll-room+1),
		"more line"))))
}
