// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatIfCommand: a row for each setting, what fails, and what was assumed.
func TestWhatIfCommand(t *testing.T) {
	file := leaking(t, true)
	out, stderr, code := gputrace(t, "whatif", file)
	require.Zero(t, code, stderr)
	require.Contains(t, out, "80 requests, replayed on unlimited memory")
	require.Contains(t, out, "(none), as recorded")
	require.Contains(t, flat(out), "after each of 120 events")
	require.Contains(t, out, "expandable_segments:True")

	out, stderr, code = gputrace(t, "whatif", file, "--device-memory", "1MiB", "--outside", "0", "--max-split-size", "20MiB", "--json")
	require.Zero(t, code, stderr)
	var got struct {
		Devices []struct {
			Settings []struct {
				Conf   string
				Failed struct {
					Site      string
					Requested uint64 `json:"requested_bytes"`
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Devices[0].Settings, 2)
	require.Equal(t, "max_split_size_mb:20", got.Devices[0].Settings[1].Conf)
	require.Equal(t, "train.py:20 main", got.Devices[0].Settings[1].Failed.Site)
	require.EqualValues(t, 4, got.Devices[0].Settings[1].Failed.Requested)

	out, stderr, code = gputrace(t, "whatif", file, leaking(t, false), "--batch", "8,16", "--device-memory", "1GiB")
	require.Zero(t, code, stderr)
	require.Contains(t, out, "Sufficient memory, from 2 recordings")
}

func TestWhatIfRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"which recording?":                         {"whatif"},
		"give as many sizes as recordings, 2":      {"whatif", "a", "b"},
		"give as many sizes as recordings, 1":      {"whatif", "a", "--batch", "8,16"},
		"only with a fraction":                     {"whatif", "a", "--gc-threshold", "0.5"},
		"not a number above 0":                     {"whatif", "a", "--fraction", "2"},
		"20MiB or more":                            {"whatif", "a", "--max-split-size", "8MiB"},
		"3 is not a power of two":                  {"whatif", "a", "--roundup-divisions", "3"},
		`"x" is no size of a batch`:                {"whatif", "a", "--batch", "x"},
		"max_split_size_mb:1: PyTorch wants 20 or": {"whatif", "a", "--recorded", "max_split_size_mb:1"},
	} {
		stdout, stderr, code := gputrace(t, args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, stderr, want)
		require.Empty(t, stdout)
	}
}
