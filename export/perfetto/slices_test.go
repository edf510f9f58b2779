// SPDX-License-Identifier: Apache-2.0

package perfetto_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/perfetto"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestStepsAndPhases: Perfetto's bindings read the slices of steps and of phases by thread, each on its track, with their figures.
func TestStepsAndPhases(t *testing.T) {
	trace := newTrace(t, eventtest.Random(1, 500))
	tl, err := trace.Timeline(nil)
	require.NoError(t, err)
	first := trace.First()
	span := func(tid uint32, p phases.Phase, from, to uint64) view.PhaseSpan {
		return view.PhaseSpan{PID: eventtest.PID, TID: tid, Phase: p, From: first + from, To: first + to, Allocations: from + 1, Bytes: 512}
	}
	var buf bytes.Buffer
	require.NoError(t, perfetto.Write(&buf, perfetto.Input{
		Timeline: tl, Trace: trace, PID: eventtest.PID,
		Steps:  []view.StepSpan{{Number: 3, From: first, To: first + 99}, {Number: 4, From: first + 100, To: first + 150}},
		Phases: []view.PhaseSpan{span(7, phases.Forward, 0, 10), span(7, phases.Backward, 10, 10), span(8, phases.Forward, 5, 20)},
	}))
	type slice struct {
		track, name string
		from, to    uint64
		step, n     uint64
	}
	var got []slice
	for _, x := range decode(t, buf.Bytes()).Slices {
		track := x.Track[len(x.Track)-1].(string)
		got = append(got, slice{track, x.Name, x.Time - first, x.End - first, x.Values["step"], x.Values["allocations"]})
	}
	require.Subset(t, got, []slice{
		{"steps", "step 3", 0, 100, 3, 0}, {"steps", "step 4", 100, 151, 4, 0},
		{"phases of thread 7", "forward", 0, 10, 0, 1}, {"phases of thread 7", "backward", 10, 10, 0, 11},
		{"phases of thread 8", "forward", 5, 20, 0, 6},
	})
}
