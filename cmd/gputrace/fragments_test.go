// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fragmentsReport is the JSON of gputrace fragments, as far as it is looked at.
type fragmentsReport struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Devices []struct {
		Text                            string
		Reserved, Allocated, Fragmented uint64
		Inactive                        uint64  `json:"inactive_split"`
		Free                            uint64  `json:"free_segments"`
		Largest                         uint64  `json:"largest_free"`
		Request                         *uint64 `json:"request_bytes"`
		Pools                           []struct{ Reserved, Inactive uint64 }
		EmptyCache                      struct{ Calls *int } `json:"empty_cache"`
	}
	Churn struct {
		Allocated uint64   `json:"allocated_bytes"`
		PerStep   *float64 `json:"bytes_per_step"`
	}
}

// TestFragmentsCommand: the parts of what is reserved add up, in text and JSON, of every moment.
func TestFragmentsCommand(t *testing.T) {
	file := filepath.Join("testdata", "recording-1.5.gputrace")
	for _, at := range []string{"end", "peak", "1s"} {
		out, stderr, code := gputrace(t, "fragments", file, "--at", at, "--json")
		require.Zero(t, code, stderr)
		var got fragmentsReport
		require.NoError(t, json.Unmarshal([]byte(out), &got))
		require.Equal(t, []any{"gputrace fragments", 1}, []any{got.Format, got.Version})
		require.NotEmpty(t, got.Devices)
		for _, d := range got.Devices {
			require.Equal(t, d.Reserved, d.Allocated+d.Inactive+d.Free)
			require.Equal(t, d.Inactive, d.Fragmented, "of no request, all of it")
			require.Nil(t, d.Request)
			sum := uint64(0)
			for _, p := range d.Pools {
				sum += p.Reserved
			}
			require.Equal(t, d.Reserved, sum)
			require.Contains(t, d.Text, "fragmented: of ")
		}
	}
	out, stderr, code := gputrace(t, "fragments", file, "--request", "64MiB", "--top", "1")
	require.Zero(t, code, stderr)
	for _, part := range []string{"\nreserved ", "\ncache    empty_cache() would return ", "\nlibrary  ", "\nhelps    ", "\nchurn    "} {
		require.Contains(t, out, part)
	}
	require.Contains(t, flat(out), "by a request of 64.0 MiB")
}

func TestFragmentsRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"which recording?": {"fragments"}, "give one file": {"fragments", "a", "b"}, "--request": {"fragments", "a", "--request", "much"},
	} {
		_, stderr, code := gputrace(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, want)
	}
}
