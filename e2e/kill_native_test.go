// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKillNative kills gputrace while it traces a program in C that needs no PyTorch: the program goes on, without a probe in it.
func TestKillNative(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", "10", "--batches", "1000000000", "--calls", "1000",
		"--go", filepath.Join(dir, "go")).ready(t)
	all := functions(t, p, "libc10.so", "_ZN3c1027reportMemoryUsageToProfilerE")
	p.release(t)
	c := startCommand(t, p)
	require.Len(t, changed(t, p, all), len(all), "functions with a probe")
	awaitMore(t, p)
	c.signal(t, syscall.SIGKILL)
	require.Equal(t, -1, c.code(t), c.stderr.String())
	requireUnchanged(t, p, all)
	awaitMore(t, p)
	requireNoLeftovers(t, c.dir)
}

// awaitMore waits until hotloop has made progress.
func awaitMore(t *testing.T, p *target) {
	t.Helper()
	batches := func() int { return countLines(p.output(), "batch ") }
	before := batches()
	eventually(t, "ten more batches", func() bool { return batches() > before+10 })
}
