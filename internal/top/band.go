// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/gputrace/gputrace/analysis/phases"
)

// leastBand is how many columns one phase must have for the row of phases to be drawn: its mark, a letter and a line. Where none has
// them, nothing could be read from the row.
const leastBand = 3

// phaseStyles are the colours of the page: blue, orange, green. Other phases have none.
var phaseStyles = map[string]lipgloss.Style{
	string(phases.Forward):   lipgloss.NewStyle().Foreground(lipgloss.Blue),
	string(phases.Backward):  lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	string(phases.Optimizer): lipgloss.NewStyle().Foreground(lipgloss.Green),
}

// shortPhases are names for bands that have no room for the whole one. Shorter bands have its first letter.
var shortPhases = map[string]string{
	string(phases.Setup): "set", string(phases.Input): "in", string(phases.Forward): "fwd", string(phases.Backward): "bwd",
	string(phases.Optimizer): "opt", string(phases.ZeroGrad): "zero", string(phases.Evaluation): "eval",
}

// phases is the row of phases below the curve; empty where none is known, or none is wide enough to be seen.
func (m *Model) phases(width int) string {
	edges := m.edges(width)
	if m.longest() < (leastBand-1)*narrowest(edges) { // half of a column at each of its ends can be another's
		return ""
	}
	spans := m.spans()
	cells, widest := columnsOf(spans, edges)
	if widest < leastBand {
		return ""
	}
	var line strings.Builder
	for c, end := 0, 0; c < width; c = end {
		for end = c + 1; end < width && cells[end] == cells[c]; end++ {
		}
		switch cells[c] {
		case noSpan:
			line.WriteString(strings.Repeat(" ", end-c))
		case shortSpans:
			line.WriteString(styleDim.Render(strings.Repeat("·", end-c)))
		default:
			s := &spans[cells[c]]
			style, ok := phaseStyles[s.Phase]
			if !ok {
				style = styleDim
			}
			line.WriteString(style.Render(band(s.Phase, end-c, s.From >= 0)))
		}
	}
	return fmt.Sprintf("%*s ", axisWidth-1, "phases") + line.String()
}

// band is a phase of so many columns, with as much of its name as fits. begins: it has a mark in front, as it did
// not begin before the curve.
func band(phase string, width int, begins bool) string {
	out := ""
	if begins && width > 1 {
		out = "┃"
	}
	room := width - len([]rune(out))
	for _, name := range []string{phase, shortPhases[phase], phase[:min(1, len(phase))]} {
		if name != "" && len(name) <= room {
			out, room = out+name, room-len(name)
			break
		}
	}
	return out + strings.Repeat("━", room)
}

// longest is how long the longest phase of all screens takes, seconds: most jobs have none that is wide enough, and that is cheap to see.
func (m *Model) longest() float64 {
	out := 0.0
	for _, h := range m.history {
		for i := range h.Phases {
			out = max(out, h.Phases[i].To-h.Phases[i].From)
		}
	}
	return out
}

// narrowest is the least width of a column that has one.
func narrowest(edges []float64) float64 {
	out := math.Inf(1)
	for c := range edges[1:] {
		if wide := edges[c+1] - edges[c]; wide > 0 {
			out = min(out, wide)
		}
	}
	return out
}

// sameBegin is how far the beginning of a phase can be from that in the screen before, seconds.
const sameBegin = 1e-3

// spans are the phases of all screens, in seconds since the first screen. One that goes on is in several, each time with a later end.
func (m *Model) spans() []PhaseSpan {
	var out []PhaseSpan
	for _, h := range m.history {
		shift := h.Time.Sub(m.history[0].Time).Seconds() - h.Elapsed
		for _, s := range h.Phases {
			s.From, s.To = s.From+shift, s.To+shift
			if n := len(out); n > 0 && out[n-1].Phase == s.Phase && math.Abs(out[n-1].From-s.From) < sameBegin {
				out[n-1].To = s.To
			} else {
				out = append(out, s)
			}
		}
	}
	return out
}

// edges are where the columns of the curve begin, in seconds since the first screen, and where the last one ends. What is before the first
// screen has no width.
func (m *Model) edges(width int) []float64 {
	out := make([]float64, width+1)
	for c := range width {
		if i := m.lastIn(c, width); i >= 0 {
			out[c+1] = m.history[i].Time.Sub(m.history[0].Time).Seconds()
		}
	}
	return out
}

// Values of a column that are not the index of a span.
const (
	noSpan     = -1
	shortSpans = -2 // all that is in it is in no column
)

// columnsOf finds the span of each column: the one that takes at least half of it. widest is how many columns one has at most.
func columnsOf(spans []PhaseSpan, edges []float64) (cells []int, widest int) {
	cells = make([]int, len(edges)-1)
	for c := range cells {
		cells[c] = noSpan
	}
	for i := range spans {
		from, to, own := max(0, spans[i].From), spans[i].To, 0
		first := sort.Search(len(cells), func(c int) bool { return edges[c+1] > from })
		if first == len(cells) || to < 0 {
			continue
		}
		for c := first; c < len(cells) && edges[c] < to; c++ {
			if cells[c] < 0 && 2*(min(to, edges[c+1])-max(from, edges[c])) >= edges[c+1]-edges[c] {
				cells[c] = i
				own++
			}
		}
		if own == 0 && cells[first] == noSpan {
			cells[first] = shortSpans
		}
		widest = max(widest, own)
	}
	return cells, widest
}
