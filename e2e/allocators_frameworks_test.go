// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
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

// TestJAX records a JAX program on the stand-in device: bytes in use and allocations equal JAX's own statistics of the device. It installs
// 400 MB:
//
//	go test -tags frameworks ./e2e -run TestJAX
func TestJAX(t *testing.T) {
	const device = "/dev/nvidia0" // JAX looks whether there is one
	if !exists(device) {
		require.NoError(t, os.WriteFile(device, nil, 0o600))
		t.Cleanup(func() { _ = os.Remove(device) })
	}
	dir, packages := t.TempDir(), installed(t, jax[0], jax[1:]...)
	environment := []string{
		"PYTHONPATH=" + packages, "JAX_PLATFORMS=cuda", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1",
		"PATH=" + os.Getenv("PATH") + ":" + filepath.Join(packages, "nvidia", "cu13", "bin"),
	}
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), workload("jax_keeps.py"), dir).ready(t)
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
}
