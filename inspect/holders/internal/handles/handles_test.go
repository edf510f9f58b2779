// SPDX-License-Identifier: Apache-2.0

package handles

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// newReader reads the objects of a made-up process, in which the addresses are the starts of blocks.
func newReader(t *testing.T, m *made.Process, starts map[uint64]bool) (*Reader, *memory.Image) {
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
	r.Find(im, func(addr uint64) bool { return starts[addr] })
	return r, im
}

func visited(r *Reader, im *memory.Image, starts map[uint64]bool) map[uint64]uint64 {
	found := map[uint64]uint64{}
	r.Visit(im, func(addr uint64) bool { return starts[addr] }, func(object, data uint64) { found[object] = data })
	return found
}

// TestWays: each array leads to its own block, though it also leads to that of the array before it; two arrays can share a block.
func TestWays(t *testing.T) {
	m, _ := made.New()
	e, starts, want := m.AddEager(), map[uint64]bool{}, map[uint64]uint64{}
	for i := range uint64(20) {
		data := made.EagerBlock + i*made.EagerSize
		starts[data], want[e.Tensor(data)] = true, data
	}
	want[e.Tensor(made.EagerBlock)] = made.EagerBlock
	e.Tensor(made.EagerBlock + 8) // no block begins there
	r, im := newReader(t, m, starts)
	require.Equal(t, [][]way{{{0x20, 0x48, 0x10}}, nil}, r.ways)
	require.True(t, r.Known())
	require.Equal(t, want, visited(r, im, starts))
	for object, data := range want {
		require.True(t, r.InBlock(im, object, data-8, 16))
		require.False(t, r.InBlock(im, object, data+1, 16))
		m.Put(object, 0) // it was freed
		break
	}
	require.False(t, r.InBlock(im, 8, 0, 1<<62))
}

// TestVariables: the memory of an array can be a handle, itself in a block, that leads on.
func TestVariables(t *testing.T) {
	m, _ := made.New()
	e, starts, want := m.AddEager(), map[uint64]bool{}, map[uint64]uint64{}
	for i := range uint64(20) {
		data := made.EagerBlock + i*made.EagerSize
		starts[data] = true
		if i >= 4 {
			want[e.Tensor(data)] = data
			continue
		}
		object, own := e.Variable(data)
		starts[own], want[object] = true, data
	}
	r, im := newReader(t, m, starts)
	require.Equal(t, way{0x20, 0x48, 0x10, 0x50, 0x18, 0x10}, r.onward[0])
	require.Equal(t, want, visited(r, im, starts))
}

// TestFewArrays: of two arrays nothing is believed, nor if they lead to one block only.
func TestFewArrays(t *testing.T) {
	m, _ := made.New()
	e := m.AddEager()
	e.Tensor(made.EagerBlock)
	e.Tensor(made.EagerBlock + made.EagerSize)
	starts := map[uint64]bool{made.EagerBlock: true, made.EagerBlock + made.EagerSize: true}
	r, im := newReader(t, m, starts)
	require.False(t, r.Known())
	require.Empty(t, visited(r, im, starts))

	m, _ = made.New()
	e = m.AddEager()
	for range 9 {
		e.Tensor(made.EagerBlock)
	}
	r, _ = newReader(t, m, starts)
	require.False(t, r.Known())
}

// TestNoFramework: a program that has imported neither has no reader.
func TestNoFramework(t *testing.T) {
	m, _ := made.New()
	im, h, err := m.Copied(t.Context())
	require.NoError(t, err)
	defer im.Close()
	require.Nil(t, New(h, im))
}
