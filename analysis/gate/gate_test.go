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
	return view.Row{Name: name, File: "/a/" + name, Line: 1, Func: "main", Layer: "torch", Device: "cuda:0", Bytes: mibs * mib, Blocks: 1, Category: category}
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
		{"a small line", []view.Row{line("a.py", 100, "activation"), line("b.py", 22, "parameter")}, true, gate.Failed, []string{"b.py", "parameter"}},
		{"without categories", []view.Row{line("a.py", 100, ""), line("b.py", 22, "")}, false, gate.Failed, []string{"b.py"}},
		{"another category", []view.Row{line("a.py", 100, "activation"), line("b.py", 20, "gradient")}, true, gate.Failed, []string{"gradient"}},
		{"all of it", []view.Row{line("a.py", 130, "activation"), line("b.py", 20, "parameter")}, true, gate.Failed, []string{gate.AllDevices, "a.py", "activation"}},
		{"a new line", []view.Row{line("a.py", 100, "activation"), line("b.py", 18, "parameter"), line("c.py", 2, "parameter")}, true, gate.Failed, []string{"c.py"}},
		{"nothing", nil, true, gate.Unknown, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := gate.Judge(&gate.Rules{Baseline: true, Tolerance: 0.05}, &gate.Input{Baseline: base, Peak: tt.after, Categories: tt.categories}).Results[0]
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
		return view.Peak{Layer: event.LayerTorch, Device: event.Device{Type: event.DeviceCUDA, Index: n}, Bytes: bytes}
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
