// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// leaking writes a recording of 40 steps of a loop; each keeps a block if it leaks.
func leaking(t *testing.T, leaks bool) string {
	t.Helper()
	optim := "/v/lib/python3.11/site-packages/torch/optim/sgd.py:80:SGD.step"
	stacks := map[event.StackID]*event.Stack{
		1: eventtest.Stack(eventtest.Report + " " + optim + " /home/a/train.py:20:main"),
		2: eventtest.Stack(eventtest.Report + " /home/a/train.py:30:main"),
	}
	path := filepath.Join(t.TempDir(), "trace.gputrace")
	w, err := recording.Create(path, &recording.Info{PID: 7}, func(id event.StackID) *event.Stack { return stacks[id] }, nil)
	require.NoError(t, err)
	total, now := uint64(0), uint64(0)
	add := func(kind event.Kind, stack event.StackID, addr uint64) {
		now++
		total += map[event.Kind]uint64{event.KindAlloc: 512, event.KindFree: ^uint64(511)}[kind]
		e := event.Event{
			Time: now, PID: 7, TID: 7, Kind: kind, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA}, Addr: addr, Size: 512,
			Requested: 4, Allocated: total, Reserved: 1 << 21, Handle: event.Unknown, Context: event.Unknown, Stack: stack,
		}
		require.NoError(t, w.Write([]event.Event{e}))
	}
	for step := uint64(1); step <= 40; step++ {
		add(event.KindAlloc, 1, 1<<20)
		add(event.KindFree, 0, 1<<20)
		add(event.KindAlloc, 2, 1<<30+step<<10)
		if !leaks {
			add(event.KindFree, 0, 1<<30+step<<10)
		}
	}
	require.NoError(t, w.Close(&recording.End{}))
	return path
}

// TestLeaksCommand: the verdict comes first, and the exit code says whether there are findings.
func TestLeaksCommand(t *testing.T) {
	out, stderr, code := gputrace(t, "leaks", leaking(t, true))
	require.Equal(t, 3, code, stderr)
	require.Regexp(t, `^GROWING  train.py:30 main keeps 4 B more each step \(512 B in blocks\):\n         \+[0-9.]+ GiB/s, since step 1 of `+
		`39 \(\+0.0 s\)\n`, out)
	require.Empty(t, stderr)

	out, stderr, code = gputrace(t, "leaks", leaking(t, false))
	require.Zero(t, code, stderr)
	require.Regexp(t, `^STEADY  nothing grew from step to step in 39 steps of \d ns; `, out)

	out, stderr, code = gputrace(t, "leaks", leaking(t, true), "--json", "--step-on", "SGD.step")
	require.Equal(t, 3, code, stderr)
	var got struct {
		Verdict string
		Steps   struct{ Source string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "growing", got.Verdict)
	require.Equal(t, "chosen", got.Steps.Source)
}

func TestLeaksRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"which recording?":                   {"leaks"},
		"no allocation was made below it":    {"leaks", leaking(t, true), "--step-on", "nowhere"},
		"unknown flag --jsn":                 {"leaks", "x", "--jsn"},
		"which recording? give one file, or": {"leaks", "a", "b"},
		"give only one":                      {"leaks", "a", "-p", "1"},
	} {
		stdout, stderr, code := gputrace(t, args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, stderr, want)
		require.Empty(t, stdout)
	}
}
