// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"testing"

	"github.com/stretchr/testify/require"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// TestFoldLongest: of a dictionary of lists, the one that has nearly all elements is named alone; lists of one length stay one row.
func TestFoldLongest(t *testing.T) {
	fields := func(lengths map[string]int) []scan.Block {
		var out []scan.Block
		for _, key := range []string{"hidden", "observations", "values"} {
			for i := range lengths[key] {
				path := route(frame(7), local("buffer"), attribute("fields"), word(key), index(int64(i)))
				out = append(out, held(1, scan.CategoryTensor, path))
			}
		}
		return out
	}
	names := func(blocks []scan.Block) []string {
		seen := map[string]bool{}
		var out []string
		for _, name := range ownersOf(blocks) {
			if !seen[name] {
				seen[name], out = true, append(out, name)
			}
		}
		return out
	}
	const where = "train.py:7 train() local buffer.fields"
	require.Equal(t, []string{where + "['hidden'][0..209]", where + "['observations', 'values'][0..11]"},
		names(fields(map[string]int{"hidden": 210, "observations": 12, "values": 12})))
	require.Equal(t, []string{where + "[3 keys][0..99]"}, names(fields(map[string]int{"hidden": 100, "observations": 100, "values": 100})))
	require.Equal(t, []string{where + "['hidden'][0..209]"}, names(fields(map[string]int{"hidden": 210})))
}
