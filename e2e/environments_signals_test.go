// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// of lists the processes whose environment has a text.
func of(text string) (pids []string) {
	folders, _ := os.ReadDir("/proc")
	for _, d := range folders {
		if b, err := os.ReadFile("/proc/" + d.Name() + "/environ"); err == nil && strings.Contains(string(b), text) {
			pids = append(pids, d.Name())
		}
	}
	return pids
}

// interrupted starts a command and sends it a signal after a delay, whatever it does just then. A command that has ended already is started
// again, with half the delay.
func interrupted(t *testing.T, s syscall.Signal, delay time.Duration, args ...string) *command {
	t.Helper()
	for {
		c := newBareCommand(t, args...).start(t)
		time.Sleep(delay)
		err := c.cmd.Process.Signal(s)
		if delay /= 2; !errors.Is(err, os.ErrProcessDone) || delay < time.Millisecond {
			require.NoError(t, err)
			return c
		}
		c.code(t)
	}
}

// TestInterruptedAnywhere: a command that is interrupted at any moment ends, and leaves no temporary file and no process.
func TestInterruptedAnywhere(t *testing.T) {
	p := startPython(t, knownJob+"work()").ready(t)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	for _, args := range []string{"-p PID -o OUT", "who -p PID", "top --once -p PID", "doctor", "doctor -p PID", "run -o OUT -- sleep 500"} {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			delay := 300*time.Millisecond + time.Duration(random.IntN(700))*time.Millisecond
			t.Run(fmt.Sprint(args, " ", s, " ", delay), func(t *testing.T) {
				c := interrupted(t, s, delay, strings.Fields(strings.ReplaceAll(args, "PID", itoa(p.pid)))...)
				code := c.code(t)
				require.Contains(t, []int{0, 130, 143}, code, c.stderr.String())
				left, err := os.ReadDir(c.temporary(t))
				require.NoError(t, err)
				require.Empty(t, left)
				eventually(t, "its processes to end", func() bool { return len(of("TMPDIR="+c.temporary(t))) == 0 })
			})
		}
	}
	require.True(t, exists(fmt.Sprintf("/proc/%d", p.pid)))
}
