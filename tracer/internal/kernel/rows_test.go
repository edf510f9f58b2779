// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/unwind"
)

// newChunkMap makes the map that the programs find chunks in.
func newChunkMap(t *testing.T) *ebpf.Map {
	t.Helper()
	spec, err := bpf.LoadTrace()
	require.NoError(t, err)
	m, err := ebpf.NewMap(spec.Maps[bpf.TraceMapRows])
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// readRow reads a row as the programs do: a chunk, then its place in it.
func readRow(t *testing.T, outer *ebpf.Map, i uint32) uint64 {
	t.Helper()
	var inner *ebpf.Map
	require.NoError(t, outer.Lookup(i/chunkRows, &inner), "row %d", i)
	defer inner.Close()
	rows := make([]uint64, chunkRows)
	require.NoError(t, inner.Lookup(uint32(0), rows))
	return rows[i%chunkRows]
}

// TestRowStore: files bring their own numbering of rules, the kernel has one; rows cross the borders of chunks, and those of a
// library that is loaded later go behind them.
func TestRowStore(t *testing.T) {
	outer := newChunkMap(t)
	var s Rows
	defer s.Close()
	tables := []*unwind.Table{
		{Rows: []uint64{0x10, 1<<32 | 0x20, 2<<32 | 0xffffffff}, Rules: []uint64{0, 111, 222}},
		{Rules: []uint64{0, 333, 111}},
		{Rows: []uint64{2<<32 | 0x30, 1<<32 | 0x40}, Rules: []uint64{0, 333, 111}},
	}
	for range 2*chunkRows + 17 {
		tables[1].Rows = append(tables[1].Rows, rand.Uint64N(3)<<32|rand.Uint64N(1<<32))
	}
	var used uint32
	for n, table := range tables {
		lo, hi, err := s.Add(table)
		require.NoError(t, err)
		require.Equal(t, used, lo)
		require.EqualValues(t, len(table.Rows), hi-lo)
		used = hi
		require.NoError(t, s.link(outer), "link %d", n)
	}
	require.NoError(t, s.link(outer), "nothing new")
	require.Equal(t, []uint64{0, 111, 222, 333}, s.rules.rules)
	var i uint32
	for _, table := range tables {
		for n, row := range table.Rows {
			if n < 20 || n%1000 == 0 || n >= len(table.Rows)-20 || i%chunkRows < 2 || i%chunkRows > chunkRows-3 {
				got := readRow(t, outer, i)
				require.Equal(t, uint32(row), uint32(got), "the pc of row %d", i)
				require.Equal(t, table.Rules[row>>32], s.rules.rules[got>>32], "the rule of row %d", i)
			}
			i++
		}
	}
}

func TestRowStoreBounds(t *testing.T) {
	var s Rows
	defer s.Close()
	table := &unwind.Table{Rows: []uint64{0}}
	for i := range uint64(maxRules) {
		table.Rules = append(table.Rules, i)
	}
	_, _, err := s.Add(table)
	require.NoError(t, err)
	_, _, err = s.Add(&unwind.Table{Rows: []uint64{0}, Rules: []uint64{uint64(maxRules)}})
	require.ErrorContains(t, err, "different unwind rules")

	s.Used = maxRows - 1
	_, _, err = s.Add(&unwind.Table{Rows: []uint64{0, 1}, Rules: []uint64{0}})
	require.ErrorContains(t, err, "2 unwind rows")
}
