// SPDX-License-Identifier: Apache-2.0

package cpubudget

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/figures"
)

// load is a made process: hits of an interval, and what a hit costs with and without a stack, in CPU seconds.
type load struct {
	hits, bare, stack float64
}

func (l load) use(d figures.Detail) Use {
	share := [figures.Details]float64{1, 1.0 / 4, 1.0 / 16, 0}[d]
	return Use{l.hits * (l.bare + share*l.stack), l.hits}
}

var (
	idle  = load{0, 150e-9, 350e-9}
	quiet = load{100, 150e-9, 350e-9}     // 0.005 %
	fits1 = load{15_000, 150e-9, 350e-9}  // 0.75 %
	over1 = load{30_000, 150e-9, 350e-9}  // 1.5 %, 0.71 % with a quarter of the stacks
	heavy = load{100_000, 150e-9, 350e-9} // 5 %, and 1.5 % without stacks
	slow  = load{200, 100e-6, 100e-6}     // 4 %, in windows of some intervals
)

// details steps one process through loads, and returns the details in letters: f, q, s, n.
func details(l Limits, loads ...load) string {
	var out strings.Builder
	p := &Process{}
	for _, w := range loads {
		p.Add(w.use(p.Detail()))
		l.Step([]*Process{p})
		out.WriteByte(p.Detail().String()[0])
	}
	return out.String()
}

func times(n int, w load) []load {
	out := make([]load, n)
	for i := range out {
		out[i] = w
	}
	return out
}

func join(parts ...[]load) []load {
	var out []load
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// TestLoads steps one process through loads over time, with a budget of 1 % of a CPU.
func TestLoads(t *testing.T) {
	for name, c := range map[string]struct {
		loads []load
		want  string
	}{
		"within the budget":              {times(5, fits1), "fffff"},
		"a single interval":              {join(times(3, fits1), times(1, heavy), times(3, fits1)), "fffffff"},
		"a quarter is enough":            {times(15, over1), "fqqqqqqqqqqqqqq"},
		"never enough":                   {times(8, heavy), "fqsnnnnn"},
		"few hits, each dear":            {times(20, slow), "fffffffff" + "qqqqq" + "sssss" + "n"},
		"it comes back when it is quiet": {join(times(4, heavy), times(12, quiet)), "fqsn" + "nnnnnnnnnf" + "ff"},
		"it comes back when it is idle":  {join(times(4, heavy), times(12, idle)), "fqsn" + "nnnnnnnnnf" + "ff"},
		"a part of it":                   {join(times(4, heavy), times(12, over1)), "fqsn" + "nnnnnnnq" + "qqqq"},
		"quiet not for long enough": {
			join(times(4, heavy), times(7, fits1), times(1, heavy), times(7, fits1)), "fqsn" + strings.Repeat("n", 15),
		},
		"twice as long after a wrong turn": {
			join(times(4, heavy), times(8, fits1), times(4, heavy), times(16, fits1)),
			"fqsn" + "nnnnnnnf" + "fqsn" + strings.Repeat("n", 15) + "f",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, details(Limits{Process: 0.01}, c.loads...))
		})
	}
}

// TestNoLimit never reduces anything.
func TestNoLimit(t *testing.T) {
	require.Equal(t, "ffffff", details(Limits{}, times(6, heavy)...))
}

// TestCalmIsBounded turns the load on whenever the stacks are back: the pauses grow, up to a limit.
func TestCalmIsBounded(t *testing.T) {
	p, l := &Process{}, Limits{Process: 0.01}
	var pauses []int
	for range 10 {
		for p.Detail() != figures.NoDetail {
			p.Add(heavy.use(p.Detail()))
			l.Step([]*Process{p})
		}
		n := 0
		for ; p.Detail() != figures.FullDetail; n++ {
			p.Add(fits1.use(p.Detail()))
			l.Step([]*Process{p})
		}
		pauses = append(pauses, n)
	}
	require.Equal(t, []int{8, 16, 32, 64, 128, 256, 512, 512, 512, 512}, pauses)
	for range 3000 {
		p.Add(fits1.use(p.Detail()))
		l.Step([]*Process{p})
	}
	for range 4 {
		p.Add(heavy.use(p.Detail()))
		l.Step([]*Process{p})
	}
	n := 0
	for ; p.Detail() != figures.FullDetail; n++ {
		p.Add(fits1.use(p.Detail()))
		l.Step([]*Process{p})
	}
	require.Equal(t, firstCalm, n, "after a long time at full detail")
}

// TestNode has processes share a budget of 2 % of a CPU: those that use most pay, and detail comes back one process after the other.
func TestNode(t *testing.T) {
	l := Limits{Process: 0.02, Node: 0.02}
	step := func(all []*Process, loads ...load) (out string) {
		for i, p := range all {
			p.Add(loads[i].use(p.Detail()))
		}
		l.Step(all)
		for _, p := range all {
			out += p.Detail().String()[:1]
		}
		return out
	}
	all := []*Process{{}, {}, {}}
	require.Equal(t, "fff", step(all, quiet, fits1, over1))
	require.Equal(t, "fqq", step(all, quiet, fits1, over1), "2.25 %: those above a third of the budget")
	require.Equal(t, "fqq", step(all, quiet, fits1, over1), "1.07 %")
	small := load{8_000, 150e-9, 350e-9} // 0.4 %
	many := []*Process{{}, {}, {}, {}, {}, {}}
	require.Equal(t, "ffffff", step(many, small, small, small, small, small, small))
	require.Equal(t, "qqqqqq", step(many, small, small, small, small, small, small), "2.4 %, each 0.4 %")
	got := ""
	for range 2 * firstCalm {
		got = step(many, small, small, small, small, small, small)
	}
	require.Equal(t, 1, strings.Count(got, "f"), "as many as three quarters of the budget hold: %s", got)
}

// TestNodeWithoutShares reduces the largest process when none is above an equal share: others, which are reduced already, use the budget.
func TestNodeWithoutShares(t *testing.T) {
	l := Limits{Node: 0.02}
	bare := load{200_000, 150e-9, 0} // 3 % whatever is left out
	all := []*Process{{detail: figures.NoDetail}, {}, {}}
	loads := []load{bare, {2000, 150e-9, 350e-9}, {4000, 150e-9, 350e-9}}
	for range 3 {
		for i, p := range all {
			p.Add(loads[i].use(p.Detail()))
		}
		l.Step(all)
	}
	require.Equal(t, figures.FullDetail, all[1].Detail())
	require.Greater(t, all[2].Detail(), figures.FullDetail)
}
