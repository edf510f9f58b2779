// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// manyStacks makes 50 allocations, each by a stack of its own.
const manyStacks = `
import os, time, torch
def wait(name):
    while not os.path.exists('DIR/' + name):
        time.sleep(0.005)
torch.empty(1 << 20, device='cuda')
print('READY', os.getpid(), flush=True)
wait('go')
def deep(n, size):
    return deep(n - 1, size) if n else torch.empty(size, device='cuda')
kept = [deep(n, 1000 * n + 1) for n in range(50)]
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`

// TestStackLimit: with more different stacks than are kept every byte is counted all the same, on the stacks that are known and
// on one for the rest, and both the session and the recording say so.
func TestStackLimit(t *testing.T) {
	p := startPython(t, manyStacks).ready(t)
	c := startCommand(t, p, "--max-stacks", "20")
	p.release(t)
	line := p.await(t, "DONE")
	c.interrupt(t)
	require.Equal(t, 1, strings.Count(c.stderr.String(), "there are more than 20 different stacks"), c.stderr.String())
	inuse, alloc := c.profiles(t)
	checkAllocated(t, inuse, line)
	require.EqualValues(t, 50, sum(t, alloc, "alloc_objects", "torch"))
	over, stacks := int64(0), 0
	for _, s := range alloc.Sample {
		if s.Label["layer"][0] != "torch" || s.Value[0] == 0 {
			continue
		}
		if stacks++; s.Location[0].Line[0].Function.Name == "[over the limit]" {
			over += s.Value[0]
		}
	}
	require.Greater(t, over, int64(25), "allocations over the limit")
	require.LessOrEqual(t, stacks, 21)
	out, err := output(env.binary, "report", c.out())
	require.NoError(t, err)
	require.Contains(t, out, "[over the limit]")
}
