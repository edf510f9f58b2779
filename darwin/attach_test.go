// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
)

// watched is a recording by the dtrace of testdata/mac/dtrace.py of a process that does nothing.
type watched struct {
	options *recorder.Options
	noted   *noted
	results *folder.Results
	err     error
}

// watch attaches to a process that ends when all was printed, but in mode "stop", where the recording is stopped.
func watch(t *testing.T, mode string, change func(*recorder.Options)) *watched {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "dtrace")
	script, err := filepath.Abs("testdata/mac/dtrace.py")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(tool, []byte("#!/bin/sh\nexec "+python(t, "3.11")+" "+script+" \"$@\"\n"), 0o755))
	t.Setenv("GPUTRACE_FAKE_DTRACE", mode)
	target := exec.Command("sleep", "1000")
	require.NoError(t, target.Start())
	ended := make(chan struct{})
	go func() {
		_ = target.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() { <-ended })
	t.Cleanup(func() { _ = target.Process.Kill() })
	w := &watched{noted: &noted{}}
	w.options = &recorder.Options{
		PIDs: []int{target.Process.Pid}, Observer: w.noted, Version: "test",
	}
	if change != nil {
		change(w.options)
	}
	files := keep(w.options, t.TempDir()+"/out")
	r := recorder.New(Open(w.options, &Config{DTrace: tool}), w.options)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	results, err := r.Run(ctx)
	w.results, w.err = files.Results(results), err
	return w
}

// input is the recording, opened again.
func (w *watched) input(t *testing.T) *export.Input {
	t.Helper()
	require.NoError(t, w.err)
	require.NoError(t, w.results.Err())
	dir, err := w.results.Write()
	require.NoError(t, err)
	in, err := export.Open(filepath.Join(dir, export.TraceName), nil)
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	input, err := in.Input(nil, "test", func(err error) { require.ErrorContains(t, err, "lie in no known segment") }) // heaps are not seen
	require.NoError(t, err)
	return input
}

// TestAttach: what dtrace prints of two processors out of order is a recording whose live set is what the process kept. What was
// allocated before is not known, and no figure says otherwise.
func TestAttach(t *testing.T) {
	w := watch(t, "ok", nil)
	input := w.input(t)
	w.noHeaps(t)
	require.Contains(t, strings.Join(w.noted.notices, "\n"), "by dtrace: PyTorch's blocks and Metal's heaps, native stacks only")
	checkFormats(t, input)
	v, err := input.View()
	require.NoError(t, err)
	require.Len(t, v.Snapshot.Accounts, 1)
	a := &v.Snapshot.Accounts[0]
	require.Equal(t, "mps:0", a.Device.String())
	require.EqualValues(t, 100*4096, a.Live.Bytes)
	require.EqualValues(t, 100, a.Live.Objects)
	require.EqualValues(t, 200, a.Allocs)
	require.EqualValues(t, 100, a.Frees, "that of an older block is none")
	require.Equal(t, uint64(event.Unknown), a.Allocated)
	require.Equal(t, uint64(event.Unknown), a.Reserved)
	require.Zero(t, v.Snapshot.LossIntervalCount)
	stack := v.Sites[0].Stack
	require.Equal(t, event.StatusPythonState, stack.Status)
	require.Equal(t, "at::detail::empty_mps", stack.Frames[0].Func)
	require.Equal(t, "libtorch_cpu.dylib", stack.Frames[0].Module.Name())
	require.True(t, stack.Frames[2].Eval)
	require.Contains(t, input.Info.Hooks[0].File, "libtorch_cpu.dylib")
}

// TestAttachHeaps: heaps and buffers of Metal are device memory, blocks lie in their heaps with the bytes of their
// buffers, and what is refused is out of memory, by PyTorch and by Metal. What is printed twice is one; what was
// freed unseen ends when its address comes again.
func TestAttachHeaps(t *testing.T) {
	w := watch(t, "heaps", nil)
	require.NoError(t, w.err)
	require.Empty(t, w.noted.warnings)
	require.Contains(t, strings.Join(w.noted.notices, "\n"), "out of memory: a request for 3.0 GiB failed")
	v, err := w.input(t).View()
	require.NoError(t, err)
	const mib = 1 << 20
	a := &v.Snapshot.Accounts[0]
	require.EqualValues(t, 100*4096+3*2*mib, a.Live.Bytes)
	require.EqualValues(t, 100*4096+mib+mib+2*mib-100, a.Live.Requested)
	require.EqualValues(t, 1, a.OOMs)
	require.Len(t, v.Snapshot.Drivers, 1)
	d := &v.Snapshot.Drivers[0]
	require.Equal(t, event.LayerDevice, d.Layer)
	require.EqualValues(t, (32+16+5)*mib, d.Live.Bytes)
	require.EqualValues(t, 32*mib, d.Segments.Bytes, "the heap that blocks are in")
	require.EqualValues(t, 1, d.OOMs)
	require.Zero(t, a.UnknownFrees)
}

// TestAttachWithoutMetal: where dtrace does not take the names of Metal's classes, blocks are seen as before.
func TestAttachWithoutMetal(t *testing.T) {
	w := watch(t, "nometal", nil)
	v, err := w.input(t).View()
	require.NoError(t, err)
	require.EqualValues(t, 100*4096, v.Snapshot.Accounts[0].Live.Bytes)
	require.Contains(t, strings.Join(w.noted.warnings, "\n"), "heaps are not seen: ")
	require.Contains(t, strings.Join(w.noted.notices, "\n"), "by dtrace: PyTorch's blocks, native stacks only")
}

// noHeaps: where no initialiser of Metal matches, dtrace is silent, and the recording says that there were no heaps.
func (w *watched) noHeaps(t *testing.T) {
	t.Helper()
	require.Len(t, w.noted.warnings, 1)
	require.Contains(t, w.noted.warnings[0], "no heap and no buffer of Metal was seen")
}

// TestAttachLosses: drops, and lines that make no sense, are lost events of an interval; what is whole is kept.
func TestAttachLosses(t *testing.T) {
	w := watch(t, "losses", nil)
	v, err := w.input(t).View()
	require.NoError(t, err)
	lost := uint64(0)
	for _, l := range v.Snapshot.LossIntervals {
		lost += l.Events
	}
	require.EqualValues(t, 12+3+2, lost)
	require.EqualValues(t, 100*4096+8192, v.Snapshot.Accounts[0].Live.Bytes, "the block whose stack was cut is there")
	cut := false
	for i := range v.Sites {
		cut = cut || v.Sites[i].Stack != nil && v.Sites[i].Stack.Status == event.StatusTooDeep
	}
	require.True(t, cut)
}

// TestAttachEnds: dtrace that ends before its process, with half a line; and one that was aborted.
func TestAttachEnds(t *testing.T) {
	w := watch(t, "cut", nil)
	v, err := w.input(t).View()
	require.NoError(t, err)
	require.EqualValues(t, 100*4096+8192, v.Snapshot.Accounts[0].Live.Bytes)
	require.Contains(t, strings.Join(w.noted.warnings, "\n"), "dtrace ended before the process")

	w = watch(t, "early", nil)
	v, err = w.input(t).View()
	require.NoError(t, err)
	require.EqualValues(t, 4096, v.Snapshot.Accounts[0].Live.Bytes)
	require.Contains(t, strings.Join(w.noted.warnings, "\n"), "Abort due to systemic unresponsiveness")
}

// TestAttachStops: a recording that is stopped has dtrace end, and leaves the process.
func TestAttachStops(t *testing.T) {
	w := watch(t, "stop", func(o *recorder.Options) { o.Duration = 3 * time.Second })
	require.NoError(t, w.err)
	w.noHeaps(t)
	require.True(t, running(w.options.PIDs[0]))
}

// TestAttachRefused: each reason why dtrace may not attach is said, with what to do.
func TestAttachRefused(t *testing.T) {
	for mode, want := range map[string]string{
		"root": "sudo gputrace -p PID", "hardened": "com.apple.security.get-task-allow", "rosetta": "use a Python for arm64",
		"compile": "syntax error near", "silent": "exit status 1",
	} {
		w := watch(t, mode, nil)
		var attach *recorder.AttachError
		require.ErrorAs(t, w.err, &attach, mode)
		require.Contains(t, w.err.Error(), want, mode)
	}
	w := watch(t, "ok", func(o *recorder.Options) { o.All = true })
	require.ErrorIs(t, w.err, ErrAttach)
	w = watch(t, "ok", func(o *recorder.Options) { o.Children = true })
	require.ErrorIs(t, w.err, ErrAttach)
}
