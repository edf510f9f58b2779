// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// leakPatterns are those of testdata/workloads/leaks_patterns.py: the container that is to blame, how many blocks it holds
// after twelve leaking steps at least, and how many its repaired twin has left at most. One of twelve may be called by the
// name of the variable that still has it.
var leakPatterns = []struct {
	pattern       int
	guilty        string
	blocks, fixed uint64
}{
	{1, "hooked_activations() local kept[", 11, 1},
	{2, "gradient_snapshots() local snapshots[", 4 * 62, 0},
	{3, "kept_inputs() local seen[", 11, 0},
	{4, "autocast_captures() local captured[", 11, 1},
	{5, "discarded_optimizers() local graveyard[", 4 * 2 * 62, 2 * 62},
	{6, "scaled_losses() local history[", 11, 0},
	{7, "evaluation_graphs() local results[", 11 * 80, 0},
	{8, "detached_fragments() local fragments[", 11 * 3, 0},
}

// TestWhoLeaks: the container that leaks is named, and not in the twin that does not.
func TestWhoLeaks(t *testing.T) {
	for _, l := range leakPatterns {
		for _, fixed := range []bool{false, true} {
			if fixed && l.fixed == 0 && l.pattern != 3 { // of twins with nothing left one is enough
				continue
			}
			t.Run(fmt.Sprintf("%d fixed %v", l.pattern, fixed), func(t *testing.T) {
				t.Parallel()
				args := []string{"--pattern", itoa(l.pattern), "--steps", "22", "--batch", "16"}
				if fixed {
					args = append(args, "--fixed")
				}
				p := startAnswering(t, nil, "leaks_patterns.py", args...)
				r := whoJSON(t, p.pid, "--top", "0")
				a, without, _ := checkPaths(t, p, r)
				requireNamed(t, without)
				checkNamed(t, r, a)
				bytes, blocks, rows := guilt(r, l.guilty)
				t.Logf("%s: %d B in %d blocks, %q", l.guilty, bytes, blocks, rows)
				if fixed {
					require.LessOrEqual(t, blocks, l.fixed)
					return
				}
				require.GreaterOrEqual(t, blocks, l.blocks)
				require.LessOrEqual(t, len(rows), 6, "it is one thing, or few")
			})
		}
	}
}

// guilt adds up the rows whose names have a container in them.
func guilt(r *whoReport, container string) (bytes, blocks uint64, rows []string) {
	for _, row := range r.Rows {
		if strings.Contains(row.Name, container) {
			bytes, blocks = bytes+row.Bytes, blocks+row.Blocks
			rows = append(rows, row.Name)
		}
	}
	return bytes, blocks, rows
}
