// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestTotals checks, at every step boundary, that the live blocks add up to what PyTorch says is allocated, to the byte.
func TestTotals(t *testing.T) {
	tests := []struct {
		name, script string
		args         []string
		late         int // attach when so many steps are done; 0: before the first allocation
		rings        int // of groups of CPUs
	}{
		{name: "mlp", script: "mlp.py", args: []string{"--steps", "200"}},
		{name: "gpt", script: "gpt.py", args: []string{"--steps", "100", "--layers", "2", "--width", "128", "--vocab", "1000"}},
		{name: "gpt, several rings", script: "gpt.py", args: []string{"--steps", "100", "--layers", "2", "--width", "128", "--vocab", "1000"},
			rings: 2},
		{name: "mlp attached late", script: "mlp.py", args: []string{"--steps", "200"}, late: 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := startTraining(t, tt.script, append(tt.args, "--counters", "DIR/counters")...).ready(t)
			if tt.late > 0 {
				p.release(t)
				p.freeze(t, tt.late)
			}
			o := options()
			o.Rings = tt.rings
			tr := attach(t, p.pid, o, nil)
			p.thaw(t)
			p.release(t)
			p.done(t)
			tr.finishWhole(t)
			checkBoundaries(t, tr, readCounters(t, p), tt.late > 0)
		})
	}
}

func checkBoundaries(t *testing.T, tr *trace, steps []counters, late bool) {
	t.Helper()
	h, next, checked := heap.New(), 0, 0
	for _, c := range steps {
		for ; next < len(tr.events) && tr.events[next].Time < c.Boottime; next++ {
			h.Apply(&tr.events[next])
		}
		if next == 0 { // before the attach
			continue
		}
		checked++
		totals := h.Totals()
		require.Len(t, totals.Accounts, 1)
		a := totals.Accounts[0]
		require.Equal(t, c.Allocated, a.Allocated, "step %d", c.Step)
		require.Equal(t, c.Reserved, a.Reserved, "step %d", c.Step)
		require.Equal(t, c.Allocated, blockBytes(h)+a.Before, "step %d: sum of the blocks", c.Step)
		require.Zero(t, a.Lost)
		require.Zero(t, a.Gaps)
		require.Equal(t, late, a.Baseline > 0, "baseline %d", a.Baseline)
	}
	require.GreaterOrEqual(t, checked, 100, "step boundaries")
	t.Logf("%d step boundaries, %d events, to the byte", checked, next)
}

func blockBytes(h *heap.Heap) uint64 {
	var n uint64
	for b := range h.Blocks() {
		if b.Layer == event.LayerAllocator {
			n += b.Size
		}
	}
	return n
}

// TestSegments checks the device layer against PyTorch: what the heap takes for segments is what it says is reserved.
func TestSegments(t *testing.T) {
	ledger := filepath.Join(t.TempDir(), "ledger")
	p := startTrainingIn(t, []string{"STANDIN_LEDGER=" + ledger, "STANDIN_LEDGER_SYNC=1"}, "gpt.py",
		"--steps", "20", "--counters", "DIR/counters", "--layers", "2", "--width", "128", "--vocab", "1000").ready(t)
	before := deviceMemory(t, ledger).bytes() // reserved
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	h := heap.New()
	for i := range tr.events {
		h.Apply(&tr.events[i])
	}
	var live, segments uint64
	for _, d := range h.Totals().Drivers {
		if d.Layer == event.LayerDevice {
			live += d.Live.Bytes
			segments += d.Segments.Bytes
		}
	}
	steps := readCounters(t, p)
	require.Equal(t, steps[len(steps)-1].Reserved, before+segments)
	require.Equal(t, deviceMemory(t, ledger).bytes(), before+live, "memory from the driver")
	require.Greater(t, live, segments, "cuBLAS has memory of its own")
}
