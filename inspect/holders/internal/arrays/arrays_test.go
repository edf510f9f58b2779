// SPDX-License-Identifier: Apache-2.0

package arrays

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// newReader reads the objects of a made-up process.
func newReader(t *testing.T, m *made.Process) (*Reader, *memory.Image) {
	t.Helper()
	im, h, err := m.Copied(t.Context())
	require.NoError(t, err)
	t.Cleanup(im.Close)
	r := New(h, im)
	require.NotNil(t, r)
	im.EachPage(func(addr uint64, page []byte) uint64 {
		r.Scan(addr, page)
		return 0
	})
	r.Find(im)
	return r, im
}

// TestLayout: the fields are found wherever a version has them.
func TestLayout(t *testing.T) {
	for _, ahead := range []uint64{0, 3} {
		m, _ := made.New()
		c := m.AddCuPy(ahead)
		whole := c.Array(c.Memory(4096), 0, 8, 0)
		view := c.Array(c.Memories[0], 1024, 2, whole)
		other := c.Array(c.Memory(512), 0, 1, 0)
		r, im := newReader(t, m)
		require.True(t, r.Known())
		found := map[uint64]uint64{}
		r.Visit(im, func(object, memory, data uint64) { found[object] = data })
		require.Equal(t, map[uint64]uint64{whole: made.CuPyBlock, view: made.CuPyBlock + 1024, other: made.CuPyBlock + 4096}, found)
		g, ok := r.Geometry(im, view, made.CuPyBlock)
		require.True(t, ok)
		require.Equal(t, Geometry{[]int64{2, 128}, []int64{128, 1}, 256, "float32"}, g)
		require.True(t, r.InBlock(im, view, made.CuPyBlock, 4096))
		require.False(t, r.InBlock(im, view, made.CuPyBlock+4096, 512))
		require.True(t, r.IsArray(im, view))
		require.False(t, r.IsArray(im, c.Pool))
		require.Equal(t, "base", r.Field(r.Heap.TypeOf(im, view), 0x78+8*ahead))
		require.Empty(t, r.Field(r.Heap.TypeOf(im, view), 0x20))
		require.Equal(t, &State{
			[]Block{{1, made.CuPyBlock, 4096}, {1, made.CuPyBlock + 4096, 512}},
			[]Device{{Index: 0, Counted: true}, {Index: 1, Used: 4608, Counted: true}},
		}, r.Copied(im))
	}
}

// TestNotProved: without an array nothing says where its fields are.
func TestNotProved(t *testing.T) {
	m, _ := made.New()
	m.AddCuPy(0)
	r, im := newReader(t, m)
	require.False(t, r.Known())
	r.Visit(im, func(uint64, uint64, uint64) { t.Error("an array") })
}

// TestCounts: the blocks must add up to the count of their pool.
func TestCounts(t *testing.T) {
	m, _ := made.New()
	c := m.AddCuPy(0)
	c.Array(c.Memory(4096), 0, 8, 0)
	c.Array(c.Memory(512), 0, 1, 0)
	regions, _ := m.Regions()
	now := func(r *Reader) (*State, Device) {
		s, at, err := r.Now(t.Context(), m, func() uint64 { return 7 }, regions)
		require.NoError(t, err)
		require.Equal(t, uint64(7), at)
		return s, s.Devices[1]
	}
	r, _ := newReader(t, m)
	s, d := now(r)
	require.Len(t, s.Blocks, 2)
	require.Equal(t, Device{Index: 1, Used: 4608, Counted: true}, d)

	m.Put(c.Memories[1]+made.CuPyStart, 0) // it is being freed: the pool follows
	s, d = now(r)
	require.Len(t, s.Blocks, 1)
	require.Equal(t, Device{Index: 1, Used: 4608, Counted: true, Missing: 512}, d)
	m.Put(c.Pool+made.CuPyCount, 4096)
	_, d = now(r)
	require.Equal(t, Device{Index: 1, Used: 4096, Counted: true}, d)

	m.Put(c.Pool+made.CuPyCount, 1)
	r, _ = newReader(t, m)
	_, d = now(r)
	require.Equal(t, Device{Index: 1, Used: 4096}, d, "no word of the pool is the sum")

	m.Put(c.Memories[0], 0) // an object without a reference was freed
	r, im := newReader(t, m)
	require.Empty(t, r.Copied(im).Blocks)
}
