// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// budgetJob allocates as fast as it can, then now and then, and holds still.
const budgetJob = `
import os, time, torch
def reached(name): return os.path.exists('DIR/' + name)
def wait(name):
    while not reached(name): time.sleep(0.005)
torch.empty(1 << 20, device='cuda')
print('READY', os.getpid(), flush=True)
wait('go')
kept = []
def work(times):
    for i in range(times): torch.empty(256, device='cuda')
    if len(kept) < 1000: kept.append(torch.empty(1000 + len(kept), device='cuda'))
while not reached('calm'): work(1000)
print('BUSY', torch.cuda.memory_allocated(), flush=True)
while not reached('enough'):
    work(15)
    time.sleep(0.02)
kept = kept[:10]
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`

// TestCPUBudget: a job makes an agent and a session exceed their budgets. Both leave stacks out and say so, every byte stays exact, and the
// stacks come back once the job allocates less.
func TestCPUBudget(t *testing.T) {
	p := startPython(t, budgetJob).ready(t)
	dir, address := t.TempDir(), freeAddress(t)
	config := fmt.Sprintf("listen: %s\ninterval: 1s\ncache_dir: %s\nholders: false\nprocesses: %s\ncpu_budget: {process: 0.5%%, node: 0%%}\n",
		address, env.cache, regexp.QuoteMeta(p.dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(config), 0o644))
	a := startAgent(t, dir, address)
	a.until(t, "/metrics", `gputrace_degraded\{[^}]*\} 0\n`)
	c := startCommand(t, p, "--cpu-budget", "0.5%", "--no-holders")
	p.release(t)
	a.until(t, "/metrics", `gputrace_degraded\{[^}]*\} 3\n`)
	c.says(t, "no allocation has a stack from now on; bytes stay exact")
	p.touch(t, "calm")
	busy := strings.Fields(p.await(t, "BUSY"))[1]
	a.until(t, "/api/v1/targets", `"detail": "none"`)

	metrics := a.until(t, "/metrics", `gputrace_degraded\{[^}]*\} 0\n`)
	require.Greater(t, metricOf(t, metrics, `gputrace_stacks_left_out_total`), 1000.0)
	require.Greater(t, metricOf(t, metrics, `gputrace_tracing_cpu_seconds_total`), 0.0)
	require.Contains(t, metrics, `gputrace_agent_cpu_budget_ratio{of="process"} 0.005`)
	c.says(t, "every allocation has a stack again")
	a.says(t, "no allocation has a stack from now on")
	p.touch(t, "enough")
	line := p.await(t, "DONE")
	require.NotEqual(t, busy, strings.Fields(line)[1])
	a.until(t, "/metrics", `gputrace_live_bytes\{[^}]*\} `+exponent(allocated(t, line)))
	c.interrupt(t)
	inuse, alloc := c.profiles(t)
	checkAllocated(t, inuse, line)
	leftOut, kept := int64(0), int64(0)
	for _, s := range alloc.Sample {
		if s.Location[0].Line[0].Function.Name == "[no stack: CPU budget]" {
			leftOut += s.Value[0]
		} else {
			kept += s.Value[0]
		}
	}
	require.Greater(t, kept, int64(100), "allocations with a stack")
	out, err := exec.Command(env.binary, "report", c.out()).CombinedOutput()
	require.NoError(t, err, string(out))
	m := regexp.MustCompile(`stacks of (\d+) of (\d+) allocations were left out: gputrace reached its CPU budget of 0.5 %`).FindSubmatch(out)
	require.NotNil(t, m, string(out))
	for i, n := range []int64{leftOut, leftOut + kept} {
		v, err := strconv.ParseInt(string(m[i+1]), 10, 64)
		require.NoError(t, err)
		require.InDelta(t, n, v, 10, "the profiles have no allocations of the driver below PyTorch's")
	}
}

// says waits until a command has said something.
func (c *command) says(t *testing.T, text string) {
	t.Helper()
	eventually(t, text, func() bool { return strings.Contains(c.stderr.String(), text) })
}

// metricOf returns the value of the first series of a metric.
func metricOf(t *testing.T, metrics, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `\{[^}]*\} (\S+)$`).FindStringSubmatch(metrics)
	require.NotNil(t, m, "%s in\n%s", name, metrics)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	return v
}
