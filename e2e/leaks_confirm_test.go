// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeaksConfirmed: programs that were written when the thresholds had been chosen, by somebody who did not choose them. Half of
// them are played, with GPUTRACE_LEAKS=all each.
func TestLeaksConfirmed(t *testing.T) {
	tests := map[string]struct {
		kind, code, holder string
		requested, blocks  float64 // each period; 0: by the program's inner workings
		period             int
	}{
		"running_total": {kind: "leak", code: "return F.cross_entropy(", holder: "total.grad_fn", period: 1},
		"memoized":      {kind: "leak", code: "torch.ones(32, 32", holder: "mask.cache[", requested: 4 * 32 * 32, blocks: 1, period: 1},
		"hooks": {kind: "leak", code: "self.outputs[id(module)].append", holder: "recorder.outputs[", requested: 4 * 15 * 128,
			blocks: 1, period: 1},
		"sessions": {kind: "leak", code: `clients["client-`, holder: "clients[", requested: 4 * 100, blocks: 1,
			period: 1}, // which leads to the other line
		"every_seventh": {kind: "leak", code: "run.model.head.weight.detach().clone()", holder: "history[", requested: 4 * 64 * 100, blocks: 1,
			period: 7},
		"pinned":         {kind: "host", code: ".pin_memory()", requested: 8 * 4 * 16, blocks: 1, period: 1},
		"raw":            {kind: "device", code: "runtime.cudaMalloc(", requested: 1 << 20, blocks: 1, period: 1},
		"graph_of_state": {kind: "leak", code: "state = cell(", holder: "state.grad_fn", period: 1},
		"slow_growth":    {kind: "growth", code: "context = torch.cat(", holder: "context", requested: 4 * 4 * 64, period: 1},
	}
	all := os.Getenv("GPUTRACE_LEAKS") == "all"
	for name, tt := range tests {
		if !all && !slices.Contains([]string{"running_total", "hooks", "every_seventh", "pinned", "raw", "graph_of_state"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := leaksOf(t, "confirm.py", "--case", name, "--steps", "100")
			require.Equal(t, "growing", r.Verdict)
			f := r.Findings[0]
			require.Equal(t, tt.kind, f.Kind)
			require.Contains(t, sourceLine(t, f.File, f.Line), tt.code)
			require.Equal(t, tt.period, f.Period)
			if tt.blocks > 0 {
				require.InDelta(t, tt.blocks, f.Blocks*float64(f.Period), 1e-6)
			}
			if tt.requested > 0 {
				require.InDelta(t, tt.requested, f.Requested*float64(f.Period), 1e-3, "exact to the byte")
			}
			if f.Holder != "" { // a busy machine can end the search for holders early
				require.Contains(t, f.Holder, tt.holder)
			}
		})
	}
	steady := []string{
		"truncated", "curriculum", "dataset_on_device", "least_recent", "averaged_models", "best_of", "validated", "beams", "unfrozen",
		"weakly", "replayed", "clipped_and_logged",
	}
	if !all {
		steady = []string{"curriculum", "least_recent", "beams", "clipped_and_logged"}
	}
	for _, name := range steady {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireSteady(t, leaksOf(t, "confirm.py", "--case", name, "--steps", "100"))
		})
	}
}
