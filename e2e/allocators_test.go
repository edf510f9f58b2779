// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/tracer/hook"
)

// unlisted is an allocator that is in no list: nothing is claimed of it.
const unlisted = 7

// arena is an allocator that the table of hooks does not have: testdata/programs/libarena.c. Its memory is what a
// function returns, its free says no size, and the device is in what the pool points to.
var (
	arena     = &hook.Library{Name: "arena", Globs: []string{"libarena.so"}}
	arenaRows = []hook.Row{
		arenaRow("arena_take", event.KindAlloc, hook.Operand{From: hook.FromReturn}, hook.Operand{From: hook.FromArg, Arg: 1}),
		arenaRow("arena_give", event.KindFree, hook.Operand{From: hook.FromArg, Arg: 1}),
	}
)

func arenaRow(symbol string, kind event.Kind, addr hook.Operand, dims ...hook.Operand) hook.Row {
	return hook.Row{
		Library: arena, Symbol: symbol, Program: hook.Call, Layer: event.LayerAllocator, Allocator: unlisted, Kind: kind,
		DeviceType: event.DeviceCUDA, Pointer: hook.None, Size: hook.None, Allocated: hook.None, Reserved: hook.None, Device: hook.None,
		Handle: hook.Operand{From: hook.FromArg}, Ordinal: hook.Operand{From: hook.FromField32}, Addr: addr, Dims: dims, NoStatus: true,
	}
}

// TestArena: an allocator is traced by adding its rows. What is live on each device is what its pools say, to the byte.
func TestArena(t *testing.T) {
	rows, libraries := hook.Rows, hook.Libraries
	hook.Rows, hook.Libraries = append(arenaRows, rows...), append([]*hook.Library{arena}, libraries...)
	defer func() { hook.Rows, hook.Libraries = rows, libraries }()

	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "arena"), "--go", filepath.Join(dir, "go"), "--hold",
		filepath.Join(dir, "hold")).ready(t)
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	var used [2]uint64
	var taken, refused uint64
	_, err := fmt.Sscanf(p.await(t, "USED "), "USED %d %d %d %d", &used[0], &used[1], &taken, &refused)
	require.NoError(t, err)
	require.Positive(t, refused)
	tr.finishWhole(t)
	h := heap.New()
	h.ApplyAll(tr.events)
	totals := h.Totals()
	require.Len(t, totals.Accounts, len(used))
	allocated := uint64(0)
	for i := range totals.Accounts {
		a := &totals.Accounts[i]
		require.EqualValues(t, unlisted, a.Device.Allocator())
		require.Equal(t, used[a.Device.Index], a.Live.Bytes, "cuda:%d", a.Device.Index)
		require.Zero(t, a.UnknownFrees+a.LostFrees+a.Gaps)
		require.Equal(t, fmt.Sprintf("cuda:%d", a.Device.Index), a.Device.String())
	}
	for _, s := range h.Snapshot().Sites {
		allocated += s.Alloc.Bytes
		stack := tr.target.Stack(s.Stack)
		require.True(t, stack.Status.Complete())
		require.Contains(t, stack.Frames[0].Func+stack.Frames[1].Func, "main", "who took it")
	}
	require.Equal(t, taken, allocated)
	require.Zero(t, totals.Ignored)
}

// tensorflowKeeps keeps one result of each step, on TensorFlow's own allocator. It prints how many bytes those are, and the bytes that
// the allocator itself counted as in use before the steps and after them.
const tensorflowKeeps = `
import os, sys, time
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="2")
import tensorflow as tf
weights, before, kept = tf.Variable(tf.random.normal([512, 512])), [], []
def step(kept):
    kept.append(tf.matmul(tf.random.normal([64, 512]), weights))
def current():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]
for n in range(8):
    step(before)
print("READY", os.getpid(), flush=True)
while not os.path.exists("DIR/go"):
    time.sleep(0.01)
attached = current()
del before[:3]
for n in range(120):
    step(kept)
    STEP
print("KEPT", sum(x.shape[0] * x.shape[1] * 4 for x in kept), attached, current(), flush=True)
while not os.path.exists("DIR/hold"):
    time.sleep(0.01)
`

// tensorflow is the version of which the allocator's report was read; its build for processors has the same allocator as that for GPUs.
const tensorflow = "tensorflow-cpu==2.21.0"

// TestTensorFlow records a TensorFlow program: what it keeps is known to the byte with the line that made it, and the first screen says so.
// The blocks from before the attach are read from the allocator.
func TestTensorFlow(t *testing.T) {
	live, kept, screen := recordTensorFlow(t, "time.sleep(0.02)")
	require.Contains(t, screen, "GROWING")
	require.Contains(t, joinedLines(screen), "keeps 128.0 KiB more each step")
	require.Contains(t, screen, "BFC's total was read from its memory · equal to the allocator's state")
	require.Regexp(t, `\n  kept\[0\.\.1\d\d\] `, screen)
	require.Regexp(t, `-> kept (grew from \d+ to 120|has 120) elements`, joinedLines(screen)) // read once before the end, or not
	require.Regexp(t, `in use +now [\d.]+ MiB · peak `, screen)
	require.NotContains(t, screen, "PyTorch")
	require.EqualValues(t, kept, live.Live.Requested, "%+v", live)
	require.Greater(t, live.BeforeBlocks.Requested, uint64(512*512*4+5*64*512*4), "the weights, and what was not freed")
}

// TestTensorFlowBusy: the blocks from before are found in a program that allocates without a pause.
func TestTensorFlowBusy(t *testing.T) {
	live, kept, _ := recordTensorFlow(t, "for _ in range(100): step([])")
	require.EqualValues(t, kept, live.Live.Requested, "%+v", live)
}

// recordTensorFlow records tensorflowKeeps, and requires that the bytes in use at the attach and at the end are TensorFlow's own figures.
func recordTensorFlow(t *testing.T, step string) (live *heap.Account, kept uint64, screen string) {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "keeps.py")
	require.NoError(t, os.WriteFile(script, []byte(strings.NewReplacer("DIR", dir, "STEP", step).Replace(tensorflowKeeps)), 0o600))
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	p := startIn(t, dir, []string{"PYTHONPATH=" + installed(t, tensorflow)}, python, script).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	var attached, current uint64
	_, err = fmt.Sscanf(p.await(t, "KEPT "), "KEPT %d %d %d", &kept, &attached, &current)
	require.NoError(t, err)
	c.interrupt(t)
	require.Contains(t, joinedLines(c.stderr.String()), "TensorFlow 2")
	inuse, _ := readProfiles(t, c.out(), "report.html", "trace.gputrace")
	require.EqualValues(t, current, sum(t, inuse, "inuse_space", "torch"))
	accounts := replayTrace(t, filepath.Join(c.out(), traceFile), nil).end.Totals().Accounts
	require.Len(t, accounts, 1)
	t.Logf("%d B before the attach and %d B at the end by TensorFlow, %+v", attached, current, accounts[0])
	require.Equal(t, []uint64{attached, current}, []uint64{accounts[0].Baseline, accounts[0].Allocated})
	require.Equal(t, accounts[0].Allocated, accounts[0].Before+accounts[0].Live.Bytes)
	require.Zero(t, accounts[0].Lost+int64(accounts[0].Gaps+accounts[0].LostFrees))
	f := fragmentsOf(t, filepath.Join(c.out(), traceFile))
	require.Equal(t, current, f.Allocated, "the regions divide it")
	require.Equal(t, f.Reserved, f.Allocated+f.Inactive+f.Free)
	return &accounts[0], kept, c.stdout.String()
}
