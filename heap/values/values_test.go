// SPDX-License-Identifier: Apache-2.0

package values

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// sizes is a follower that keeps the size of each block by its key, and by PerBlock.
type sizes struct {
	t     *testing.T
	want  map[heap.BlockKey]uint64
	sizes PerBlock[uint64]
}

func (s *sizes) Allocated(b *heap.Block) {
	require.Nil(s.t, s.sizes.At(b))
	s.want[b.Key()] = b.Size
	s.sizes.Set(b, b.Size)
}

func (s *sizes) Freed(b *heap.Block, _ uint64) {
	require.Equal(s.t, s.want[b.Key()], *s.sizes.At(b))
	delete(s.want, b.Key())
	s.sizes.Delete(b)
	require.Nil(s.t, s.sizes.At(b))
}

func (s *sizes) Moved(from, to *heap.Block) {
	s.Freed(from, 0)
	s.Allocated(to)
}

// TestPerBlock compares the values of blocks of all layers with those of a map, from event to event.
func TestPerBlock(t *testing.T) {
	for seed := range uint64(10) {
		f := &sizes{t: t, want: map[heap.BlockKey]uint64{}}
		h := heap.New()
		h.Follow(f)
		require.NoError(t, h.Replay(eventtest.Random(seed, 3000)))
		var got []uint64
		for v := range f.sizes.All() {
			got = append(got, *v)
		}
		require.NotEmpty(t, got)
		require.ElementsMatch(t, slices.Collect(maps.Values(f.want)), got)
		live := 0
		for b := range h.Blocks() {
			require.Equal(t, b.Size, *f.sizes.At(&b))
			live++
		}
		require.Len(t, got, live)
	}
}
