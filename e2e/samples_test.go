// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event/allocator"
)

// TestSamples records an allocator that reports by OpenTelemetry's contract, by samples and with each allocation as one. What is in
// use is what its own account says, in samples, their bytes and the bytes that they represent; afterwards it counts no tracers.
func TestSamples(t *testing.T) {
	for name, interval := range map[string]string{"each": "0", "one in 64 KiB": "65536"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := startIn(t, dir, nil, filepath.Join(env.programs, "sampled"), "--go", filepath.Join(dir, "go"),
				"--hold", filepath.Join(dir, "hold"), "--interval", interval).ready(t)
			c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
			p.release(t)
			var live, bytes, weight, all uint64
			_, err := fmt.Sscanf(p.await(t, "USED "), "USED %d %d %d %d", &live, &bytes, &weight, &all)
			require.NoError(t, err)
			require.Equal(t, interval == "0", bytes == weight)
			c.interrupt(t)
			screen := joinedLines(c.stdout.String())
			require.Contains(t, screen, fmt.Sprintf("estimated from %d samples since the attach", live))
			require.Contains(t, screen, "OpenTelemetry reports samples: sizes are estimates")
			require.Contains(t, screen, "sampled_take", "who took most")
			require.NotContains(t, screen, "PyTorch")

			replay := replayTrace(t, filepath.Join(c.out(), traceFile), nil)
			accounts := replay.end.Totals().Accounts
			require.Len(t, accounts, 1)
			a := &accounts[0]
			require.Equal(t, allocator.OTel, a.Device.Allocator())
			require.Equal(t, []uint64{live, bytes, weight}, []uint64{a.Live.Objects, a.Live.Requested, a.Live.Bytes})
			require.Zero(t, a.UnknownFrees+a.LostFrees+a.Gaps+replay.end.Totals().Ignored)
			inuse, _ := readProfiles(t, c.out(), "report.html", "trace.gputrace")
			require.EqualValues(t, weight, sum(t, inuse, "inuse_space", "torch"))
			checkSamplesExport(t, filepath.Join(c.out(), traceFile), weight, all)
			p.touch(t, "hold")
			require.Equal(t, "TRACERS 0", p.await(t, "TRACERS "))
		})
	}
}

// checkSamplesExport looks for the mark of samples, and for the sum of all, in the JSON of a recording.
func checkSamplesExport(t *testing.T, recording string, weight, all uint64) {
	t.Helper()
	var got struct {
		Accounts []struct {
			Allocator string
			Sampled   bool
			Live      struct{ Bytes uint64 }
		}
		Lines []struct {
			Allocated uint64 `json:"alloc_bytes"`
		}
	}
	text, err := output(env.binary, "export", "-f", "json", "-o", "-", recording)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Len(t, got.Accounts, 1)
	require.Equal(t, "OpenTelemetry", got.Accounts[0].Allocator)
	require.True(t, got.Accounts[0].Sampled)
	require.Equal(t, weight, got.Accounts[0].Live.Bytes)
	allocated := uint64(0)
	for _, l := range got.Lines {
		allocated += l.Allocated
	}
	require.Equal(t, all, allocated)
}
