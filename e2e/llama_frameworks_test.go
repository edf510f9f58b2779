// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestLlama records llama.cpp, which has no PyTorch: each buffer has the size that llama.cpp prints, and the first screen says which
// it is. It installs 72 MB, for x86-64:
//
//	go test -tags frameworks ./e2e -run TestLlama
func TestLlama(t *testing.T) {
	library, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "llama")
	require.NoError(t, err)
	dir := t.TempDir()
	environment := []string{"TORCH_VERSION=2.1.2"} // whose stand-in has the runtime of CUDA 12
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), workload("llama_cpp.py"), dir, library).ready(t)
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t).ready(t)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	var printed []float64
	for _, name := range []string{"model", "KV", "compute"} {
		found := regexp.MustCompile(`CUDA0 ` + name + ` buffer size = +([0-9.]+) MiB`).FindStringSubmatch(p.stderr.String())
		require.Len(t, found, 2, "%s in %s", name, p.stderr.String())
		size, err := strconv.ParseFloat(found[1], 64)
		require.NoError(t, err)
		printed = append(printed, size)
	}
	require.Equal(t, []float64{80.60, 8, 9.51}, printed)
	screen := joinedLines(c.stdout.String())
	for _, part := range []string{"serving weights 80.6 MiB", "KV cache 8.0 MiB", "activations 9.5 MiB", "libraries 2.0 MiB", "other 0 B"} {
		require.Contains(t, screen, part)
	}
	end := replayTrace(t, filepath.Join(c.out(), traceFile), nil).end.Totals()
	live := uint64(0)
	for i := range end.Drivers {
		if d := &end.Drivers[i]; d.Layer == event.LayerDevice {
			live += d.Live.Bytes
		}
	}
	const mib = 1 << 20
	require.InDelta(t, printed[0]+printed[1]+printed[2]+2, float64(live)/mib, 0.02, "and 2 MiB of its pool for operations")
}
