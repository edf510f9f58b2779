// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tensorflowHolds holds tensors and variables by name on TensorFlow's own allocator. It writes where each of them is, by its own buffer,
// and what the allocator counts. WORK goes on behind it.
const tensorflowHolds = `
import json, os, sys, threading, time
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="2")
import numpy as np
import tensorflow as tf
def normal(n):
    return tf.random.normal([n, 300])
kept, cache = [normal(10 + n) for n in range(12)], {"features": normal(100), "labels": normal(7)}
class Model:
    def __init__(self):
        self.layers = [tf.Variable(normal(40 + n)) for n in range(5)]
model = Model()
gone = [normal(200 + n) for n in range(4)]
del gone[1:3]
def at(x):
    return np.asarray(memoryview(x)).__array_interface__["data"][0]
arrays = {f"kept[{i}]": x for i, x in enumerate(kept)}
arrays |= {f"cache['{k}']": x for k, x in cache.items()} | {f"gone[{i}]": x for i, x in enumerate(gone)}
held = {name: [at(x), x.shape[0] * 300 * 4] for name, x in arrays.items()}
variables = {f"model.layers[{i}]": int(v.shape[0]) * 300 * 4 for i, v in enumerate(model.layers)}
del arrays
print("READY", os.getpid(), flush=True)
WORK
current = tf.config.experimental.get_memory_info("CPU:0")["current"]
json.dump(dict(held=held, variables=variables, current=current), open("DIR/oracle.new", "w"))
os.rename("DIR/oracle.new", "DIR/oracle.json")
time.sleep(600)
`

// holds is what a program itself says of its memory.
type holds struct {
	Held      map[string][2]uint64 // by name: address and bytes
	Variables map[string]uint64    // by name: bytes
	Current   uint64               // in use, by the allocator's own count
}

// startHolding starts a program that holds memory by name, and reads what it says.
func startHolding(t *testing.T, environment []string, program func(script string) []string, text, work string) (*target, *holds) {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "holds.py")
	require.NoError(t, os.WriteFile(script, []byte(strings.NewReplacer("DIR", dir, "WORK", work).Replace(text)), 0o600))
	command := program(script)
	p := startIn(t, dir, environment, command[0], command[1:]...).ready(t)
	file := filepath.Join(dir, "oracle.json")
	eventually(t, file, func() bool { return exists(file) })
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	h := &holds{}
	require.NoError(t, json.Unmarshal(b, h))
	return p, h
}

func startTensorFlow(t *testing.T, work string) (*target, *holds) {
	t.Helper()
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	program := func(script string) []string { return []string{python, script} }
	return startHolding(t, []string{"PYTHONPATH=" + installed(t, tensorflow)}, program, tensorflowHolds, work)
}

// held lists the blocks of a map by the name of their holder, and what they add up to.
func (d *dumped) held() (blocks map[string][2]uint64, sum uint64) {
	blocks = map[string][2]uint64{}
	for _, device := range d.Devices {
		for _, s := range device.Segments {
			for _, b := range s.Blocks {
				if b.State == "active_allocated" {
					blocks[b.Holder] = [2]uint64{b.Address, *b.Requested}
					sum += b.Size
				}
			}
		}
	}
	return blocks, sum
}

// checkHolds compares a map and the holders with what the program says: each array is in the block that begins at its own address, under
// its name in the program.
func (h *holds) checkHolds(t *testing.T, p *target, d *dumped) {
	t.Helper()
	blocks, sum := d.held()
	for name, want := range h.Held {
		require.Equal(t, want, blocks[name], name)
	}
	for name, bytes := range h.Variables {
		require.Equal(t, bytes, blocks[name][1], name)
	}
	require.Equal(t, h.Current, sum, "the allocator's own count")
	report := whoJSON(t, p.pid)
	seen := map[string]uint64{}
	for i := range report.Blocks {
		b := &report.Blocks[i]
		require.Equal(t, "BFC", b.Allocator)
		if b.Category == "unknown" {
			require.Contains(t, b.Why, "no array")
			continue
		}
		seen[b.Name] = b.Address
	}
	for name, want := range h.Held {
		require.Equal(t, want[0], seen[name], "%s in who", name)
	}
	for name := range h.Variables {
		require.Equal(t, blocks[name][0], seen[name], "%s in who", name)
	}
}

// TestTensorFlowCold reads the allocator of a TensorFlow program that is not traced: the blocks add up to TensorFlow's own count to the
// byte, and are where the program has its tensors, under its own names.
func TestTensorFlowCold(t *testing.T) {
	p, h := startTensorFlow(t, "")
	d := dumpJSON(t, p.pid)
	require.Len(t, d.Devices, 1)
	device := &d.Devices[0]
	require.Equal(t, []any{"bfc_cpu_allocator_for_gpu", true, h.Current}, []any{device.Name, device.Host, device.Memory["allocated"]})
	require.Zero(t, *device.Unexplained)
	require.Nil(t, device.Changing)
	require.Empty(t, d.Notes)
	ids := map[uint64]bool{}
	for _, s := range device.Segments {
		at := s.Address
		for _, b := range s.Blocks {
			require.Equal(t, at, b.Address, "without a gap")
			require.False(t, b.ID != 0 && ids[b.ID], "two blocks are allocation %d", b.ID)
			require.Equal(t, b.State == "active_allocated", b.ID != 0)
			ids[b.ID], at = true, at+b.Size
		}
		require.Equal(t, s.Address+s.Size, at)
	}
	h.checkHolds(t, p, d)

	screen, _, code := dump(t, p.pid)
	require.Zero(t, code)
	require.Contains(t, screen, "the allocator's map · TensorFlow 2")
	require.Contains(t, screen, "host memory, allocator bfc_cpu_allocator_for_gpu")
	require.NotContains(t, screen, "PyTorch")
	screen, _, code = who(t, p.pid)
	require.Zero(t, code)
	require.NotContains(t, screen, "PyTorch")
	require.Regexp(t, `\n  kept\[0\.\.11\] `, screen)
	checkColdSnapshot(t, p, device.Memory)
}

// checkColdSnapshot: CPython reads the snapshot, and fragments finds the same free memory in it.
func checkColdSnapshot(t *testing.T, p *target, memory map[string]uint64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "state.pickle")
	_, stderr, code := dump(t, p.pid, "-f", "snapshot", "-o", file)
	require.Zero(t, code, stderr)
	sum := uint64(0)
	for _, s := range unpickle(t, file) {
		sum += s.Size
		for _, b := range s.Blocks {
			if b.State == "inactive" {
				sum -= b.Size
			}
		}
	}
	require.Equal(t, memory["allocated"], sum)
	f := fragmentsOf(t, file)
	require.Equal(t, []uint64{memory["reserved"], memory["allocated"], memory["inactive_split"], memory["free"]},
		[]uint64{f.Reserved, f.Allocated, f.Inactive, f.Free})
}

// divided is how the memory of one device is divided.
type divided struct {
	Reserved, Allocated uint64
	Inactive            uint64 `json:"inactive_split"`
	Free                uint64 `json:"free_segments"`
}

// fragmentsOf runs gputrace fragments on a file with one device.
func fragmentsOf(t *testing.T, file string) *divided {
	t.Helper()
	text, err := output(env.binary, "fragments", file, "--json")
	require.NoError(t, err)
	var found struct{ Devices []divided }
	require.NoError(t, json.Unmarshal([]byte(text), &found), text)
	require.Len(t, found.Devices, 1)
	return &found.Devices[0]
}

// TestTensorFlowColdBusy: a program that allocates without a pause is read, too. Its tensors stay where they are meanwhile.
func TestTensorFlowColdBusy(t *testing.T) {
	p, h := startTensorFlow(t, `
def work():
    while True:
        normal(33)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()`)
	for range 5 {
		stdout, stderr, code := dump(t, p.pid, "-f", "json", "--no-holders")
		require.Zero(t, code, stderr)
		d := parseDumped(t, stdout)
		require.Len(t, d.Devices, 1)
		device := &d.Devices[0]
		require.Zero(t, *device.Unexplained)
		_, sum := d.held()
		low, _ := device.Changing.bounds()
		require.Equal(t, device.Counted["allocated"], sum+low)
		at := map[uint64]bool{}
		for _, s := range device.Segments {
			for _, b := range s.Blocks {
				at[b.Address] = b.State == "active_allocated"
			}
		}
		for name, want := range h.Held {
			require.True(t, at[want[0]], name)
		}
	}
	report := whoJSON(t, p.pid)
	seen := map[string]uint64{}
	for i := range report.Blocks {
		seen[report.Blocks[i].Name] = report.Blocks[i].Address
	}
	for name, want := range h.Held {
		require.Equal(t, want[0], seen[name], name)
	}
}

// TestTensorFlowWithoutBFC: a program with another allocator has no map, and the screen says what to do.
func TestTensorFlowWithoutBFC(t *testing.T) {
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	script := filepath.Join(t.TempDir(), "plain.py")
	text := "import os, time\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'\nimport tensorflow as tf\nx = tf.zeros([9])\n" +
		"print('READY', os.getpid(), flush=True)\ntime.sleep(600)\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o600))
	p := startIn(t, t.TempDir(), []string{"PYTHONPATH=" + installed(t, tensorflow)}, python, script).ready(t)
	for _, look := range []func(*testing.T, int, ...string) (string, string, int){dump, who} {
		_, stderr, code := look(t, p.pid)
		require.Equal(t, 7, code, stderr)
		require.Contains(t, stderr, "TensorFlow or JAX is loaded, and has none")
		require.Contains(t, stderr, "sudo gputrace -p "+itoa(p.pid))
	}
}

// TestTensorFlowIdle records a program that neither allocates nor frees: its allocator is found without an event, and all of its memory is
// known.
func TestTensorFlowIdle(t *testing.T) {
	p, h := startTensorFlow(t, "")
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	c.interrupt0(t)
	require.Regexp(t, `\n  gone\[0\.\.1\] `, c.stdout.String())
	accounts := replayTrace(t, filepath.Join(c.out(), traceFile), nil).end.Totals().Accounts
	require.Len(t, accounts, 1)
	require.Equal(t, []uint64{h.Current, h.Current}, []uint64{accounts[0].Allocated, accounts[0].Before})
	require.Equal(t, h.Current, fragmentsOf(t, filepath.Join(c.out(), traceFile)).Allocated)
}
