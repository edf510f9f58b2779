// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memory

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLeaves: an address is a leaf's if, and only if, the word behind it was the address of one of the types.
func TestLeaves(t *testing.T) {
	types := []uint64{0x7f0000001000, 0x7f0000001200, 0x7f0000090000}
	others := []uint64{0, 8, 1, 0x7f0000001010, 0x7f0000001100, 0x7f0000090008, ^uint64(0)}
	random := rand.New(rand.NewPCG(1, 2))
	l, want := NewLeaves(types, 0), map[uint64]bool{}
	for _, at := range []uint64{0, 0x1000, 0xff000, 0x100000, 0x7f0010000000, 0x7f0010001000, topSpans<<spanShift - PageSize} {
		page := make([]byte, PageSize)
		for i := 0; i < PageSize; i += 8 {
			word := others[random.IntN(len(others))]
			if random.IntN(3) == 0 {
				word = types[random.IntN(len(types))]
			}
			binary.LittleEndian.PutUint64(page[i:], word)
			want[at+uint64(i)-8] = i%16 == 8 && word >= types[0] && (word == types[0] || word == types[1] || word == types[2])
		}
		l.Scan(at, page)
	}
	for at, leaf := range want {
		require.Equal(t, leaf, l.Has(at), "%#x", at)
	}
	for _, at := range []uint64{1, 4, 0x2000, 0x200000, 1 << 40, topSpans << spanShift, ^uint64(0), ^uint64(15)} {
		require.False(t, l.Has(at), "%#x", at)
	}
}

// TestLeavesOfNothing: without an interpreter nothing is a leaf.
func TestLeavesOfNothing(t *testing.T) {
	l := NewLeaves(nil, 0)
	l.Scan(0x1000, make([]byte, PageSize))
	require.False(t, l.Has(0x1000))
}
