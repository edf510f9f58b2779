// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package console

import (
	"errors"
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

// TestFitLive: what was lost is there at every width.
func TestFitLive(t *testing.T) {
	const line = "17:22:02  torch 750.2 MiB (peak 776.2 MiB)  reserved 798.0 MiB  other device 16.0 MiB  514 blocks/s  lost 0 events"
	for width, want := range map[int]string{
		0: line, 200: line, len(line) + 1: line,
		len(line): "17:22:02  torch 750.2 MiB (peak 776.2 MiB)  reserved 798.0 MiB  other device 16.0 MiB  lost 0 events",
		80:        "17:22:02  torch 750.2 MiB (peak 776.2 MiB)  reserved 798.0 MiB  lost 0 events",
		60:        "17:22:02  torch 750.2 MiB (peak 776.2 MiB)  lost 0 events",
		10:        "17:22:02  lost 0 events",
	} {
		require.Equal(t, want, fitLive(line, width), width)
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

// TestReplaced: where what a process becomes is followed, no attach is asked for.
func TestReplaced(t *testing.T) {
	require.Equal(t, "pid 7 became another program (sleep); attach again to trace it", (&Console{}).replaced(7, "sleep"))
	follow := &Console{Options: Options{Follow: true}}
	require.Equal(t, "pid 7 became another program (sleep); the new program has a recording of its own", follow.replaced(7, "sleep"))
}

// TestEnded: a format of -f that could not be made is the command's error, one that was not asked for is a warning,
// and neither hides that nothing was recorded.
func TestEnded(t *testing.T) {
	broken, nothing := errors.New("no such format today"), errors.New("ended before any allocation")
	for _, c := range []struct {
		what           string
		views, nothing error
		asked          bool
		want           error
		warnings       []error
	}{
		{"all was made", nil, nil, true, nil, nil},
		{"a format that was asked for", broken, nil, true, broken, nil},
		{"one that was not", broken, nil, false, nil, []error{broken}},
		{"and nothing was recorded", broken, nothing, false, nothing, []error{broken}},
		{"nothing was recorded", nil, nothing, true, nothing, nil},
	} {
		var warnings []error
		got := ended(c.views, c.nothing, c.asked, func(err error) { warnings = append(warnings, err) })
		require.Equal(t, c.want, got, c.what)
		require.Equal(t, c.warnings, warnings, c.what)
	}
}
