// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSummaryCommand: a recording shows what its events tell, and what they do not is neither 0 nor in the JSON.
func TestSummaryCommand(t *testing.T) {
	file := leaking(t, true)
	out, stderr, code := gputrace(t, "summary", file)
	require.Zero(t, code, stderr)
	require.Contains(t, out, "| Allocated memory      |  20480 B   |  20480 B   |  40960 B   |  20480 B   |\n")
	require.Contains(t, out, "| Active memory         |    unknown |    unknown |    unknown |    unknown |\n")
	require.Contains(t, out, "train.py:30")

	out, stderr, code = gputrace(t, "summary", file, "--json")
	require.Zero(t, code, stderr)
	var got struct {
		Devices []struct {
			Stats    map[string]uint64 `json:"memory_stats"`
			Composer map[string]float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.EqualValues(t, 20480, got.Devices[0].Stats["allocated_bytes.all.peak"])
	require.NotContains(t, got.Devices[0].Stats, "active_bytes.all.current")
	require.InDelta(t, 2.048e-05, got.Devices[0].Composer["memory/current_allocated_mem"], 1e-12)
}

func TestSummaryRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"which recording?": {"summary"}, "give only one": {"summary", "a", "-p", "1"},
	} {
		_, stderr, code := gputrace(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, want)
	}
}
