// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLiveFile: while a recording runs, the file has PyTorch's own figures and the growth that the first screen would have.
func TestLiveFile(t *testing.T) {
	p := startPython(t, agentJob)
	p.await(t, "READY")
	file := filepath.Join(t.TempDir(), "live")
	c := newCommand(t, "record", "-p", itoa(p.pid), "--no-holders", "-o", "OUT", "--live-file", file, "--json")
	c.start(t)
	c.ready(t)
	p.release(t)
	var allocated, peak, reserved uint64
	_, err := fmt.Sscan(strings.TrimPrefix(p.await(t, "ALLOCATED"), "ALLOCATED"), &allocated, &peak, &reserved)
	require.NoError(t, err)
	var got struct {
		Processes []struct {
			PID      int
			Verdict  string
			Now      uint64 `json:"now_bytes"` // with device memory outside PyTorch, which does not change
			Peak     uint64 `json:"peak_bytes"`
			Reserved uint64 `json:"reserved_bytes"`
			Findings []struct {
				Bytes float64 `json:"block_bytes_per_step"`
			}
		}
	}
	eventually(t, "PyTorch's figures in the file", func() bool {
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &got) != nil || len(got.Processes) != 1 {
			return false
		}
		p := &got.Processes[0]
		return p.Reserved == reserved && p.Now >= allocated && p.Peak-p.Now == peak-allocated
	})
	require.Equal(t, p.pid, got.Processes[0].PID)
	require.Equal(t, "growing", got.Processes[0].Verdict)
	require.Len(t, got.Processes[0].Findings, 1)
	require.InDelta(t, 1<<20, got.Processes[0].Findings[0].Bytes, 0)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 0, c.code(t), c.stderr.String())
	var first struct{ Format, Verdict string }
	require.NoError(t, json.Unmarshal([]byte(c.stdout.String()), &first), "with --json, standard output is one object")
	require.Equal(t, struct{ Format, Verdict string }{"gputrace answer", "growing"}, first)
	p.touch(t, "hold")
	p.wait(t)
}

// busyJob leaks without a pause, while its steps are judged and its holders read, and prints PyTorch's counter after each step.
const busyJob = `
import os, time, torch
early = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
print('READY', flush=True)
while not os.path.exists('DIR/go'): time.sleep(0.01)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
opt, kept, end = torch.optim.Adam(model.parameters()), [], time.time() + 12
while time.time() < end:
    opt.zero_grad(); model(torch.randn(32, 64, device='cuda')).sum().backward(); opt.step()
    kept.append(torch.empty(1 << 18, dtype=torch.uint8, device='cuda'))
    print('AT', time.time_ns(), torch.cuda.memory_allocated(), flush=True)
    time.sleep(0.005)
print('DONE', flush=True)
while True: time.sleep(1)
`

// TestLiveFileIsCurrent: whatever else the recorder does, the file has what was in use two seconds ago, or more.
func TestLiveFileIsCurrent(t *testing.T) {
	p := startPython(t, busyJob)
	p.await(t, "READY")
	file := filepath.Join(t.TempDir(), "live")
	c := newCommand(t, "record", "-p", itoa(p.pid), "-o", "OUT", "--live-file", file)
	c.start(t)
	c.ready(t)
	p.release(t)
	p.await(t, "AT")
	time.Sleep(2 * time.Second)
	var seen []looked
	for range 32 {
		seen = append(seen, look(t, file))
		time.Sleep(250 * time.Millisecond)
	}
	p.await(t, "DONE")
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 0, c.code(t), c.stderr.String())
	steps := p.output()
	for _, l := range seen {
		require.Less(t, l.at.Sub(l.written), 1500*time.Millisecond, "the file was replaced")
		require.GreaterOrEqual(t, l.bytes, counterAt(t, steps, l.at.Add(-2*time.Second)), "in use two seconds before")
	}
}

// counterAt returns the last counter that busyJob printed until a moment.
func counterAt(t *testing.T, steps []string, at time.Time) (last uint64) {
	t.Helper()
	for _, line := range steps {
		if rest, ok := strings.CutPrefix(line, "AT "); ok {
			var ns int64
			var allocated uint64
			_, err := fmt.Sscan(rest, &ns, &allocated)
			require.NoError(t, err)
			if ns <= at.UnixNano() {
				last = allocated
			}
		}
	}
	return last
}

// looked is what the file had at a moment.
type looked struct {
	at, written time.Time
	bytes       uint64
}

func look(t *testing.T, file string) looked {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var got struct {
		Time      time.Time
		Processes []struct {
			Now uint64 `json:"now_bytes"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &got))
	require.Len(t, got.Processes, 1)
	return looked{time.Now(), got.Time, got.Processes[0].Now}
}
