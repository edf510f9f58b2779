// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// summaries is a program that uses both pools, caches segments, is refused a request, resets its peaks, and then writes what PyTorch says
// itself: the text, and the counters.
const summaries = `
import json, os, time, torch
def wait(name):
    while not os.path.exists('DIR/' + name):
        time.sleep(0.005)
torch.empty(10, device='cuda')
print('READY', os.getpid(), flush=True)
wait('go')
kept = [torch.empty(n * 40_001, device='cuda') for n in range(1, 60)]
temporary = [torch.empty(3_000_000, device='cuda') for _ in range(20)]
del kept[::3], temporary
torch.cuda.reset_peak_memory_stats()
try:
    torch.empty(1 << 40, device='cuda')
except torch.cuda.OutOfMemoryError:
    pass
kept += [torch.empty(100, device='cuda') for _ in range(1000)]
open('DIR/summary', 'w').write(torch.cuda.memory_summary())
json.dump(torch.cuda.memory_stats(), open('DIR/stats', 'w'))
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`

// summaryOutput is what gputrace summary --json writes.
type summaryOutput struct {
	Devices []struct {
		Stats map[string]int64 `json:"memory_stats"`
	}
}

// TestSummary: the summary of a process is PyTorch's own, character for character, and so is that at the end of a recording which saw only
// a part of it; the counters are those of memory_stats.
func TestSummary(t *testing.T) {
	p := startPython(t, summaries).ready(t)
	c := startCommand(t, p, "-f", "none")
	p.release(t)
	p.done(t)
	want, err := os.ReadFile(filepath.Join(p.dir, "summary"))
	require.NoError(t, err)
	var stats map[string]int64
	readJSON(t, filepath.Join(p.dir, "stats"), &stats)
	out, err := output(env.binary, "summary", "-p", itoa(p.pid))
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), out)
	text, err := output(env.binary, "summary", "-p", itoa(p.pid), "--json")
	require.NoError(t, err)
	requireStats(t, stats, text, 118)

	c.interrupt(t)
	out, err = output(env.binary, "summary", c.out())
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out, string(want)), out)
	require.Contains(t, out, "<string>:")
	text, err = output(env.binary, "summary", c.out(), "--json")
	require.NoError(t, err)
	requireStats(t, stats, text, 118)
}

// requireStats compares counters, of which there must be so many.
func requireStats(t *testing.T, want map[string]int64, text string, least int) {
	t.Helper()
	var got summaryOutput
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Len(t, got.Devices, 1)
	require.GreaterOrEqual(t, len(got.Devices[0].Stats), least)
	for key, n := range got.Devices[0].Stats {
		require.Contains(t, want, key)
		require.Equal(t, want[key], n, key)
	}
}

// TestSummaryOfEvents: of a program that has ended, what the events tell is what PyTorch counted to its end.
func TestSummaryOfEvents(t *testing.T) {
	dir := t.TempDir()
	code := `
import json, torch
kept = [torch.empty(n * 40_001, device='cuda') for n in range(1, 60)]
temporary = [torch.empty(3_000_000, device='cuda') for _ in range(20)]
del kept[::3], temporary
json.dump(torch.cuda.memory_stats(), open('DIR/stats', 'w'))
import os
os._exit(0)
`
	c := newCommand(t, "run", "-o", "OUT", "-f", "none", "--", filepath.Join(env.testdata, "run"), "-c",
		strings.ReplaceAll(code, "DIR", dir)).start(t)
	c.succeeds(t)
	var stats map[string]int64
	readJSON(t, filepath.Join(dir, "stats"), &stats)
	text, err := output(env.binary, "summary", c.out(), "--json")
	require.NoError(t, err)
	requireStats(t, stats, text, 50)
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}
