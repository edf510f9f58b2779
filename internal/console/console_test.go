// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package console

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer/hook"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999_999: "999999", 1_000_000: "1.0 M", 4_859_565: "4.9 M"} {
		require.Equal(t, want, count(n))
	}
}

// TestLibraryLines: a library that is mapped but defines nothing to trace is not said to be missing.
func TestLibraryLines(t *testing.T) {
	found := &recorder.Found{Empty: []string{"/app/torch/lib/libc10.so"}}
	lines := libraryLines(found, hook.Torch)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "libc10.so")
	require.Contains(t, lines[0], "has none of the functions: reportMemoryUsageToProfiler reportOutOfMemoryToProfiler")
	lines = libraryLines(found, hook.Driver)
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "not found: no libcuda.so*")
	require.Empty(t, libraryLines(found, hook.HIP), "another maker's library is not expected")

	found = &recorder.Found{Hooks: []recorder.Hook{{Library: hook.HIP, File: "/opt/libamdhip64.so.6", Functions: 2}}}
	lines = libraryLines(found, hook.HIP)
	require.Len(t, lines, 1)
	require.Regexp(t, `^HIP +libamdhip64.so.6 +2 functions$`, lines[0])
	require.Empty(t, libraryLines(found, hook.Driver), "nor are CUDA's where theirs are")
	require.Len(t, libraryLines(found, hook.Torch), 1)
}
