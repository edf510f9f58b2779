// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// farm forks a child for each file DIR/job.N from 0 on, which allocates 64 MiB that stay and then 1 MiB at a time, and prints its number.
const farm = `
import os, signal, time, torch
print('READY %d' % os.getpid(), flush=True)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
n = 0
while True:
    if not os.path.exists('DIR/job.%d' % n):
        time.sleep(0.005)
        continue
    if os.fork() == 0:
        kept = [torch.empty(64 << 20, dtype=torch.uint8, device='cuda')]
        print('JOB %d %d' % (n, os.getpid()), flush=True)
        while True:
            kept.append(torch.empty(1 << 20, dtype=torch.uint8, device='cuda'))
            time.sleep(0.01)
    n += 1
`

// noReasons are words that a user cannot act on when the process has ended.
var noReasons = []string{"context canceled", "deadline exceeded", "unknown layout", "unreadable", "please report", "file already closed",
	"no such process"}

// TestEndsMeanwhile: a process that is killed at any moment of a command. What was seen of it is printed, or one
// sentence says that it ended; no file stays in the folder of temporary files.
func TestEndsMeanwhile(t *testing.T) {
	parent := startPython(t, farm)
	parent.await(t, "READY")
	jobs := 0
	next := func() int {
		parent.touch(t, fmt.Sprintf("job.%d", jobs))
		var n, pid int
		_, err := fmt.Sscanf(parent.await(t, fmt.Sprintf("JOB %d ", jobs)), "JOB %d %d", &n, &pid)
		require.NoError(t, err)
		jobs++
		return pid
	}
	for _, tt := range []struct {
		args   string
		delays []int // ms
	}{
		{"-p PID -o OUT -f none", []int{100, 700, 1400, 2100}},
		{"who -p PID", []int{100, 500, 1000, 1500}},
		{"dump -p PID", []int{20, 50, 100, 250, 700}},
		{"top --once -p PID", []int{200, 1000, 2000, 3000}},
		{"leaks -p PID -d 1s", []int{500, 1800, 2400, 3200}},
		{"summary -p PID", []int{20, 50, 100}},
		{"doctor -p PID", []int{2000, 3000}},
	} {
		for _, delay := range tt.delays {
			t.Run(fmt.Sprintf("%s %d ms", tt.args, delay), func(t *testing.T) {
				pid := next()
				args := strings.Fields(strings.ReplaceAll(tt.args, "PID", itoa(pid)))
				if args[0] == "doctor" || args[0] == "-p" {
					args = append(args, "--cache-dir", env.cache)
				}
				c := newBareCommand(t, args...)
				c.start(t)
				time.Sleep(time.Duration(delay) * time.Millisecond) // whatever it does just then
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				code := c.code(t)
				all := c.stdout.String() + c.stderr.String()
				for _, words := range noReasons {
					require.NotContains(t, all, words)
				}
				switch {
				case args[0] == "doctor":
				case code == 7: // it had ended before it was looked at
					require.Contains(t, c.stderr.String(), fmt.Sprintf("no process %d", pid))
				case code == 8:
					require.Contains(t, c.stderr.String(), "ended")
				default:
					require.Zero(t, code, all)
					require.NotEmpty(t, c.stdout.String())
				}
				left, err := os.ReadDir(c.temporary(t))
				require.NoError(t, err)
				require.Empty(t, left)
			})
		}
	}
}
