// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// peaky allocates and frees in threads and on streams, then holds less than it had, and says what PyTorch counted at most.
const peaky = `
import os, random, threading, time, torch
before = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')
torch.cuda.reset_peak_memory_stats()
print('READY', os.getpid(), flush=True)
while not os.path.exists('DIR/go'):
    time.sleep(0.01)
def work(n):
    r, mine = random.Random(n), []
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(400):
            mine.append(torch.empty(r.randrange(1, 5 << 20), dtype=torch.uint8, device='cuda'))
            if len(mine) > 40:
                del mine[::r.randrange(2, 5)]
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print('DONE', torch.cuda.max_memory_allocated(), flush=True)
while not os.path.exists('DIR/hold'):
    time.sleep(0.01)
`

// TestPeakProfile: the profile of the peak has what PyTorch counted at most, to the byte, by the lines that had it.
func TestPeakProfile(t *testing.T) {
	p := startPython(t, peaky).ready(t)
	c := startCommand(t, p)
	p.touch(t, "go")
	line := p.await(t, "DONE")
	c.interrupt(t)
	peak := readProfile(t, filepath.Join(c.out(), "peak.pb.gz"))
	checkAllocated(t, peak, line)
	require.Equal(t, map[string]int64{"[before attach]": 3 << 20}, leaves(peak, "[before attach]"))
	inuse, _ := c.profiles(t)
	require.EqualValues(t, 3<<20, sum(t, inuse, "inuse_space", "torch"))
	require.Contains(t, c.stdout.String(), "at the peak by Python line")
	high := exportJSON(t, filepath.Join(c.out(), traceFile), "--at", "peak")
	require.Equal(t, allocated(t, line), high.Summary.Bytes)
	require.Equal(t, 12, high.Lines[0].Line, "the line of work that allocates has most")
	require.Equal(t, allocated(t, line)-3<<20, high.bytesOf(12))
}
