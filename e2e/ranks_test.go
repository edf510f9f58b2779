// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// uneven is a rank that keeps a tensor each step, from a step on that is the rank's own; rank 1 has a buffer more.
const uneven = `
import json, os, sys, time, torch
rank = int(os.environ['RANK'])
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
buffer = torch.empty((8 << 20) * rank + 1, device='cuda')
kept = []
open('DIR/here%d' % rank, 'w').close()
while not os.path.exists('DIR/here%d' % (1 - rank)): time.sleep(0.005)
for step in range(60):
    x = torch.randn(16, 256, device='cuda')
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step >= (40, 15)[rank]:
        kept.append(x)
    time.sleep(0.05)
json.dump(torch.cuda.max_memory_allocated(), open('DIR/peak%d' % rank, 'w'))
os._exit(0)
`

// TestRanks: the processes of a job are compared: each with its peak, the rank that has more, the one that grew first, and the one that is
// missing.
func TestRanks(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "uneven.py")
	require.NoError(t, os.WriteFile(script, []byte(strings.ReplaceAll(uneven, "DIR", dir)), 0o600))
	both := `for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=3 ` + filepath.Join(env.testdata, "run") + " " + script +
		` & done; wait`
	c := newCommand(t, "run", "-o", "OUT", "-f", "none", "--no-holders", "--", "/bin/sh", "-c", both)
	c.cmd.Env = append(c.cmd.Env, "OMP_NUM_THREADS=1")
	c.start(t).succeeds(t)
	out, err := output(env.binary, "report", c.out())
	require.NoError(t, err)
	require.Regexp(t, `(?m)^skew     total: 3\d\.\d MiB between\s+rank\s+1,\s+pid\s+\d+,\s+which\s+has\s+the\s+most,\s+and\s+rank\s+0,`, out)
	require.Contains(t, out, "missing  of 3 ranks: 2\n")
	require.Regexp(t, `(?m)^growing  first rank 1, pid \d+: uneven.py:11`, out)

	requireLeakOfRank1(t, c.out())
	text, err := output(env.binary, "report", c.out(), "--json")
	require.NoError(t, err)
	var got struct {
		Missing   []int `json:"missing_ranks"`
		Processes []struct {
			Rank int
			Peak int64 `json:"peak_bytes"`
		}
		First struct {
			Name string
			Lead float64 `json:"lead_seconds"`
		} `json:"grew_first"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, []int{2}, got.Missing)
	require.Len(t, got.Processes, 2)
	for _, p := range got.Processes {
		var peak int64
		readJSON(t, filepath.Join(dir, "peak"+itoa(p.Rank)), &peak)
		require.Equal(t, peak, p.Peak, "rank %d", p.Rank)
	}
	require.Contains(t, got.First.Name, "rank 1, ")
	require.Positive(t, got.First.Lead)
}

// requireLeakOfRank1: the verdict on a job is that on each of its processes. Rank 0 begins to grow late.
func requireLeakOfRank1(t *testing.T, folder string) {
	t.Helper()
	c := exec.Command(env.binary, "leaks", "--json", folder)
	text, err := c.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())
	var got struct {
		Processes []struct {
			Folder, Verdict string
			Findings        []struct {
				File string
				Line int
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Len(t, got.Processes, 2)
	for rank, p := range got.Processes {
		require.Regexp(t, fmt.Sprintf(`^rank%d-pid\d+$`, rank), p.Folder)
		require.Equal(t, p.Verdict == "growing", len(p.Findings) > 0)
		for _, f := range p.Findings {
			require.Equal(t, 11, f.Line)
			require.Equal(t, "uneven.py", filepath.Base(f.File))
		}
	}
	require.Equal(t, "growing", got.Processes[1].Verdict)
	plain, err := exec.Command(env.binary, "leaks", folder).Output()
	require.ErrorAs(t, err, &exit)
	require.Regexp(t, `(?m)^rank0-pid\d+\n`, string(plain))
	require.Regexp(t, `(?m)^rank1-pid\d+\nGROWING  uneven.py:11`, string(plain))
}
