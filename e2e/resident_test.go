// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// maxResident is what gputrace may keep in memory while it traces a PyTorch process, kB as /proc has it: 150 MB.
const maxResident = 150_000_000 / 1024

var residentLine = regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB`)

func residentSize(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "status"))
	require.NoError(t, err)
	m := residentLine.FindSubmatch(b)
	require.NotNil(t, m, "%s", b)
	n, err := strconv.Atoi(string(m[1]))
	require.NoError(t, err)
	return n
}

// TestResidentSize: what unwind tables, names and the reading of holders take to make is given back while the trace goes on.
func TestResidentSize(t *testing.T) {
	p := startTraining(t, "gpt.py", "--steps", "0", "--counters", "DIR/counters").ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.awaitSteps(t, p.steps()+20)
	pid := c.cmd.Process.Pid
	t.Logf("%d kB with tables and names just made", residentSize(t, pid))
	eventually(t, "memory to be given back", func() bool { return residentSize(t, pid) <= maxResident })
	t.Logf("%d kB", residentSize(t, pid))
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	require.Positive(t, sum(t, inuse, "inuse_space", "torch"))
}
