// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// jax are JAX with its plugin for CUDA, without NVIDIA's libraries, and ptxas, which compiles what it jits.
var jax = []string{
	"jax==0.10.2", "--no-deps", "jaxlib==0.10.2", "jax-cuda13-plugin==0.10.2", "jax-cuda13-pjrt==0.10.2", "nvidia-cuda-nvcc==13.5.37",
	"ml_dtypes==0.6.0", "scipy==1.17.1", "opt_einsum==3.4.0",
}

// jaxEnvironment lets a program use JAX with the stand-in device.
func jaxEnvironment(t *testing.T) []string {
	t.Helper()
	packages := installed(t, jax[0], jax[1:]...)
	return []string{
		"PYTHONPATH=" + packages, "JAX_PLATFORMS=cuda", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1",
		"PATH=" + os.Getenv("PATH") + ":" + filepath.Join(packages, "nvidia", "cu13", "bin"),
	}
}

// TestJAX records a JAX program on the stand-in device: bytes in use and allocations equal JAX's own statistics of the device. It installs
// 400 MB:
//
//	go test -tags frameworks ./e2e -run TestJAX
func TestJAX(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, jaxEnvironment(t), filepath.Join(env.testdata, "run"), workload("jax_keeps.py"), dir).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	var bytes, allocations, before, after uint64
	_, err := fmt.Sscanf(p.await(t, "KEPT "), "KEPT %d %d %d %d", &bytes, &allocations, &before, &after)
	require.NoError(t, err)
	c.interrupt(t)
	require.Contains(t, joinedLines(c.stderr.String()), "JAX 0.10.2")
	screen := c.stdout.String()
	require.Regexp(t, `GROWING +jax_keeps.py:\d+ step keeps 1\.0 MiB more each step`, joinedLines(screen))
	require.Contains(t, screen, "kept.append(twice(z))")
	require.Regexp(t, `\n  kept\[0\.\.2\d\d\] `, screen)
	live := replayTrace(t, filepath.Join(c.out(), traceFile), nil).end.Totals().Accounts
	require.Len(t, live, 1)
	require.Equal(t, "cuda:0", live[0].Device.String())
	t.Logf("%d B in use and %d allocations by JAX, %d B and %d here", bytes, allocations, live[0].Live.Bytes, live[0].Allocs)
	require.Equal(t, []uint64{bytes, allocations}, []uint64{live[0].Live.Bytes, live[0].Allocs})
	t.Logf("%d B in use before the attach and %d B at the end by JAX, %+v", before, after, live[0])
	require.Equal(t, []uint64{before, after}, []uint64{live[0].Baseline, live[0].Allocated})
	require.Equal(t, after, fragmentsOf(t, filepath.Join(c.out(), traceFile)).Allocated, "the regions divide it")
}

// jaxHolds holds arrays by name on the stand-in device, as tensorflowHolds does. JAX looks for a device file, which it need
// not find here.
const jaxHolds = `
import json, os, sys, threading, time
import jax._src.hardware_utils as hardware
hardware.has_visible_nvidia_gpu = lambda: True
import jax
import jax.numpy as jnp
@jax.jit
def twice(x):
    return x * 2 + 1
def ones(n):
    return twice(jnp.ones((n, 300), jnp.float32))
kept, params = [ones(10 + n) for n in range(12)], {"w": ones(100), "b": ones(7)}
gone = [ones(200 + n) for n in range(4)]
del gone[1:3]
arrays = {f"kept[{i}]": x for i, x in enumerate(kept)}
arrays |= {f"params['{k}']": x for k, x in params.items()} | {f"gone[{i}]": x for i, x in enumerate(gone)}
held = {name: [x.block_until_ready().unsafe_buffer_pointer(), x.nbytes] for name, x in arrays.items()}
del arrays
print("READY", os.getpid(), flush=True)
WORK
stats = jax.devices()[0].memory_stats()
json.dump(dict(held=held, variables={}, current=stats["bytes_in_use"]), open("DIR/oracle.new", "w"))
os.rename("DIR/oracle.new", "DIR/oracle.json")
time.sleep(600)
`

// TestJAXCold reads the allocators of a JAX program that is not traced: the device's blocks add up to memory_stats() to the byte, and begin
// at the addresses of the program's arrays, under their names. The pool of host memory is apart.
//
//	go test -tags frameworks ./e2e -run TestJAXCold
func TestJAXCold(t *testing.T) {
	p, h := startHolding(t, jaxEnvironment(t), func(script string) []string { return []string{filepath.Join(env.testdata, "run"), script} },
		jaxHolds, "")
	d := dumpJSON(t, p.pid)
	require.Len(t, d.Devices, 2)
	gpu, host := &d.Devices[0], &d.Devices[1]
	require.Equal(t, []any{"GPU_0_bfc", false, 0, h.Current}, []any{gpu.Name, gpu.Host, gpu.Device, gpu.Counted["allocated"]})
	require.Equal(t, []any{"xla_gpu_host_bfc", true}, []any{host.Name, host.Host})
	require.Zero(t, host.Memory["allocated"])
	h.checkHolds(t, p, d)
	text, err := output(env.binary, "--json")
	require.NoError(t, err)
	var machine struct {
		Processes []struct {
			PID     int
			Devices []struct{ Allocated, Reserved *uint64 }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &machine))
	listed := false
	for _, m := range machine.Processes {
		if m.PID == p.pid {
			listed = true
			require.Len(t, m.Devices, 1)
			require.Equal(t, []uint64{h.Current, gpu.Memory["reserved"]}, []uint64{*m.Devices[0].Allocated, *m.Devices[0].Reserved})
		}
	}
	require.True(t, listed, text)
	text, _ = output(env.binary, "doctor", "-p", itoa(p.pid), "-v")
	require.Contains(t, joinedLines(text), "BFC, of TensorFlow or JAX: GPU_0_bfc, xla_gpu_host_bfc")
	screen, _, code := dump(t, p.pid)
	require.Zero(t, code)
	require.Contains(t, screen, "the allocator's map · JAX 0.10.2")
	require.Contains(t, screen, "cuda:0, allocator GPU_0_bfc")
	require.Contains(t, screen, "host memory, allocator xla_gpu_host_bfc")
	require.NotContains(t, screen, "PyTorch")
}

// TestJAXColdBusy: a JAX program that computes without a pause is read, too.
func TestJAXColdBusy(t *testing.T) {
	p, h := startHolding(t, jaxEnvironment(t), func(script string) []string { return []string{filepath.Join(env.testdata, "run"), script} },
		jaxHolds, `
def work():
    while True:
        twice(kept[0]).block_until_ready()
threading.Thread(target=work, daemon=True).start()`)
	for range 5 {
		d := dumpJSON(t, p.pid)
		require.Len(t, d.Devices, 2)
		gpu := &d.Devices[0]
		blocks, sum := d.held()
		low, _ := gpu.Changing.bounds()
		require.Equal(t, gpu.Counted["allocated"], sum+low)
		for name, want := range h.Held {
			require.Equal(t, want, blocks[name], name)
		}
	}
}
