// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// trained is a model that trains: forward in Python, backward in autograd's own thread, an optimizer.
const trained = `
import os, time, torch
model = torch.nn.Sequential(
    torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.MultiheadAttention(64, 4, batch_first=True)).cuda()
optimizer = torch.optim.Adam(model.parameters())
def step():
    x = torch.randn(8, 16, 64, device='cuda')
    for layer in model[:-1]:
        x = layer(x)
    x, _ = model[-1](x, x, x)
    loss = x.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
step()
step()
print('READY', os.getpid(), flush=True)
while not os.path.exists('DIR/go'):
    time.sleep(0.01)
for _ in range(20):
    step()
print('DONE', flush=True)
while not os.path.exists('DIR/hold'):
    time.sleep(0.01)
`

// gdbStops is how many reports of the allocator the debugger looks at.
const gdbStops = 400

// gdbStack is what the debugger found at a report.
type gdbStack struct {
	Addr uint64
	Size int64
	TID  uint32
	PCs  []uint64
	End  string // why the unwinding ended
}

// TestStacksEqualGDB: at the same reports of the same process, the debugger unwinds the same native frames, address by address.
func TestStacksEqualGDB(t *testing.T) {
	_, err := exec.LookPath("gdb")
	require.NoError(t, err, ".ci/install test")
	p := startPython(t, trained).ready(t)
	o := options()
	o.FreeStacks = true
	tr := attach(t, p.pid, o, nil)
	list := filepath.Join(t.TempDir(), "stacks")
	gdb := exec.Command("gdb", "-nx", "-batch", "-p", itoa(p.pid), "-x", "testdata/gdb_stacks.py")
	gdb.Env = append(os.Environ(), "GO="+filepath.Join(p.dir, "go"), "STACKS="+list, "LAST="+itoa(gdbStops), "DEBUGINFOD_URLS=")
	said, err := gdb.CombinedOutput()
	require.NoError(t, err, "%s", said)
	text, err := os.ReadFile(list)
	require.NoError(t, err, "%s", said)
	var want []gdbStack
	require.NoError(t, json.Unmarshal(text, &want))
	require.Len(t, want, gdbStops)
	p.done(t)
	tr.finishWhole(t)
	got := tr.layer(event.LayerAllocator)
	require.GreaterOrEqual(t, len(got), gdbStops)
	threads, depth := map[uint32]int{}, 0
	for i, w := range want {
		e := &got[i]
		size := int64(e.Size)
		if e.Kind == event.KindFree {
			size = -size
		}
		require.Equal(t, []any{w.Addr, w.Size, w.TID}, []any{e.Addr, size, e.TID}, "event %d", i)
		stack := tr.target.Stack(e.Stack)
		require.NotNil(t, stack, "event %d", i)
		require.Equal(t, event.StatusOK, stack.Status, "event %d", i)
		pcs := nativePCs(stack)
		require.Equal(t, w.PCs[1:], pcs[1:], "event %d; the debugger ended: %s", i, w.End) // the leaf is where each of them stopped
		threads[e.TID]++
		depth = max(depth, len(pcs))
	}
	require.Greater(t, len(threads), 1, "autograd's thread too")
	require.Greater(t, depth, 40)
}

// nativePCs is the addresses of a stack's native frames, leaf first.
func nativePCs(s *event.Stack) []uint64 {
	var out []uint64
	for i := range s.Frames {
		if f := &s.Frames[i]; f.Kind == event.FrameNative && !f.Inlined {
			out = append(out, f.Addr)
		}
	}
	return out
}
