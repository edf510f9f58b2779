// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/gate"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

const mib = 1 << 20

func line(name string, mibs int64, category string) view.Row {
	return view.Row{Name: name, File: "/a/" + name, Line: 1, Func: "main", Layer: "torch", Device: "cuda:0", Bytes: mibs * mib, Blocks: 1,
		Category: category}
}

// TestBaseline: a line, a category or all of it may have so much more, and what is less than a block's surplus does not count.
func TestBaseline(t *testing.T) {
	base := []view.Row{line("a.py", 100, "activation"), line("b.py", 20, "parameter")}
	tests := []struct {
		name       string
		after      []view.Row
		categories bool
		status     gate.Status
		found      []string
	}{
		{"the same", base, true, gate.Passed, nil},
		{"less", base[:1], true, gate.Passed, nil},
		{"as much more as is allowed", []view.Row{line("a.py", 105, "activation"), line("b.py", 21, "parameter")}, true, gate.Passed, nil},
		{"a small line", []view.Row{line("a.py", 100, "activation"), line("b.py", 22, "parameter")}, true, gate.Failed,
			[]string{"b.py", "parameter"}},
		{"without categories", []view.Row{line("a.py", 100, ""), line("b.py", 22, "")}, false, gate.Failed, []string{"b.py"}},
		{"another category", []view.Row{line("a.py", 100, "activation"), line("b.py", 20, "gradient")}, true, gate.Failed, []string{"gradient"}},
		{"all of it", []view.Row{line("a.py", 130, "activation"), line("b.py", 20, "parameter")}, true, gate.Failed,
			[]string{gate.AllDevices, "a.py", "activation"}},
		{"a new line", []view.Row{line("a.py", 100, "activation"), line("b.py", 18, "parameter"), line("c.py", 2, "parameter")}, true,
			gate.Failed, []string{"c.py"}},
		{"nothing", nil, true, gate.Unknown, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := gate.Judge(&gate.Rules{Baseline: true, Tolerance: 0.05},
				&gate.Input{Baseline: base, Peak: tt.after, Categories: tt.categories}).Results[0]
			require.Equal(t, tt.status, r.Status)
			var found []string
			for _, f := range r.Found {
				found = append(found, f.What+f.Line.Name)
			}
			require.Equal(t, tt.found, found)
		})
	}
}

// TestUnknownIsNotMet: a gate that saw nothing does not pass.
func TestUnknownIsNotMet(t *testing.T) {
	peak, growth := uint64(1), 0.0
	rules := &gate.Rules{MaxPeak: &peak, MaxGrowth: &growth, NoLeaks: true, NoOOM: true, Baseline: true}
	few := &leaks.Report{Verdict: leaks.Unclear, Steps: leaks.Steps{Count: 19, Source: "optimizer"}}
	r := gate.Judge(rules, &gate.Input{Leaks: few})
	var got []gate.Status
	for _, x := range r.Results {
		got = append(got, x.Status)
	}
	require.Equal(t, []gate.Status{gate.Unknown, gate.Unknown, gate.Unknown, gate.Passed, gate.Unknown}, got)
	require.False(t, r.Passed())
	require.False(t, (&gate.Check{}).Passed(), "no recording")

	r = gate.NotRecorded(rules, "a program")
	require.Len(t, r.Results, 5)
	for _, x := range r.Results {
		require.Equal(t, gate.Unknown, x.Status)
		require.True(t, math.IsNaN(x.By()))
	}
}

// TestPeaks: the device that is farthest above the limit is first, and those below are left out.
func TestPeaks(t *testing.T) {
	limit := uint64(100)
	device := func(n int8, bytes uint64) view.Peak {
		return view.Peak{Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA, Index: n}, Bytes: bytes}
	}
	r := gate.Judge(&gate.Rules{MaxPeak: &limit}, &gate.Input{Peaks: []view.Peak{device(0, 101), device(1, 100), device(2, 150)}}).Results[0]
	require.Equal(t, gate.Failed, r.Status)
	require.Len(t, r.Found, 2)
	require.Equal(t, "cuda:2", r.Found[0].What)
	require.InDelta(t, 50, r.By(), 0)
}

func TestCommand(t *testing.T) {
	require.Equal(t, gate.Failed, gate.OfCommand(1).Status)
	require.Equal(t, gate.Passed, gate.OfCommand(0).Status)
}

// TestGrowth: what grows by more than is allowed fails, each line with its bytes; what keeps within it passes, although it grows. Where
// requested bytes are not known, those of the blocks count.
func TestGrowth(t *testing.T) {
	finding := func(file string, requested, bytes float64) leaks.Finding {
		return leaks.Finding{File: "/a/" + file, Line: 7, Function: "main", Requested: requested, Bytes: bytes}
	}
	grown := &leaks.Report{
		Verdict: leaks.Growing, Steps: leaks.Steps{Count: 100, Source: "optimizer"},
		Findings: []leaks.Finding{finding("a.py", 300, 512), finding("b.py", math.NaN(), 100)},
	}
	steady := &leaks.Report{Verdict: leaks.Steady, Steps: leaks.Steps{Count: leaks.MinSteps, Source: "optimizer"}}
	for name, tt := range map[string]struct {
		limit         float64
		leaks         *leaks.Report
		growth, leak  gate.Status
		measured, all float64
	}{
		"more than is allowed": {399, grown, gate.Failed, gate.Failed, 400, 2},
		"as much as that":      {400, grown, gate.Passed, gate.Failed, 400, 2},
		"nothing":              {0, steady, gate.Passed, gate.Passed, 0, 0},
		"no steps": {0, &leaks.Report{Verdict: leaks.Steady, Steps: leaks.Steps{Count: 100}}, gate.Unknown, gate.Unknown,
			math.NaN(), math.NaN()},
		"few steps": {
			0, &leaks.Report{Verdict: leaks.OutOfMemory, Steps: leaks.Steps{Count: leaks.MinSteps - 1, Source: "optimizer"}},
			gate.Unknown, gate.Unknown, math.NaN(), math.NaN(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := &gate.Rules{MaxGrowth: &tt.limit, NoLeaks: true}
			require.True(t, rules.Any() && rules.NeedsSteps())
			r := gate.Judge(rules, &gate.Input{Name: "rank 0", Leaks: tt.leaks})
			require.Equal(t, "rank 0", r.Name)
			require.Equal(t, []gate.Name{gate.MaxGrowth, gate.NoLeaks}, []gate.Name{r.Results[0].Rule, r.Results[1].Rule})
			for i, want := range []struct {
				status          gate.Status
				bound, measured float64
			}{{tt.growth, tt.limit, tt.measured}, {tt.leak, 0, tt.all}} {
				got := &r.Results[i]
				require.Equal(t, want.status, got.Status)
				require.InDelta(t, want.bound, got.Bound, 0)
				if math.IsNaN(want.measured) {
					require.True(t, math.IsNaN(got.Measured))
				} else {
					require.InDelta(t, want.measured, got.Measured, 0)
				}
				require.Same(t, tt.leaks, got.Leaks)
				require.Len(t, got.Found, len(tt.leaks.Findings))
			}
			require.Equal(t, r.Results[0].Status == gate.Passed && r.Results[1].Status == gate.Passed, r.Passed())
			require.Equal(t, r.Passed(), (&gate.Check{Reports: []gate.Report{{}, r}}).Passed())
		})
	}
	r := gate.Judge(&gate.Rules{NoLeaks: true}, &gate.Input{Leaks: grown}).Results[0]
	require.Equal(t, gate.Found{
		Kind: gate.OfLine, Line: view.Call{Name: "a.py:7 main", Func: "main", File: "/a/a.py", Line: 7}, Measured: 300,
		Finding: &grown.Findings[0],
	}, r.Found[0])
	require.InDelta(t, 100, r.Found[1].Measured, 0)
	require.InDelta(t, 2, r.By(), 0)
}

// TestRefused: each request that was refused is found.
func TestRefused(t *testing.T) {
	refused := gate.Refused{Bytes: 5 * mib, Time: 9, Device: event.Device{Type: event.DeviceCUDA, Index: 1},
		Site: view.Call{Name: "a.py:1 main"}}
	rules := &gate.Rules{NoOOM: true}
	require.True(t, rules.Any())
	require.False(t, rules.NeedsSteps())
	r := gate.Judge(rules, &gate.Input{Refused: []gate.Refused{refused}}).Results[0]
	require.Equal(t, gate.Failed, r.Status)
	require.InDelta(t, 1, r.By(), 0)
	require.Equal(t, []gate.Found{{Kind: gate.OfRequest, What: "cuda:1", Line: refused.Site, Measured: 5 * mib, Time: 9}}, r.Found)
	require.False(t, (&gate.Rules{Tolerance: 1}).Any())
	r = gate.Judge(rules, &gate.Input{Refused: []gate.Refused{refused}, Skipped: 41}).Results[0]
	require.InDelta(t, 42, r.Measured, 0)
}

// TestPeakLine: the device that comes nearest to the limit is found where none exceeds it, with the line that has the most on it. Host
// memory is not the device's.
func TestPeakLine(t *testing.T) {
	limit := uint64(1000 * mib)
	other := line("c.py", 900, "")
	other.Device = "cuda:1"
	host := line("d.py", 900, "")
	host.Layer = "host"
	cuda := event.Device{Type: event.DeviceCUDA}
	in := &gate.Input{
		Peak: []view.Row{line("a.py", 100, ""), line("b.py", 60, ""), line("b.py", 60, ""), other, host},
		Peaks: []view.Peak{
			{Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA, Index: 2}, Bytes: 5 * mib},
			{Layer: event.LayerAllocator, Device: cuda, Bytes: 220 * mib, Time: 17}, {Layer: event.LayerHost, Device: cuda, Bytes: 2000 * mib},
		},
	}
	r := gate.Judge(&gate.Rules{MaxPeak: &limit}, in).Results[0]
	require.Equal(t, gate.Passed, r.Status)
	require.Zero(t, r.By())
	require.InDelta(t, 220*mib, r.Measured, 0)
	require.Equal(t, []gate.Found{{
		Kind: gate.OfDevice, What: "cuda:0", Line: view.Call{Name: "b.py", File: "/a/b.py", Line: 1, Func: "main"}, LineBytes: 120 * mib,
		Bound: 1000 * mib, Measured: 220 * mib, Time: 17,
	}}, r.Found)
	in.Peaks = in.Peaks[:1]
	require.Equal(t, view.Call{}, gate.Judge(&gate.Rules{MaxPeak: &limit}, in).Results[0].Found[0].Line,
		"nothing is known of this device's lines")
}

// TestBaselineShare: the measure is by how much of the baseline the peak is above it, and a figure is found with both of its sides.
func TestBaselineShare(t *testing.T) {
	in := &gate.Input{Baseline: []view.Row{line("a.py", 100, "")}, Peak: []view.Row{line("a.py", 80, ""), line("b.py", 45, "")}}
	r := gate.Judge(&gate.Rules{Baseline: true, Tolerance: 0.125}, in).Results[0]
	require.InDelta(t, 0.25, r.Measured, 1e-9)
	require.InDelta(t, 0.125, r.By(), 1e-9)
	require.Equal(t, []gate.Found{
		{Kind: gate.OfDevice, What: gate.AllDevices, Bound: 100 * mib, Measured: 125 * mib},
		{Kind: gate.OfLine, Line: view.Call{Name: "b.py", File: "/a/b.py", Line: 1, Func: "main"}, Measured: 45 * mib},
	}, r.Found)
}

// TestRules: which rules there are, and which need steps.
func TestRules(t *testing.T) {
	peak, growth := uint64(1), 0.0
	for _, c := range []struct {
		rules      gate.Rules
		any, steps bool
	}{
		{gate.Rules{}, false, false}, {gate.Rules{Tolerance: 0.1}, false, false}, {gate.Rules{MaxPeak: &peak}, true, false},
		{gate.Rules{MaxGrowth: &growth}, true, true}, {gate.Rules{NoLeaks: true}, true, true}, {gate.Rules{NoOOM: true}, true, false},
		{gate.Rules{Baseline: true}, true, false},
	} {
		require.Equal(t, c.any, c.rules.Any(), c.rules)
		require.Equal(t, c.steps, c.rules.NeedsSteps(), c.rules)
	}
}

// TestCheckPasses: a check passes when there is a recording and all pass.
func TestCheckPasses(t *testing.T) {
	passed := gate.Report{Results: []gate.Result{{Status: gate.Passed}}}
	failed := gate.Report{Results: []gate.Result{{Status: gate.Passed}, {Status: gate.Failed}}}
	require.True(t, (&gate.Check{Reports: []gate.Report{passed}}).Passed())
	require.True(t, (&gate.Check{Reports: []gate.Report{passed, passed}}).Passed())
	require.False(t, (&gate.Check{Reports: []gate.Report{passed, failed}}).Passed())
}

// TestOneFinding: one finding of any size breaks the rule that nothing grows, whatever the verdict is.
func TestOneFinding(t *testing.T) {
	r := &leaks.Report{Verdict: leaks.Unclear, Findings: make([]leaks.Finding, 1)}
	got := gate.Judge(&gate.Rules{NoLeaks: true}, &gate.Input{Leaks: r}).Results[0]
	require.Equal(t, gate.Failed, got.Status)
	require.InDelta(t, 1, got.Measured, 0)
}

// TestLeakTolerance: by default what leaks calls a note passes; with a tolerance each line counts by its bytes a step.
func TestLeakTolerance(t *testing.T) {
	f := func(requested float64) leaks.Finding { return leaks.Finding{Requested: requested} }
	r := &leaks.Report{Verdict: leaks.Steady, Notes: []leaks.Finding{f(10)}, Steps: leaks.Steps{Count: 100, Source: "optimizer"}}
	both := &leaks.Report{Verdict: leaks.Growing, Findings: []leaks.Finding{f(5000), f(2000)}, Notes: r.Notes, Steps: r.Steps}
	n := func(x float64) *float64 { return &x }
	for name, c := range map[string]struct {
		leaks *leaks.Report
		most  *float64
		lines int
	}{
		"a note":                       {r, nil, 0},
		"a note, and nothing may grow": {r, n(0), 1},
		"a note, within":               {r, n(10), 0},
		"leaks":                        {both, nil, 2},
		"one is within":                {both, n(2000), 1},
		"both are":                     {both, n(5000), 0},
		"nothing may grow":             {both, n(0), 3},
	} {
		got := gate.Judge(&gate.Rules{NoLeaks: true, LeakTolerance: c.most}, &gate.Input{Leaks: c.leaks}).Results[0]
		require.Len(t, got.Found, c.lines, name)
		require.InDelta(t, c.lines, got.Measured, 0, name)
		require.Equal(t, map[bool]gate.Status{true: gate.Passed, false: gate.Failed}[c.lines == 0], got.Status, name)
		require.Equal(t, c.most, got.LeakTolerance)
	}
	zero := 0.
	grown := gate.Judge(&gate.Rules{MaxGrowth: &zero}, &gate.Input{Leaks: r}).Results[0]
	require.Equal(t, gate.Failed, grown.Status, "a limit of growth knows no notes")
	require.InDelta(t, 10, grown.By(), 0)
}
