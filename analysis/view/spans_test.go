// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

func TestPhaseSpans(t *testing.T) {
	s := newStream(mlp+trained, head+trained, loader)
	for i, stack := range []event.StackID{3, 1, 2, 1, 3, 3, 1} { // at 10, 20, ...
		s.add(event.KindAlloc, stack, uint64(i+1)<<20, 100)
	}
	s.Events[3].TID = 2
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	span := func(tid uint32, p phases.Phase, from, to, n uint64) view.PhaseSpan {
		return view.PhaseSpan{PID: 1, TID: tid, Phase: p, From: from, To: to, Allocations: n, Bytes: 100 * n}
	}
	spans := func(from, to uint64, most int) ([]view.PhaseSpan, bool) {
		tl, err := trace.Timeline(&view.TimelineOptions{From: from, To: to, Phases: most})
		require.NoError(t, err)
		return tl.Phases, tl.MorePhases
	}
	all := []view.PhaseSpan{
		span(1, phases.Input, 10, 10, 1), span(1, phases.Forward, 20, 30, 2), span(1, phases.Input, 50, 60, 2),
		span(1, phases.Forward, 70, 70, 1), span(2, phases.Forward, 40, 40, 1),
	}
	got, more := spans(0, 100, 10)
	require.Equal(t, all, got)
	require.False(t, more)
	got, _ = spans(30, 50, 10)
	require.Equal(t, []view.PhaseSpan{span(1, phases.Forward, 30, 30, 1), span(1, phases.Input, 50, 50, 1),
		span(2, phases.Forward, 40, 40, 1)}, got)
	got, more = spans(0, 100, 2)
	require.Equal(t, all[:2], got)
	require.True(t, more)
}
