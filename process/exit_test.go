// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestExitStatus compares the status with the one that the shell of the command chose, before and after the parent has waited.
func TestExitStatus(t *testing.T) {
	for script, want := range map[string]int{"read x; exit 0": 0, "read x; exit 3": 3, "read x; kill -9 $$": 137} {
		t.Run(script, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", script)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			p, err := Open(cmd.Process.Pid)
			require.NoError(t, err)
			w, err := p.WatchExit()
			require.NoError(t, err)
			defer w.Close()
			_, ok := w.Status(0)
			require.False(t, ok, "it runs")
			require.NoError(t, in.Close())
			require.Eventually(t, func() bool { _, ok := zombieStatus(cmd.Process.Pid); return ok }, 10*time.Second, 5*time.Millisecond)
			code, ok := w.Status(0)
			require.True(t, ok)
			require.Equal(t, want, code)
			_ = cmd.Wait()
			if code, ok = w.Status(0); ok { // since Linux 6.15
				require.Equal(t, want, code)
			}
		})
	}
}
