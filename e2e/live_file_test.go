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

	"github.com/stretchr/testify/require"
)

// TestLiveFile: while a recording runs, the file has PyTorch's own figures and the growth that the first screen would have.
func TestLiveFile(t *testing.T) {
	p := startPython(t, agentJob)
	p.await(t, "READY")
	file := filepath.Join(t.TempDir(), "live")
	c := newCommand(t, "record", "-p", itoa(p.pid), "--no-holders", "-o", "OUT", "--live-file", file)
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
	p.touch(t, "hold")
	p.wait(t)
}
