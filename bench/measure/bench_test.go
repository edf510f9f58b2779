// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

func TestQuantile(t *testing.T) {
	for name, c := range map[string]struct {
		values series
		q      float64
		want   float64
	}{
		"none":       {nil, 0.5, 0},
		"one":        {series{7}, 0.1, 7},
		"odd":        {series{9, 1, 5}, 0.5, 5},
		"even":       {series{4, 1, 3, 2}, 0.5, 2.5},
		"least":      {series{3, 1, 2}, 0, 1},
		"largest":    {series{3, 1, 2}, 1, 3},
		"in between": {series{10, 20}, 0.1, 11},
	} {
		t.Run(name, func(t *testing.T) { require.InDelta(t, c.want, c.values.quantile(c.q), 1e-9) })
	}
}

func TestText(t *testing.T) {
	require.Equal(t, "-", series(nil).text("%.1f"))
	require.Equal(t, "2.0", series{2}.text("%.1f"))
	require.Equal(t, "2.0 (1.0 to 9.0)", series{9, 1, 2}.text("%.1f"))
}

func TestParseBatch(t *testing.T) {
	s, ok, err := parseBatch([]byte("batch 3 median_ns 30 mean_ns 56.5"))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, sample{ns: 56.5, hits: 1}, s)
	for _, line := range []string{"", "READY 12", "batch 1 median_ns 2 mean_us 3"} {
		_, ok, err := parseBatch([]byte(line))
		require.NoError(t, err, line)
		require.False(t, ok, line)
	}
	_, _, err = parseBatch([]byte("batch 3 median_ns 30 mean_ns x"))
	require.Error(t, err)
}

func TestTotalParser(t *testing.T) {
	var p totalParser
	var got []sample
	for _, line := range []string{
		"READY 12", "total 1000 ns 5000000 cpu_ns 100", "total 1000 ns 5500000 cpu_ns 200", "total 3000 ns 6000000 cpu_ns 2000100",
		"total 3000 ns",
	} {
		s, ok, err := p.parse([]byte(line))
		require.NoError(t, err)
		if ok {
			got = append(got, s)
		}
	}
	require.Equal(t, []sample{{ns: 500, cpu: 1000, hits: 1}}, got)
	require.InDelta(t, 2, rate(figure{cost: cost{ns: got[0].ns}}), 1e-9, "millions a second")
	_, _, err := p.parse([]byte("total x ns 1 cpu_ns 2"))
	require.Error(t, err)
}

func TestStepParser(t *testing.T) {
	var p stepParser
	var got []sample
	for _, line := range []string{
		`{"step": 1, "device": 0, "num_alloc": 100, "num_free": 40, "boottime_ns": 1000000, "cpu_ns": 500}`,
		`{"step": 1, "device": 1, "num_alloc": 7, "num_free": 7, "boottime_ns": 1000001, "cpu_ns": 501}`,
		`{"step": 2, "device": 0, "num_alloc": 110, "num_free": 52, "boottime_ns": 3000000, "cpu_ns": 1500}`,
	} {
		s, ok, err := p.parse([]byte(line))
		require.NoError(t, err)
		if ok {
			got = append(got, s)
		}
	}
	require.Equal(t, []sample{{ns: 2000000, cpu: 1000, hits: 22}}, got)
	_, _, err := p.parse([]byte("{"))
	require.Error(t, err)
}

// TestFigures uses windows whose differences are known: a step of 1 ms with 100 hits, 0.5 µs for the trap, 2 µs for the rest.
func TestFigures(t *testing.T) {
	bare := cost{ns: 1e6, cpu: 0.9e6}
	at := func(us float64) figure {
		return figure{cost: cost{ns: 1e6 + us*1000, cpu: 0.9e6 + us*1000}, bare: bare, hits: 100}
	}
	r := result{workload: findWorkload("gpt")}
	for range 3 {
		r.rounds = append(r.rounds, map[string]figure{untraced: at(0), empty: at(50), traced: at(250)})
	}
	require.InDelta(t, 0.5, r.of(empty, perHit).median(), 1e-6)
	require.InDelta(t, 2, r.beyond(traced, empty).median(), 1e-6)
	require.InDelta(t, 1.25, r.of(traced, slowdown).median(), 1e-6)
	require.InDelta(t, 5, r.dearer(traced, empty).median(), 1e-6)
	require.Nil(t, r.beyond(freeStacks, empty), "a mode that was not measured")
	require.Nil(t, r.dearer(freeStacks, empty), "likewise")
	require.Empty(t, r.of(freeStacks, slowdown), "likewise")
	require.Empty(t, r.added(traced, recorderAll), "likewise")
	slower := cost{ns: 1.4e6, cpu: 1.3e6} // the machine became slower between them
	r.rounds = append(r.rounds, map[string]figure{traced: at(500), recorderAll: {cost: cost{ns: 2.4e6}, bare: slower}})
	require.Equal(t, series{0.5}, r.added(traced, recorderAll))

	windows := []figure{{cost: cost{1, 30}, hits: 7}, {cost: cost{9, 10}, hits: 7}, {cost: cost{2, 20}, hits: 7}}
	require.Equal(t, cost{5, 20}, between(windows[0], windows[1]))
	require.Equal(t, figure{cost: cost{2, 20}, bare: cost{2, 20}, hits: 7}, together(windows))
}

func TestWorkloadNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range workloads {
		require.False(t, seen[workloads[i].name], workloads[i].name)
		seen[workloads[i].name] = true
		require.Same(t, &workloads[i], findWorkload(workloads[i].name))
	}
	require.Nil(t, findWorkload(""))
}

// TestRun measures for real, as briefly as it can.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and traces a program")
	}
	require.Zero(t, os.Geteuid(), "root is needed to attach")
	var out bytes.Buffer
	require.NoError(t, Run(Options{Rounds: 1, Window: 300 * time.Millisecond, Only: "hotloop20"}, &out))
	text := out.String()
	rows := regexp.MustCompile(`(?m)^\| hot loop in C, 20 calls deep \|(.*)\|$`).FindAllStringSubmatch(text, -1)
	require.Len(t, rows, 3, text)
	cost := cells(t, rows[0][1])
	require.Equal(t, "1", cost[0])
	require.Regexp(t, `^2\d \+ 0$`, cost[1], "20 calls, main and what is around it")
	for _, c := range cost[2:4] { // how much is not for a test to say: differences of times, beside other tests
		number(t, c)
	}
	clock := cells(t, rows[1][1])
	require.Greater(t, number(t, clock[1]), number(t, clock[0]), "gputrace's program takes longer than the empty one")
	load := cells(t, rows[2][1])
	require.Greater(t, number(t, load[0]), 1000.0, "events")
	require.Equal(t, []string{"0", "100.000 %", "0.000 %", "-"}, load[1:5], "lost, complete, raw, partial")
}

// TestRunCores measures two threads, as briefly as it can.
func TestRunCores(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and traces a program")
	}
	require.Zero(t, os.Geteuid(), "root is needed to attach")
	e, err := newEnvironment()
	require.NoError(t, err)
	defer e.close()
	results, err := measureCores(e, Options{Rounds: 1, Window: time.Second, Threads: []int{2}})
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, printReport(&out, report{cores: results}))
	row := regexp.MustCompile(`(?m)^\| 2 \|(.*)\|$`).FindStringSubmatch(out.String())
	require.NotNil(t, row, out.String())
	cells := cells(t, row[1])
	require.Len(t, cells, 7)
	for _, c := range cells[:6] {
		number(t, c)
	}
	require.Greater(t, number(t, cells[1]), 0.0, "events a second")
	require.Regexp(t, `^[0-9.]+ %$`, cells[6])
}

// TestShares: what is not complete is counted by its reason.
func TestShares(t *testing.T) {
	l := load{stacks: 8, ends: map[event.StackStatus]uint64{
		event.StatusOK: 4, event.StatusUnwound: 2, event.StatusGuessed: 1, event.StatusTooDeep: 1,
	}}
	complete, raw, partial := l.shares()
	require.Equal(t, []string{"75.000 %", "25.000 %"}, []string{complete, raw})
	require.Equal(t, event.StatusTooDeep.String()+" 12.500 %, "+event.StatusGuessed.String()+" 12.500 %", partial)
	complete, raw, partial = (&load{}).shares()
	require.Equal(t, []string{"-", "-", "-"}, []string{complete, raw, partial})
}

func cells(t *testing.T, row string) []string {
	t.Helper()
	out := strings.Split(row, "|")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return v
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	table{{"a", "b"}, {"1", "2"}}.print(&out)
	require.Equal(t, "| a | b |\n|---|---|\n| 1 | 2 |\n\n", out.String())
}
