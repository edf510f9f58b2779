// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
)

// A process that does not run allocates nothing: the verdict says why. One that ran before is judged as ever.
func TestPaused(t *testing.T) {
	const paused = "stopped by a signal (kill -CONT 7 continues it)"
	a := &answer.Answer{Leaks: &leaks.Report{}, Duration: 2 * time.Second}
	require.Equal(t, "UNKNOWN  nothing was allocated or freed in 2.0 s", Of(a).String())
	a.Paused = paused
	require.Equal(t, "UNKNOWN  nothing was allocated or freed in 2.0 s: the process was "+paused, Of(a).String())
	require.Empty(t, Of(a).Notes)
	a.Events, a.Leaks.Verdict = 1, leaks.Steady
	require.Equal(t, []Note{{"paused", "the process was " + paused + " when the recording ended"}}, Of(a).Notes)
}

// TestCapital: a sentence begins with a capital, and a file keeps its name.
func TestCapital(t *testing.T) {
	require.Equal(t, "No line grows", capital("no line grows"))
	require.Equal(t, "gan.py:34 Run.step keeps 12.0 MiB more", capital("gan.py:34 Run.step keeps 12.0 MiB more"))
	require.Empty(t, capital(""))
}
