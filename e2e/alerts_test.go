// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// alerting has one large request, much in use, and inactive splits.
const alerting = `
import time, torch
large = torch.empty(100 << 20, device='cuda')
pieces = [torch.empty(300_000, device='cuda') for _ in range(200)]
del pieces[::2]
print('ALLOCATED', torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), flush=True)
time.sleep(4)
`

// alertLine is an alert as a program reads it.
type alertLine struct {
	Format, Kind, Rule string
	Measured, Bound    float64
	Step               int
	Sites              []struct {
		Name   string
		Bytes  uint64
		Holder string
	}
}

// TestAlerts: each threshold that is exceeded gives one alert with its line, on standard error, in the file, to the command and to the
// webhook, with PyTorch's own figures; one that is not gives none.
func TestAlerts(t *testing.T) {
	var posted []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		posted = append(posted, string(b))
	}))
	defer server.Close()
	dir := t.TempDir()
	log, ran := filepath.Join(dir, "log"), filepath.Join(dir, "ran")
	c := newCommand(t, "run", "-o", "OUT", "-f", "none", "--alert", "use>400MiB", "--alert", "use>4GiB", "--alert", "fragmentation>5%",
		"--alert", "allocation>256MiB", "--alert-log", log, "--alert-exec", "cat >> "+ran+"; echo >> "+ran, "--alert-webhook", server.URL, "--",
		filepath.Join(env.testdata, "run"), "-c", alerting).start(t)
	c.succeeds(t)
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	byKind := map[string]alertLine{}
	for line := range strings.Lines(string(b)) {
		var a alertLine
		require.NoError(t, json.Unmarshal([]byte(line), &a))
		require.NotContains(t, byKind, a.Rule, "within a minute")
		byKind[a.Rule] = a
	}
	require.Len(t, byKind, 3, string(b))
	require.InDelta(t, 400<<20, byKind["allocation>256MiB"].Measured, 0)
	require.Equal(t, "<string>:3", byKind["allocation>256MiB"].Sites[0].Name)
	require.Equal(t, "<string>:3", byKind["use>400MiB"].Sites[0].Name)
	require.Greater(t, byKind["fragmentation>5%"].Measured, 0.05)
	require.Equal(t, string(b), strings.Join(posted, "\n")+"\n")
	commands, err := os.ReadFile(ran)
	require.NoError(t, err)
	require.Equal(t, string(b), string(commands))
	require.Contains(t, c.stderr.String(), "alert allocation>256MiB: ")
	require.NotContains(t, c.stderr.String(), "use>4GiB: ")
	require.NotContains(t, c.stderr.String(), "warning")
}

// TestAlertGrowth: growth is announced with its line; a command that hangs loses no event and is reported.
func TestAlertGrowth(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	program := training("--pattern", "3", "--steps", "300")
	c := newCommand(t, append([]string{"run", "-o", "OUT", "-f", "none", "--alert", "growth>1KiB/step", "--alert-log", log, "--alert-exec",
		"sleep 1000", "--"}, program...)...)
	c.cmd.Env = append(c.cmd.Env, "OMP_NUM_THREADS=1")
	c.start(t).succeeds(t)
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	var a alertLine
	require.NoError(t, json.Unmarshal(b, &a))
	require.Equal(t, "growth", a.Kind)
	require.InDelta(t, 49152, a.Measured, 1e-6)
	require.Contains(t, a.Sites[0].Name, "leaks_patterns.py:")
	require.Contains(t, c.stderr.String(), "lost     0 events")
	require.Regexp(t, "run the command of an alert: it takes longer than 10s|the command of an alert", c.stderr.String())
}

// TestAlertUseOfDevice: a part is of what NVML counts: another process has two thirds of the device, and this one next to nothing.
func TestAlertUseOfDevice(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	shm := "STANDIN_SHM=" + filepath.Join(t.TempDir(), "totals")
	p := startTrainingIn(t, []string{shm, "STANDIN_GPU_MEM=4GiB"}, "oom.py", "--case", "neighbour", "--steps", "0").ready(t)
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	c := newCommand(t, "record", "-p", itoa(p.pid), "-o", "OUT", "-f", "none", "--alert", "use>60%", "--alert", "use>1GiB", "--alert-log", log)
	c.cmd.Env = append(c.cmd.Env, shm, "STANDIN_GPU_MEM=4GiB", "LD_LIBRARY_PATH="+standin)
	c.start(t).ready(t)
	p.release(t)
	var a alertLine
	eventually(t, "the alert", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && len(b) > 0 && json.Unmarshal(b, &a) == nil
	})
	c.signal(t, syscall.SIGINT)
	require.Zero(t, c.code(t), c.stderr.String())
	require.Equal(t, "use>60%", a.Rule)
	require.Greater(t, a.Measured, 0.66, "two thirds, and two contexts")
	require.Less(t, a.Measured, 1.0)
	require.NotEmpty(t, a.Sites)
	require.NotContains(t, c.stderr.String(), "use>1GiB: ")
}
