// SPDX-License-Identifier: Apache-2.0

package export

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// TestHeldBlocks: what is recorded of holders is read again.
func TestHeldBlocks(t *testing.T) {
	key := func(addr uint64) heap.BlockKey {
		return heap.BlockKey{PID: 7, Layer: event.LayerAllocator, Addr: addr, Time: addr / 2}
	}
	want := map[heap.BlockKey]view.HeldBlock{
		key(512):  {Holder: "model.*", Name: "model.a.weight", Category: phases.Parameters, Bytes: 1024},
		key(1024): {Holder: "model.*", Name: "model.b.weight", Category: phases.Parameters, Bytes: 512},
		key(2048): {Holder: "losses[0]", Name: "losses[0]", Category: phases.NoCategory, Bytes: 512},
	}
	held := trailer.Held(&view.Joined{Blocks: want})
	require.Equal(t, []string{"model.*", "losses[0]"}, held.Holders)
	require.Equal(t, want, heldBlocks(7, &recording.End{Held: held}))
	require.Nil(t, trailer.Held(nil))
	require.Nil(t, heldBlocks(7, nil))
	require.Nil(t, heldBlocks(7, &recording.End{}))

	// What was not written by us is not believed.
	held.Blocks[0].Holder, held.Blocks[1].Category = 9, "moon"
	got := heldBlocks(7, &recording.End{Held: held})
	require.Len(t, got, 2)
	require.Equal(t, phases.NoCategory, got[key(1024)].Category)
}

// TestHeldBlocksAreBounded: a recording keeps the largest.
func TestHeldBlocksAreBounded(t *testing.T) {
	const maxHeld = 1 << 20
	j := &view.Joined{Blocks: map[heap.BlockKey]view.HeldBlock{}}
	for i := range uint64(maxHeld + 10) {
		j.Blocks[heap.BlockKey{Addr: i}] = view.HeldBlock{Holder: "x", Name: "x", Category: phases.NoCategory, Bytes: i}
	}
	held := trailer.Held(j)
	require.Len(t, held.Blocks, maxHeld)
	require.EqualValues(t, 10, held.Blocks[maxHeld-1].Bytes)
}
