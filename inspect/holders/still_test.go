// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"bufio"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"github.com/gputrace/gputrace/process"
)

// TestAsleep: a program that waits sleeps until it is woken, however shortly; one that computes does not.
func TestAsleep(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p := startLooked(t, cmd)
	lines := bufio.NewScanner(out)
	echo := func() {
		_, err := fmt.Fprintln(in, "a line")
		require.NoError(t, err)
		require.True(t, lines.Scan())
	}
	echo() // it runs
	var before stop.Asleep
	require.Eventually(t, func() bool { before = p.asleep(); return before != nil }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return before.Until(p.asleep()) }, 10*time.Second, time.Millisecond)
	echo()
	var after stop.Asleep
	require.Eventually(t, func() bool { after = p.asleep(); return after != nil }, 10*time.Second, time.Millisecond)
	require.False(t, before.Until(after))
	require.False(t, before.Until(nil))
	require.False(t, stop.Asleep(nil).Until(nil))
}

func TestNotAsleep(t *testing.T) {
	p := startLooked(t, exec.Command("sh", "-c", "while :; do :; done"))
	require.Eventually(t, func() bool { return p.asleep() == nil }, 10*time.Second, time.Millisecond)
	for range 100 {
		require.Nil(t, p.asleep())
	}
}

// startLooked starts a program that ends with the test.
func startLooked(t *testing.T, cmd *exec.Cmd) *linuxProcess {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return &linuxProcess{Process: p}
}
