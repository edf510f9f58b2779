// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
)

// slowStep is a step of a slow job: its phases, by the seconds at which they begin and end. Between them nothing is allocated.
var slowStep = []PhaseSpan{{"input", 0, 0.2}, {"forward", 0.2, 14}, {"backward", 14, 33}, {"optimizer", 34, 38}}

const slowSeconds = 40

// spansOf are the phases of a job from one time to another, as a screen has them: one that goes on is known up to its last allocation.
func spansOf(step []PhaseSpan, seconds, from, to float64) (out []PhaseSpan) {
	for begin := 0.0; begin < to; begin += seconds {
		for _, p := range step {
			if p.From, p.To = begin+p.From, min(begin+p.To, to); p.To > from && p.From < to {
				out = append(out, p)
			}
		}
	}
	return out
}

// withPhases are so many screens of a job, a second apart.
func withPhases(n int, step []PhaseSpan, seconds float64) *Model {
	m := NewModel(context.Background(), &screens{})
	for i := range n {
		s := made(i)
		s.StepCount = int(float64(i) / seconds)
		s.Phases = spansOf(step, seconds, float64(i-1), float64(i))
		m.Update(next{screen: s})
	}
	return m
}

func slow(n int) *Model { return withPhases(n, slowStep, slowSeconds) }

// phaseRow is the row of phases of so many columns, without its label.
func phaseRow(m *Model, width int) string {
	return strings.TrimPrefix(ansi.Strip(m.phases(width)), "    phases ")
}

// A band has as much of a name as fits; it begins with a mark where it has room and the phase begins there.
func TestBand(t *testing.T) {
	for _, row := range []struct {
		phase  string
		width  int
		begins bool
		want   string
	}{
		{"forward", 1, true, "f"}, {"forward", 2, true, "┃f"}, {"forward", 3, true, "┃f━"}, {"forward", 4, true, "┃fwd"},
		{"forward", 7, true, "┃fwd━━━"}, {"forward", 8, true, "┃forward"}, {"forward", 10, true, "┃forward━━"},
		{"forward", 7, false, "forward"}, {"backward", 5, false, "bwd━━"}, {"backward", 1, false, "b"},
		{"optimizer", 9, true, "┃opt━━━━━"}, {"zero_grad", 5, true, "┃zero"}, {"evaluation", 4, true, "┃e━━"}, {"evaluation", 5, true, "┃eval"},
		{"setup", 4, true, "┃set"}, {"input", 3, true, "┃in"}, {"new", 3, true, "┃n━"}, {"new", 4, true, "┃new"},
	} {
		got := band(row.phase, row.width, row.begins)
		require.Equal(t, row.want, got)
		require.Equal(t, row.width, ansi.StringWidth(got))
	}
}

// The row is there when a phase takes three columns: a column is two screens, or more where there are more than fit.
func TestPhasesAreSeen(t *testing.T) {
	pass := func(seconds float64) []PhaseSpan {
		return []PhaseSpan{{"forward", 0, seconds}, {"backward", seconds, 2 * seconds}}
	}
	require.Empty(t, (&Model{}).phases(50))
	require.Empty(t, withPhases(60, nil, 10).phases(50), "none is known")
	require.Empty(t, withPhases(60, pass(0.05), 0.1).phases(50), "a fast job")
	require.Empty(t, withPhases(60, pass(2), 4).phases(50), "as wide as a column")
	require.NotEmpty(t, withPhases(60, pass(6), 12).phases(50))
	require.Empty(t, withPhases(600, pass(6), 12).phases(50), "more screens than columns have room for")
	require.NotEmpty(t, withPhases(600, pass(36), 72).phases(50))
	mixed := []PhaseSpan{{"forward", 1, 1.5}, {"optimizer", 2, 2.1}, {"zero_grad", 5, 5.2}, {"backward", 7, 25}, {"forward", 25.5, 25.5},
		{"forward", 29.2, 29.3}}
	require.Equal(t, " · ·┃backward· ·", phaseRow(withPhases(32, mixed, 100), 16), "shorter than half a column: a dot")
}

// The row has the time of the curve above it and of the steps.
func TestPhasesInTime(t *testing.T) {
	require.Equal(t, "  ┃forward━━━━━━━┃backward━━━━", phaseRow(withPhases(57, []PhaseSpan{{"forward", 0, 30}, {"backward", 30.2, 90}}, 100),
		30))
	m := slow(47)
	const now = " ┃fwd━━━┃backward━┃o ┃f━"
	require.Equal(t, now, phaseRow(m, 24))
	press(m, "left", "left")
	require.Equal(t, 2, m.back)
	require.Equal(t, now, phaseRow(m, 24), "as the curve, it stays when one goes back")

	long := withPhases(300, []PhaseSpan{{"forward", 0, 290}, {"backward", 291, 2000}}, 5000)
	long.history = long.history[100:]
	require.Equal(t, "forward"+strings.Repeat("━", 41)+"┃b", phaseRow(long, 50), "it began before the curve")

	running := withPhases(41, []PhaseSpan{{"forward", 0, 30}}, 100)
	require.Equal(t, "┃forward━━━━━━━━    ", phaseRow(running, 20), "it has allocated nothing since")
	s := made(41)
	s.Phases = []PhaseSpan{{"forward", 0, 41}}
	running.Update(next{screen: s})
	require.Equal(t, "┃forward━━━━━━━━━━━━", phaseRow(running, 20), "it went on")

	again := withPhases(20, []PhaseSpan{{"forward", 0, 100}}, 100)
	for i := range 20 { // another recorder, which counts from its attach
		s := made(i)
		s.Time, s.Phases = s.Time.Add(20*time.Second), spansOf([]PhaseSpan{{"backward", 0, 100}}, 100, float64(i-1), float64(i))
		again.Update(next{screen: s})
	}
	require.Equal(t, "┃forward━━┃backward━", phaseRow(again, 20))
}

// Phases have the colours of the page, and the row takes a line of the curve, not of the table.
func TestPhasesOnScreen(t *testing.T) {
	m := slow(90)
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 24})
	text := m.draw()
	for phase, style := range phaseStyles {
		part, _, _ := strings.Cut(style.Render("┃"+phase[:1]), "\x1b[m")
		require.Contains(t, text, part)
	}
	lines := strings.Split(ansi.Strip(text), "\n")
	steps, band := headerHeight+m.chartHeight()-3, headerHeight+m.chartHeight()-2
	require.Contains(t, lines[steps], "steps")
	require.Contains(t, lines[band], "phases")
	require.Contains(t, lines[band+1], "now ▲")
	fast, _ := model(t, 90)
	fast.Update(tea.WindowSizeMsg{Width: 120, Height: 24})
	require.Equal(t, lines[band+2:band+4], strings.Split(ansi.Strip(fast.draw()), "\n")[band+2:band+4])
	require.Contains(t, lines[band+4], "train.py:41")
}
