// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gputrace/gputrace/export/table"
)

// Styles of what is shown. The terminal program reduces colours to what the terminal has, and to none with NO_COLOR.
var (
	styleHead     = lipgloss.NewStyle().Bold(true)
	styleDim      = lipgloss.NewStyle().Faint(true)
	styleChosen   = lipgloss.NewStyle().Reverse(true)
	styleBad      = lipgloss.NewStyle().Bold(true).Foreground(lipgloss.BrightRed)
	styleWarn     = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	styleUse      = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	styleCached   = lipgloss.NewStyle().Foreground(lipgloss.Blue)
	styleOther    = lipgloss.NewStyle().Foreground(lipgloss.Magenta)
	styleNotKnown = lipgloss.NewStyle().Foreground(lipgloss.BrightBlack)
)

// Shares of the capacity from which use is coloured.
const (
	warnShare = 0.80
	badShare  = 0.95
)

// leastWidth is the width below which lines are cut.
const leastWidth = 40

// draw is the whole screen: at most height lines, none wider than width.
func (m *Model) draw() string {
	s := m.Shown()
	var lines []string
	switch {
	case m.help:
		lines = helpLines
	case s == nil && m.err != nil:
		lines = []string{m.err.Error()}
	case s == nil:
		lines = []string{"waiting for the first events ..."}
	default:
		lines = m.page(s)
	}
	width := max(leastWidth, m.width)
	for i := range lines {
		lines[i] = ansi.Truncate(lines[i], width, "…")
	}
	return strings.Join(lines[:min(len(lines), max(1, m.height))], "\n")
}

func (m *Model) page(s *Screen) []string {
	lines := m.header(s)
	if n := m.chartHeight(); n > 0 {
		lines = append(lines, m.chart(s, n)...)
	}
	lines = append(lines, m.tabs(s))
	if m.detail {
		lines = append(lines, m.scrolled(m.detailLines(s))...)
	} else {
		lines = append(lines, m.tableLines()...)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(0, min(len(lines), m.height-1))], m.footer(s))
}

// headerHeight is the lines above the curve: two of them are the verdict.
const headerHeight = 5

// header says what is traced, how its memory adds up, and the verdict.
func (m *Model) header(s *Screen) []string {
	names, paused := make([]string, 0, len(s.Processes)), ""
	for _, p := range s.Processes {
		names = append(names, fmt.Sprintf("pid %d %s", p.PID, p.Name))
		if p.Paused != "" && paused == "" {
			how, _, _ := strings.Cut(p.Paused, " (") // as short as the line is
			paused = styleWarn.Render(fmt.Sprintf("pid %d is %s", p.PID, how))
		}
	}
	if paused != "" { // it is why nothing moves
		names = append([]string{paused}, names...)
	}
	lost := styleDim.Render("lost 0")
	if s.Lost > 0 {
		lost = styleBad.Render("lost " + table.Plural(s.Lost, "event"))
	}
	first := join(styleHead.Render(strings.Join(names, ", ")), fmt.Sprintf(" · %s · %s allocations/s · ", elapsed(s.Elapsed),
		table.Count(uint64(math.Round(s.Rate))))+lost, m.width)
	return append([]string{first, m.bar(&s.Memory), m.equation(&s.Memory)}, m.verdict(s)...)
}

// join shortens the left part so that the right one fits.
func join(left, right string, width int) string {
	return ansi.Truncate(left, max(10, width-ansi.StringWidth(right)), "…") + right
}

func elapsed(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
}

// bar draws the parts of the memory against the capacity, or against their own sum.
func (m *Model) bar(u *Memory) string {
	sum := total(u)
	text, full := " "+table.Bytes(sum), float64(sum)
	if u.Capacity != nil {
		full = float64(*u.Capacity)
		share := float64(sum) / full
		text = fmt.Sprintf(" %s of %s, %s", table.Bytes(sum), table.Bytes(*u.Capacity), table.Share(share))
		if share >= badShare {
			text = styleBad.Render(text)
		} else if share >= warnShare {
			text = styleWarn.Render(text)
		}
	}
	width := max(10, m.width-ansi.StringWidth(text)-1)
	if full == 0 {
		return strings.Repeat("░", width) + text
	}
	var out strings.Builder
	drawn, so := 0, 0.0
	for _, part := range []struct {
		bytes uint64
		style lipgloss.Style
		mark  string
	}{{value(u.Allocated), styleUse, "█"}, {value(u.Cached), styleCached, "▓"}, {u.Other, styleOther, "▒"},
		{positive(u.Unexplained), styleNotKnown, "▒"}} {
		so += float64(part.bytes)
		end := min(width, int(so/full*float64(width)+0.5))
		if end > drawn {
			out.WriteString(part.style.Render(strings.Repeat(part.mark, end-drawn)))
			drawn = end
		}
	}
	return out.String() + strings.Repeat("░", width-drawn) + text
}

func value(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

func positive(n *int64) uint64 {
	if n == nil || *n < 0 {
		return 0
	}
	return uint64(*n)
}

// total is what the driver counts, or what is known of it.
func total(u *Memory) uint64 {
	if u.Used != nil {
		return *u.Used
	}
	return value(u.Allocated) + value(u.Cached) + u.Other
}

// equation is the same in figures, as long as it fits.
func (m *Model) equation(u *Memory) string {
	text := func(n *uint64) string {
		if n == nil {
			return "unknown"
		}
		return table.Bytes(*n)
	}
	use, cached, other, rest := styleUse.Render("█")+" ", styleCached.Render("▓")+" ", styleOther.Render("▒")+" ",
		styleNotKnown.Render("▒")+" "
	long := use + "allocated " + text(u.Allocated) + " + " + cached + "in cache " + text(u.Cached) + " + " + other + "other " +
		table.Bytes(u.Other)
	short := use + text(u.Allocated) + " blocks + " + cached + text(u.Cached) + " cache"
	if u.Other > 0 {
		short += " + " + other + table.Bytes(u.Other) + " other"
	}
	peak, brief := "", short // of a narrow screen: the rest is what the bar has beyond it
	if u.Unexplained != nil {
		long += " + " + rest + "context and unknown " + signed(*u.Unexplained) + " = " + text(u.Used)
		short += " + " + rest + signed(*u.Unexplained) + " context"
	}
	if u.Peak != nil {
		peak = " · peak " + table.Bytes(*u.Peak)
	}
	for _, form := range []string{long + peak, short + peak, long, short} {
		if ansi.StringWidth(form) <= m.width {
			return form
		}
	}
	return brief
}

func signed(n int64) string {
	if n < 0 {
		return "-" + table.Bytes(uint64(-n))
	}
	return table.Bytes(uint64(n))
}

// noBreak is a space at which no line ends.
const noBreak = "\u00a0"

// verdict is the sentence on two lines.
func (m *Model) verdict(s *Screen) []string {
	if s.Sentence == "" {
		return []string{styleDim.Render("steps: none yet"), ""}
	}
	first, second := s.Sentence, ""
	if ansi.StringWidth(first) > m.width {
		joined := strings.ReplaceAll(first, " %", noBreak+"%")
		first, second, _ = strings.Cut(ansi.Wrap(joined, m.width, ""), "\n")
		first, second = strings.ReplaceAll(first, noBreak, " "), strings.ReplaceAll(strings.ReplaceAll(second, "\n", " "), noBreak, " ")
	}
	if s.Verdict == "growing" || s.Verdict == "out_of_memory" {
		return []string{styleBad.Render(first), styleBad.Render(second)}
	}
	return []string{first, second}
}

// chartHeight is the lines of the curve: none on a small terminal, nor on one of 24 lines beside the detail of a row, which needs them.
func (m *Model) chartHeight() int {
	switch {
	case m.height < 18, m.detail && m.height < 32:
		return 0
	case m.height < 32:
		return 6
	}
	return 10
}

// axisWidth is the columns left of the curve.
const axisWidth = 11

// chart draws what was allocated, filled, and what was reserved, as a line, with a mark below the screen that is shown.
func (m *Model) chart(s *Screen, height int) []string {
	width := max(10, m.width-axisWidth-1)
	var allocated, reserved []float64
	full := 1.0
	for _, h := range m.history {
		a, r := known(h.Memory.Allocated), -1.0
		if h.Memory.Cached != nil {
			r = a + float64(*h.Memory.Cached)
		}
		allocated, reserved = append(allocated, a), append(reserved, r)
		full = max(full, a, r)
	}
	at := len(m.history) - 1 - m.back
	columns := dotsAcross * width
	if len(allocated) > columns {
		at = at * columns / len(allocated)
	}
	allocated, reserved = squeeze(allocated, columns), squeeze(reserved, columns)
	bands := []string{m.steps(width)}
	if row := m.phases(width); row != "" {
		bands = append(bands, row)
	}
	rows := area(allocated, reserved, width, height-len(bands)-1, full)
	lines := make([]string, 0, height)
	for i, row := range rows {
		label := ""
		switch i {
		case 0:
			label = table.Bytes(uint64(full))
		case len(rows) - 1:
			label = "0"
		}
		lines = append(lines, fmt.Sprintf("%*s ", axisWidth-1, label)+styleUse.Render(row))
	}
	lines = append(lines, bands...)
	return append(lines, m.timeAxis(s, width, (columns-len(allocated)+at)/dotsAcross))
}

// steps is the band of steps below the curve: empty before the first.
func (m *Model) steps(width int) string {
	counts := make([]int, width)
	for c := range counts {
		counts[c] = -1
		if i := m.lastIn(c, width); i >= 0 && m.history[i].StepCount > 0 {
			counts[c] = m.history[i].StepCount
		}
	}
	line := ruler(counts)
	if line == "" {
		return ""
	}
	return fmt.Sprintf("%*s ", axisWidth-1, "steps") + styleDim.Render(line)
}

// lastIn is the newest of the screens that a column of the curve has, as an index; below 0: it has none.
func (m *Model) lastIn(column, width int) int {
	dot, dots, n := dotsAcross*(column+1), dotsAcross*width, len(m.history)
	if n <= dots {
		return dot - 1 - (dots - n)
	}
	return dot*n/dots - 1
}

func known(n *uint64) float64 {
	if n == nil {
		return -1
	}
	return float64(*n)
}

// timeAxis marks the moment that is shown.
func (m *Model) timeAxis(s *Screen, width, at int) string {
	moment := "now"
	switch {
	case m.back > 0:
		moment = fmt.Sprintf("+%.1f s", s.Elapsed)
	case m.ended:
		moment = "end"
	}
	first := fmt.Sprintf("+%.0f s", m.history[0].Elapsed)
	mark := "▲ " + moment
	if at+len([]rune(mark)) > width {
		mark = moment + " ▲"
		at -= len([]rune(mark)) - 1
	}
	gap := at - len(first)
	if gap < 1 {
		first, gap = "", max(0, at)
	}
	return fmt.Sprintf("%*s ", axisWidth-1, "") + styleDim.Render(first) + strings.Repeat(" ", gap) + styleWarn.Render(mark)
}

// tabs are the names of the tables, and how the one that is shown is sorted and filtered.
func (m *Model) tabs(s *Screen) string {
	var out []string
	for i, by := range Tables {
		text := fmt.Sprintf("%d %s", i+1, by)
		if i == m.table {
			text = styleChosen.Render(text)
		}
		out = append(out, text)
	}
	line := strings.Join(out, "  ") + styleDim.Render("   sort "+sortNames[m.sort])
	if by := Tables[m.table]; (by == ByHolder || by == ByCategory) && s.Held != nil {
		line += styleDim.Render(fmt.Sprintf("   read %.0f s ago", s.Time.Sub(s.Held.Time).Seconds()))
	}
	return line
}

// footer has the keys, what is typed, or what went wrong.
func (m *Model) footer(s *Screen) string {
	switch {
	case m.typing:
		return "/" + string(m.query) + "█"
	case m.lost:
		return styleBad.Render("no connection to the recorder, trying again · q quit")
	case m.message != "":
		return styleWarn.Render(m.message)
	case m.err != nil:
		return styleBad.Render(m.err.Error())
	}
	state := ""
	switch {
	case m.back > 0:
		state = fmt.Sprintf("at +%.1f s, end: now · ", s.Elapsed)
	case m.paused:
		state = "paused · "
	case m.ended:
		state = "ended · "
	}
	if m.filter != nil {
		state += "only /" + string(m.query) + ", esc: all · "
	}
	for _, keys := range []string{"q quit  ? help  tab table  s sort  / filter  space pause  ←→ time  enter stacks",
		"q quit  ? help  tab table  / filter"} {
		if ansi.StringWidth(state+keys) <= m.width {
			return styleWarn.Render(state) + styleDim.Render(keys)
		}
	}
	return styleWarn.Render(state) + styleDim.Render("? help")
}

var helpLines = []string{
	"gputrace top", "",
	"  q, ctrl-c      quit; the job goes on",
	"  tab, 1 to 5    table by line, holder, category, phase, module",
	"  s, S           sort by the next column, by the one before",
	"  up, down, wheel, pgup, pgdown, g",
	"  enter          stacks of a line, the whole of what is cut; up, down scroll",
	"  /              filter: a word, or live>1g and file~model.py",
	"                 live blocks peak growth (< > =), ! in front: the others",
	"                 file name function holder category source (= ~)",
	"  space, f       pause",
	"  left, right    a screen back, forward; [ and ] ten of them; end: now",
	"                 the table is that of then",
	"  b, r           count the change from this screen, from the first one",
	"  w              write the table of this screen to a file",
	"  esc            back", "",
	"  PEAK           what a row had when the device's memory was at its peak",
	"  PER STEP       growth that is proved",
	"  any key        back to the screen",
}
