// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEventsOf reads the numbers of the screen that a session ends with, of all processes of a job.
func TestEventsOf(t *testing.T) {
	events, lost, err := eventsOf("  checked  486,726 events · 0 events lost · x\n  checked  1,000 events · 1,234 events lost\n")
	require.NoError(t, err)
	require.Equal(t, []uint64{487_726, 1234}, []uint64{events, lost})
	_, _, err = eventsOf("gputrace: no events")
	require.ErrorContains(t, err, "no number of events")
}

// TestGPURow: a program's own counters are compared where the recording has them too, and each difference is shown.
func TestGPURow(t *testing.T) {
	truth, err := truthOf("loading\nTRUTH {\"a\": 1, \"b\": 2, \"c\": 3}\n")
	require.NoError(t, err)
	r := gpuRun{name: "x", truth: truth, said: map[string]uint64{"a": 1, "b": 5}, events: 7}
	require.Equal(t, []string{"x", "7, 0", "1 of 2", "b 2, 5"}, r.row())
	r.said, r.printed = nil, "TRUTH {\"a\": 1}\n"
	require.Equal(t, []string{"x", "7, 0", `its own: {"a": 1}`, "-"}, r.row())
	_, err = truthOf("Traceback\nKilled\n")
	require.ErrorContains(t, err, "Killed")
}

// TestFinalScreen leaves the lines of progress out.
func TestFinalScreen(t *testing.T) {
	require.Equal(t, "\ngputrace  x.py\nSTEADY", finalScreen("gputrace devel\nattached\n\ngputrace  x.py\nSTEADY"))
	require.Equal(t, "only\nthis", finalScreen("only\nthis"))
}

// TestMean: a step that only hands work to a device is measured by the mean of a window, of bursts and waits.
func TestMean(t *testing.T) {
	require.InDelta(t, 25, series{1, 1, 98, 0}.mean(), 1e-9)
	require.Zero(t, series(nil).mean())
}
