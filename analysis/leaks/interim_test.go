// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
)

// TestInterim: growth of a job that trains is no finding if the recording has nothing but a short evaluation.
func TestInterim(t *testing.T) {
	frames := map[event.StackID]string{1: "at::native::softmax", 2: "torch::autograd::Engine::evaluate_function"}
	seen := func(ids ...event.StackID) *detector {
		d := newDetector(nil, func(id event.StackID) *event.Stack {
			if id == 3 { // not resolved
				return nil
			}
			return &event.Stack{Frames: []event.Frame{{Kind: event.FrameNative, Func: frames[id]}}}
		})
		for _, id := range ids {
			d.source(id)
		}
		return d
	}
	loader := Steps{Source: steps.SourceLoader, Count: 100, Period: 1e9}
	for name, c := range map[string]struct {
		d         *detector
		steps     Steps
		optimizer bool
		interim   bool
	}{
		"an evaluation":              {seen(1, 3), loader, true, true},
		"of a server":                {seen(1), loader, false, false},
		"beside a backward pass":     {seen(1, 2), loader, true, false},
		"with steps of an optimizer": {seen(1), Steps{Source: steps.SourceOptimizer, Count: 100, Period: 1e9}, true, false},
		"with steps of backward":     {seen(1), Steps{Source: steps.SourceBackward, Count: 100, Period: 1e9}, true, false},
		"for ten minutes":            {seen(1), Steps{Source: steps.SourceLoader, Count: 600, Period: 1e9}, true, false},
	} {
		r := &Report{Steps: c.steps, Findings: []Finding{{Line: 1}, {Line: 2}}}
		r.interim(c.d, &Options{Optimizer: c.optimizer})
		require.Equal(t, c.interim, r.Interim, name)
		require.Len(t, r.Suspects, map[bool]int{true: 2}[c.interim], name)
		require.Len(t, r.Findings, map[bool]int{false: 2}[c.interim], name)
		r.Steps.Count = MinSteps
		require.Equal(t, map[bool]Verdict{true: Unclear, false: Growing}[c.interim], verdictOf(r, false), name)
	}
	known := false
	late := newDetector(nil, func(event.StackID) *event.Stack {
		if !known {
			return nil
		}
		return &event.Stack{Frames: []event.Frame{{Kind: event.FrameNative, Func: frames[2]}}}
	})
	late.source(2)
	require.False(t, late.trains(steps.SourceLoader))
	known = true
	require.True(t, late.trains(steps.SourceLoader), "its frames became known later")
	r := &Report{Steps: loader}
	r.interim(seen(1), &Options{Optimizer: true})
	require.False(t, r.Interim, "nothing grows")
}

// TestKeepsGraphs: what graphs of autograd hold is no model that is loaded.
func TestKeepsGraphs(t *testing.T) {
	graph := Holder{Site: "a.py:3 f", Name: "h.grad_fn …", Bytes: 60}
	older := Holder{Site: stacks.BeforeAttach, Name: "model.*", Bytes: 500}
	for name, c := range map[string]struct {
		all  []Holder
		want bool
	}{
		"a graph":        {[]Holder{graph, older}, true},
		"of no variable": {[]Holder{{Site: "a.py:3 f", Name: "C++ AddBackward0 …", Bytes: 6}}, true},
		"half":           {[]Holder{graph, {Site: "a.py:4 f", Name: "x", Bytes: 60}}, true},
		"less":           {[]Holder{graph, {Site: "a.py:4 f", Name: "x", Bytes: 61}}, false},
		"only older":     {[]Holder{{Site: stacks.BeforeAttach, Name: "h.grad_fn", Bytes: 5}}, false},
		"not read":       {nil, false},
	} {
		require.Equal(t, c.want, keepsGraphs(c.all), name)
	}
}
