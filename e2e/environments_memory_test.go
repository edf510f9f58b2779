// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// memoryGroup makes a control group whose memory is limited, in MiB. Processes join by its file cgroup.procs.
func memoryGroup(t *testing.T, mib int) string {
	t.Helper()
	for _, of := range []struct{ folder, limit string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"},
	} {
		group := filepath.Join(of.folder, fmt.Sprintf("gputrace-e2e-memory-%d-%d", os.Getpid(), mib))
		if os.Mkdir(group, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { eventually(t, "an empty control group", func() bool { return os.Remove(group) == nil }) })
		if exists(filepath.Join(group, of.limit)) {
			require.NoError(t, os.WriteFile(filepath.Join(group, of.limit), []byte(itoa(mib<<20)), 0o644))
			return group
		}
	}
	t.Skip("no control group can limit memory here")
	return ""
}

// within has a command run in a control group.
func (c *command) within(group string) *command {
	c.cmd.Args = append([]string{"sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, group, c.cmd.Path}, c.cmd.Args[1:]...)
	c.cmd.Path = "/bin/sh"
	return c
}

// TestLittleMemory: a control group in which gputrace cannot have all that it likes. It takes less, or is not
// attached at all, as doctor says; the kernel never has to kill it.
func TestLittleMemory(t *testing.T) {
	p := startPython(t, knownJob+"work()").ready(t)
	p.rounds(t, 0, 5)
	for _, tt := range []struct {
		mib         int
		code        int
		says        string
		holders     bool // surely read
		doctor      int
		doctorState string
	}{
		{128, 6, "MiB of memory left, and a trace without holders needs", false, 1, "memory for gputrace gputrace's control group has"},
		{200, 0, "MiB of memory left: the ring has 4 MiB, so more events may be lost, and holders may not be read", false, -1, ""},
		{256, 0, "MiB of memory left: the ring has 4 MiB, so more events may be lost", true, -1, ""},
		{512, 0, "", true, -1, ""},
	} {
		t.Run(fmt.Sprint(tt.mib, " MiB"), func(t *testing.T) {
			group := memoryGroup(t, tt.mib)
			c := newBareCommand(t, "-p", itoa(p.pid), "-d", "300ms", "-o", "OUT", "-f", "none", "--cache-dir", env.cache).within(group).start(t)
			require.Equal(t, tt.code, c.code(t), c.stderr.String())
			require.Contains(t, flat(c.stderr.String()), tt.says)
			if tt.says == "" {
				require.NotContains(t, c.stderr.String(), "memory left")
			}
			if tt.code == 0 {
				require.Contains(t, flat(c.stdout.String()), "in use at the end 69.0 MiB", "64 MiB and five rounds")
			}
			if tt.holders {
				require.NotContains(t, c.stderr.String(), "could not be read")
			}
			if tt.doctor >= 0 {
				c = newBareCommand(t, "doctor").within(group).start(t)
				require.Equal(t, tt.doctor, c.code(t), c.stdout.String())
				require.Contains(t, flat(c.stdout.String()), tt.doctorState)
			}
		})
	}
	require.True(t, exists(fmt.Sprintf("/proc/%d", p.pid)))
}
