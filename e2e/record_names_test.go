// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recording"
)

// holders has memory from before the attach, more of it for a while, and other memory at the end, in lists of known names.
const holders = `
import os, time, torch
def tensors(n, size):
    return list(map(lambda i: torch.empty(size, dtype=torch.uint8, device='cuda'), range(n)))
def wait(name):
    while not os.path.exists('DIR/' + name):
        time.sleep(0.01)
before = tensors(8, 1 << 20)
print('READY', os.getpid(), flush=True)
wait('rise')
tower = tensors(5, 40 << 20)
print('HIGH', flush=True)
wait('go')
del tower
later = tensors(3, 2 << 20)
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`

// leaves adds up the bytes of samples by their leaf, for those that lie below a frame.
func leaves(p *profile.Profile, below string) map[string]int64 {
	out := map[string]int64{}
	for _, s := range p.Sample {
		if s.Location[len(s.Location)-1].Line[0].Function.Name == below {
			out[s.Location[0].Line[0].Function.Name] += s.Value[3]
		}
	}
	return out
}

// TestRecordNames: a recording says what holds its live blocks, also of those that have no stack, at its end and at the
// moment when it was asked.
func TestRecordNames(t *testing.T) {
	p := startPython(t, holders).ready(t)
	c := startCommand(t, p)
	p.touch(t, "rise")
	p.await(t, "HIGH")
	c.signal(t, syscall.SIGUSR1)
	eventually(t, "the holders that were asked for", func() bool { return strings.Contains(c.stderr.String(), "tower[0..4]") })
	p.touch(t, "go")
	line := p.await(t, "DONE")
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	checkAllocated(t, inuse, line)
	require.Equal(t, map[string]int64{"before[0..7]": 8 << 20}, leaves(inuse, "[before attach]"))
	held := readRecording(t, filepath.Join(c.out(), traceFile)).end.Holders
	require.Len(t, held, 2, "of the end, and of the highest moment that was looked into")
	require.EqualValues(t, 208<<20, held[1].Bytes)
	now, high := rowsOf(&held[0]), rowsOf(&held[1])
	require.Equal(t, heldRow{"attach]", 8 << 20, 8}, now["before[0..7]"])
	require.Equal(t, heldRow{"tensors.<locals>.<lambda>", 6 << 20, 3}, now["later[0..2]"])
	require.NotContains(t, now, "tower[0..4]")
	require.Equal(t, heldRow{"tensors.<locals>.<lambda>", 200 << 20, 5}, high["tower[0..4]"])
	for _, name := range []string{"before[0..7]", "later[0..2]", "tower[0..4]"} {
		require.Contains(t, c.stdout.String(), name)
	}
}

// heldRow is blocks that have one holder.
type heldRow struct {
	site          string // the last word of their site: of a line, its function
	bytes, blocks uint64
}

// rowsOf returns what a recording says of holders, by their names.
func rowsOf(h *recording.Holders) map[string]heldRow {
	out := map[string]heldRow{}
	for _, r := range h.Rows {
		out[r.Name] = heldRow{r.Site[strings.LastIndexByte(r.Site, ' ')+1:], r.Bytes, r.Blocks}
	}
	return out
}

// TestRecordWithoutNames: the process's memory is left alone, but for the allocator state.
func TestRecordWithoutNames(t *testing.T) {
	p := startPython(t, holders).ready(t)
	c := startCommand(t, p, "--no-holders")
	p.touch(t, "rise")
	p.touch(t, "go")
	line := p.await(t, "DONE")
	c.interrupt(t)
	inuse, _ := c.profiles(t)
	checkAllocated(t, inuse, line)
	require.Equal(t, map[string]int64{"[before attach]": 8 << 20}, leaves(inuse, "[before attach]"))
	require.NotContains(t, c.stdout.String(), "before[")
}

// TestRecordNamesOfEnded: a target that ends on its own leaves the names that were read before.
func TestRecordNamesOfEnded(t *testing.T) {
	p := startPython(t, holders).ready(t)
	c := startCommand(t, p)
	p.touch(t, "rise")
	p.await(t, "HIGH")
	c.signal(t, syscall.SIGUSR1)
	eventually(t, "the holders that were asked for", func() bool { return strings.Contains(c.stderr.String(), "tower[0..4]") })
	require.NoError(t, syscall.Kill(p.pid, syscall.SIGKILL))
	c.succeeds(t)
	inuse, _ := c.profiles(t)
	require.Equal(t, map[string]int64{"before[0..7]": 8 << 20}, leaves(inuse, "[before attach]"))
}
