// SPDX-License-Identifier: Apache-2.0

package chrome_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/chrome"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestStepsAndPhases: Python reads the steps and the phases of each thread, with their times and figures.
func TestStepsAndPhases(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 500), nil)
	require.NoError(t, err)
	tl, err := trace.Timeline(nil)
	require.NoError(t, err)
	first := trace.First()
	var buf bytes.Buffer
	require.NoError(t, chrome.Write(&buf, chrome.Input{
		Timeline: tl, Trace: trace, PID: eventtest.PID, Started: time.Unix(0, started), StartedBoot: boot,
		Steps: []view.StepSpan{{Number: 3, From: first, To: first + 99}, {Number: 4, From: first + 100, To: first + 150}},
		Phases: []view.PhaseSpan{
			{PID: eventtest.PID, TID: 7, Phase: phases.Forward, From: first, To: first + 10, Allocations: 2, Bytes: 512},
			{PID: eventtest.PID, TID: 8, Phase: phases.Backward, From: first + 5, To: first + 5, Allocations: 1, Bytes: 1024},
		},
	}))
	type slice struct {
		cat, name       string
		tid             uint32
		from, to, count uint64
	}
	var got []slice
	for _, x := range decode(t, buf.Bytes()).Events {
		switch x.Cat {
		case "gputrace steps":
			got = append(got, slice{x.Cat, x.Name, x.TID, x.Time - first, x.End - first, number(x.Args["step"])})
		case "gputrace phases":
			got = append(got, slice{x.Cat, x.Name, x.TID, x.Time - first, x.End - first, number(x.Args["bytes"])})
		}
	}
	require.ElementsMatch(t, []slice{
		{"gputrace steps", "step 3", eventtest.PID, 0, 100, 3}, {"gputrace steps", "step 4", eventtest.PID, 100, 151, 4},
		{"gputrace phases", "forward", 7, 0, 10, 512}, {"gputrace phases", "backward", 8, 5, 5, 1024},
	}, got)
}
