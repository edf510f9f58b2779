// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// TestPlaces: a block that was live when a place held its memory has that holder, whether it was freed since or is
// newer than the report; one that came later, or was freed before, has not.
func TestPlaces(t *testing.T) {
	place := func(layer int64, addr, time uint64) scan.Place {
		return scan.Place{Addr: addr, Size: 1000, Time: time, Path: scan.Path{
			{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: "cache"}, {Kind: scan.StepIndex, Index: layer},
		}}
	}
	r := &scan.Report{PID: 42, Time: 100, Places: []scan.Place{place(0, 0x1000, 200), place(1, 0x2000, 210), place(2, 0x3000, 220)}}
	h := New(r)
	block := func(addr, time uint64) heap.Block {
		return heap.Block{PID: 42, Layer: event.LayerAllocator, Addr: addr, Size: 1024, Time: time, Stack: 7}
	}
	freed := []Freed{{block(0x1000, 190), 205}, {block(0x1000, 90), 195}, {block(0x2000, 215), 230}, {block(0x2000, 150), 211}}
	for i, want := range []bool{true, false, false, true} {
		require.Equal(t, want, h.Held(&freed[i].Block, freed[i].At), "%d", i)
	}
	v := &view.View{}
	rows := h.Passing(v, freed)
	require.Len(t, rows, 1)
	require.Equal(t, "cache[0..2]", rows[0].Name)
	require.EqualValues(t, 2, rows[0].Blocks)
	require.EqualValues(t, 2048, rows[0].Bytes)

	j := h.Join(v, slices.Values([]heap.Block{block(0x3000, 180), block(0x1000, 300)}))
	require.Equal(t, map[string]uint64{"cache[0..2]": 1, view.NoHolder: 1},
		map[string]uint64{j.Rows[0].Name: j.Rows[0].Blocks, j.Rows[1].Name: j.Rows[1].Blocks})
	require.Len(t, j.Blocks, 1)
}
