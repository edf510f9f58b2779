// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
)

// TestUsualEnd: where blocks of the same line are freed in the backward pass as a rule, those that stay are a
// tensor that the program keeps.
func TestUsualEnd(t *testing.T) {
	run := func(usual, odd string) leaks.Finding {
		j := newJob()
		for i := range 60 {
			j.Pass(input)
			activation := j.Alloc(forward, 3000)
			before := usual
			if i%20 == 7 { // one in twenty is freed elsewhere
				before = odd
			}
			j.Pass(before)
			j.Free(activation)
			j.Pass(before)
			j.Pass(backward, adam)
			if i > 20 && i%2 == 0 {
				j.Alloc(forward, 3000)
			}
		}
		got := j.find(t, nil)
		require.Len(t, got.Findings, 1)
		require.Equal(t, phases.Forward, got.Findings[0].Phase)
		return got.Findings[0]
	}
	f := run(backward, forward)
	require.Equal(t, phases.Backward, f.UsualEnd)
	require.Contains(t, f.Advice(), "a tensor of the forward pass is kept")
	f = run(forward, forward)
	require.Empty(t, f.UsualEnd, "it is the phase that they are allocated in")
	require.Empty(t, f.Advice())
}

// TestAdvice is said only of what the figures prove.
func TestAdvice(t *testing.T) {
	kept := leaks.Finding{Kind: leaks.Leak, Layer: event.LayerAllocator, Blocks: 1, Requested: 4096, Phase: phases.Forward,
		UsualEnd: phases.Backward}
	for want, change := range map[string]func(f *leaks.Finding){
		"a tensor of the forward pass": func(*leaks.Finding) {},
		"the graph of this forward":    func(f *leaks.Finding) { f.Graph = true },
		"each block is one number":     func(f *leaks.Finding) { f.Blocks, f.Requested = 2, 16 },
		"a tensor":                     func(f *leaks.Finding) { f.Blocks, f.Requested = 2, 16.5 },

		"each tensor in losses keeps the graph of its step": func(f *leaks.Finding) { f.UsualEnd, f.Holder = "", "losses[0..741].grad_fn …" },
		"each tensor in kept keeps the graph": func(f *leaks.Finding) {
			f.UsualEnd, f.Holder = "",
				"a.py:1 main() local kept[*][0].grad_fn …"
		},
		"self.total carries the graph of all steps before": func(f *leaks.Finding) { f.UsualEnd, f.Holder = "", "self.total.grad_fn …" },
	} {
		f := kept
		change(&f)
		require.Contains(t, f.Advice(), want)
	}
	for name, change := range map[string]func(f *leaks.Finding){
		"no number of blocks":   func(f *leaks.Finding) { f.Blocks, f.Requested, f.UsualEnd = 0, 0, "" },
		"amounts that vary":     func(f *leaks.Finding) { f.Kind, f.Requested, f.UsualEnd = leaks.Growth, 4, "" },
		"freed elsewhere":       func(f *leaks.Finding) { f.UsualEnd = phases.Optimizer },
		"allocated elsewhere":   func(f *leaks.Finding) { f.Phase = phases.Optimizer },
		"not PyTorch's":         func(f *leaks.Finding) { f.Layer = event.LayerDevice },
		"where is not known":    func(f *leaks.Finding) { f.UsualEnd = "" },
		"held as it is":         func(f *leaks.Finding) { f.UsualEnd, f.Holder = "", "metrics[*]" },
		"requested not known":   func(f *leaks.Finding) { f.Requested, f.UsualEnd = math.NaN(), "" },
		"9 bytes in each block": func(f *leaks.Finding) { f.Requested, f.UsualEnd = 9, "" },
	} {
		f := kept
		change(&f)
		require.Empty(t, f.Advice(), name)
	}
}

// TestConfidence grows with the number of periods that were seen: of a leak each step, that of the steps since it began.
func TestConfidence(t *testing.T) {
	for steps, want := range map[int]leaks.Confidence{9: leaks.Low, 10: leaks.Medium, 19: leaks.Medium, 20: leaks.High} {
		j := newJob()
		for i := range 40 {
			j.Pass(input, forward, backward, adam)
			if i >= 40-steps {
				j.Alloc(kept, 1000)
			}
		}
		j.Pass(input, forward, backward, adam) // ends the step of the last
		got := j.find(t, nil)
		require.Len(t, got.Findings, 1, steps)
		require.Equal(t, want, got.Findings[0].Confidence, "%d steps", steps)
	}
}

// TestNewestHolder: of earlier readings, the latest that names something counts, and blocks that came later are newer. The line is held as
// in the reading of the end where that has a name.
func TestNewestHolder(t *testing.T) {
	j := train(func(j *job, _ int) { j.Alloc(kept, 1000) })
	row := func(name string, n uint64) leaks.Holder {
		return leaks.Holder{Site: "train.py:30 main", Name: name, Bytes: 1024 * n, Blocks: n}
	}
	other := leaks.Holder{Site: "train.py:20 main", Name: "batch", Bytes: 1 << 30, Blocks: 1000}
	live := j.find(t, nil).Findings[0].LiveBlocks
	f := j.find(t, &leaks.Options{Earlier: [][]leaks.Holder{
		{row("first", 10)}, {row("second", 20), other}, {row("[holder not known]", 30)}, {other},
	}}).Findings[0]
	require.Equal(t, "second", f.Holder)
	require.Equal(t, live-20, f.Newer)
	f = j.find(t, &leaks.Options{Earlier: [][]leaks.Holder{{row("first", 10)}}, Holders: []leaks.Holder{row("last", 40)}}).Findings[0]
	require.Equal(t, "last", f.Holder)
	require.Zero(t, f.Newer)
}

// TestSlopes: on a Mac, what a step asks for, the buffers that it gets and the heaps that these are in rise by different bytes.
func TestSlopes(t *testing.T) {
	const mps = event.DeviceType(13)
	require.True(t, mps.MPS())
	j := newJob()
	var reserved uint64 = 1 << 30
	at := 0
	fill := func() {
		for ; at < len(j.Events); at++ {
			e := &j.Events[at]
			e.Device.Type, e.Reserved = mps, reserved
			if e.Kind == event.KindFree {
				e.Requested = e.Size // all that is freed was asked for in whole buffers
			}
		}
	}
	for i := 1; i <= 64; i++ {
		j.Pass(input, forward, backward, adam)
		fill()
		j.Alloc(kept, 1000)
		reserved += 4096
		fill()
		j.Alloc(kept, 1000)
		j.Events[len(j.Events)-1].Requested = event.Unknown // none is counted
		fill()
		j.Obtain(event.LayerDevice, driver, 1<<20)
		fill()
	}
	got := j.find(t, nil)
	require.NotNil(t, got.Steps.Slopes)
	require.InDelta(t, 1000, got.Steps.Slopes.Requested, 1)
	require.InDelta(t, 2048, got.Steps.Slopes.Blocks, 1)
	require.InDelta(t, 4096, got.Steps.Slopes.Reserved, 1)

	falls := newJob() // the heaps of a job that frees shrink
	at, j, reserved = 0, falls, 1<<30
	for range 64 {
		j.Pass(input, forward, backward, adam)
		reserved -= 8192
		fill()
	}
	got = j.find(t, nil)
	require.NotNil(t, got.Steps.Slopes)
	require.InDelta(t, -8192, got.Steps.Slopes.Reserved, 1)
	require.InDelta(t, 0, got.Steps.Slopes.Requested, 0)
	require.Nil(t, train(func(*job, int) {}).find(t, nil).Steps.Slopes, "there is no Mac")
}
