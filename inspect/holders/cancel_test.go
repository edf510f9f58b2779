// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"github.com/gputrace/gputrace/process"
)

// TestCancelled ends readings at many moments, of a running process and of one that is stopped meanwhile: each returns soon after
// with the cause, and nobody traces a thread of the process then, so that all of them run.
func TestCancelled(t *testing.T) {
	cases := strings.Fields(listCases(t, "who_torch.py"))[0]
	j := startJob(t, "READY", workloads+"who_torch.py", "--cases", cases, "--ask", "DIR")
	start := time.Now()
	_, err := Read(t.Context(), j.p, nil)
	require.NoError(t, err)
	whole := time.Since(start)
	soon := max(whole/4, 500*time.Millisecond) // the machine may do other things too
	const tries = 8
	cause := errors.New("not wanted")
	for _, freeze := range []time.Duration{0, time.Second} {
		cancelled := 0
		for n := range tries {
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan time.Time, 1)
			timer := time.AfterFunc(whole*time.Duration(n)/tries, func() {
				ended <- time.Now()
				cancel(cause)
			})
			_, err := Read(ctx, j.p, &Options{Freeze: freeze})
			if timer.Stop() { // the reading was faster
				require.NoError(t, err)
				cancel(nil)
			} else {
				assert.Less(t, time.Since(<-ended), soon, "cancelled after %d/%d of the time", n, tries)
			}
			if err != nil {
				require.ErrorIs(t, err, cause)
				cancelled++
			}
			requireUntraced(t, j.p)
		}
		t.Logf("%v: %d of %d were cancelled", freeze, cancelled, tries)
		require.Positive(t, cancelled)
	}
}

// requireUntraced: no thread is stopped, or would be.
func requireUntraced(t *testing.T, p *process.Process) {
	t.Helper()
	tids, err := stop.Threads(p)
	require.NoError(t, err)
	for _, tid := range tids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", p.PID, tid))
		require.NoError(t, err)
		require.Contains(t, string(b), "\nTracerPid:\t0\n")
		require.NotContains(t, string(b), "State:\tt")
	}
}
