// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// oddStack is a report of testdata/programs/oddframes.c with what glibc's backtrace saw.
type oddStack struct {
	name string
	pcs  []uint64
}

func readOddStacks(t *testing.T, path string) map[uint64]oddStack {
	t.Helper()
	out := map[uint64]oddStack{}
	eachLine(t, path, func(line []byte) {
		f := strings.Fields(string(line))
		require.Greater(t, len(f), 3)
		numbers := make([]uint64, len(f)-1)
		for i := range numbers {
			var err error
			numbers[i], err = strconv.ParseUint(f[1+i], 16, 64)
			require.NoError(t, err)
		}
		out[numbers[0]] = oddStack{f[0], numbers[1:]}
	})
	return out
}

// oddStatus is how the stacks of each name come out.
var oddStatus = map[string]event.StackStatus{
	"plain": event.StatusOK, "cfa_in_rbx": event.StatusUnwound, "cfa_in_r12": event.StatusUnwound, "expression": event.StatusUnwound,
	"return_in_r13": event.StatusUnwound, "twice": event.StatusUnwound, "cuda": event.StatusUnwound, "jit": event.StatusGuessed,
	"constructor": event.StatusUnwound, "late": event.StatusUnwound,
}

// TestRawStacks: what the kernel cannot unwind is unwound outside it, frame by frame as glibc's backtrace does it in the process.
// The first report of a library that was just loaded has its stack, and later ones, which the kernel unwinds, have the same.
func TestRawStacks(t *testing.T) {
	dir := t.TempDir()
	out, stop := filepath.Join(dir, "out"), filepath.Join(dir, "stop")
	p := startIn(t, dir, []string{"RUN_PROGRAM=" + filepath.Join(env.programs, "oddframes")}, filepath.Join(env.testdata, "run"),
		"--out", out, "--go", filepath.Join(dir, "go"), "--stop", stop).ready(t)
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	const kinds = 10
	eventually(t, "events of the library that was loaded", func() bool { return tr.seen.Load() > kinds })
	p.touch(t, "stop")
	p.wait(t)
	tr.finishWhole(t)

	want, names, ids := readOddStacks(t, out), map[string]int{}, map[event.StackID]bool{}
	for i := range tr.events {
		e := &tr.events[i]
		odd, ok := want[e.Addr]
		if !ok {
			require.NotEqual(t, event.LayerAllocator, e.Layer, "a report that the program did not make")
			continue
		}
		names[odd.name]++
		stack := tr.target.Stack(e.Stack)
		require.NotNil(t, stack, odd.name)
		pcs := nativePCs(stack)
		require.Equal(t, oddStatus[odd.name], stack.Status, "%s: got %x, want %x", odd.name, pcs, odd.pcs)
		require.Greater(t, len(pcs), len(odd.pcs), odd.name)
		require.Equal(t, odd.pcs, pcs[len(pcs)-len(odd.pcs):], odd.name)
		require.LessOrEqual(t, len(pcs)-len(odd.pcs), 4, "%s: frames of the functions that report", odd.name)
		if odd.name == "late" {
			ids[e.Stack] = true
		}
	}
	for name := range oddStatus {
		require.NotZero(t, names[name], name)
	}
	require.Len(t, ids, 1, "one call, one stack")
	raw := tr.RawStacks()
	require.Equal(t, raw.Sent, raw.Unwound+raw.Guessed+raw.Partial)
	require.Zero(t, raw.Partial+raw.OverRate+raw.NoRoom)
	require.EqualValues(t, 1, raw.Guessed)
	require.Less(t, int(raw.Sent), kinds+names["late"]/2, "the kernel does not get to know the library")
}

// TestRawStacksHaveALimit: of a program all of whose stacks are odd, so many a second are unwound outside the kernel, and none
// that would take the ring from the events. The others end where the kernel's did, and are counted.
func TestRawStacksHaveALimit(t *testing.T) {
	for name, c := range map[string]struct {
		ring int
		over func(*figures.RawStacks) uint64
	}{
		"rate": {128 << 20, func(r *figures.RawStacks) uint64 { return r.OverRate }}, // a quarter holds the copies of a second
		"room": {8 << 20, func(r *figures.RawStacks) uint64 { return r.NoRoom }},     // three quarters hold all events
	} {
		t.Run(name, func(t *testing.T) {
			raw := traceOddStacks(t, c.ring)
			t.Logf("%+v", raw)
			require.NotZero(t, c.over(raw))
		})
	}
}

// traceOddStacks traces a program that reports from one odd stack, faster than copies may be made.
func traceOddStacks(t *testing.T, ring int) *figures.RawStacks {
	t.Helper()
	const calls = 20_000
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "oddframes"), "--out", filepath.Join(dir, "out"), "--go", filepath.Join(dir, "go"),
		"--many", fmt.Sprint(calls)).ready(t)
	o := options()
	o.RingBytes = ring
	tr := attach(t, p.pid, o, nil)
	p.release(t)
	p.wait(t)
	tr.finishWhole(t)
	require.Len(t, tr.events, calls)
	stacks := map[event.StackID]int{}
	for i := range tr.events {
		stacks[tr.events[i].Stack]++
	}
	require.Len(t, stacks, 2, "one in full, one in part")
	byStatus := map[event.StackStatus]int{}
	for id, n := range stacks {
		byStatus[tr.target.Stack(id).Status] += n
	}
	raw := tr.RawStacks()
	require.EqualValues(t, calls, raw.Sent+raw.OverRate+raw.NoRoom)
	require.Equal(t, raw.Sent, raw.Unwound)
	require.Equal(t, map[event.StackStatus]int{event.StatusUnwound: int(raw.Sent), event.StatusBadRule: calls - int(raw.Sent)}, byStatus)
	return &raw
}
