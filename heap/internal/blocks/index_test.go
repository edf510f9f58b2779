// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBlockIndex compares the index with a map, with addresses that crowd a few homes and with many.
func TestBlockIndex(t *testing.T) {
	for name, addrs := range map[string]uint64{"few": 20, "some": 300, "many": 100_000} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(addrs, 1))
			x, s, want := NewIndex(), Table{}, map[uint64]uint32{}
			for range 4 * addrs {
				addr := 512 * rng.Uint64N(addrs)
				i, ok := x.Find(addr, &s)
				known, there := want[addr]
				if there != ok || known != i {
					t.Fatalf("address %#x: block %d, %t; want %d, %t", addr, i, ok, known, there)
				}
				if ok {
					x.Remove(addr, i)
					s.Drop(i)
					delete(want, addr)
					continue
				}
				i = s.Add(Block{Addr: addr})
				x.Add(addr, i)
				want[addr] = i
			}
			require.Equal(t, slices.Sorted(maps.Values(want)), slices.Sorted(x.All()))
			require.Equal(t, len(want), x.n)
			require.LessOrEqual(t, len(x.slots), max(minSlots, 4*int(addrs)))
		})
	}
}

// TestBlockIndexCollisions: blocks of one home are found, and what is behind a block that goes is found still.
func TestBlockIndexCollisions(t *testing.T) {
	x, s := Index{seed: 7}, Table{}
	x.slots = make([]uint64, 4*minSlots)
	var crowd []uint64
	for addr := uint64(0); len(crowd) < minSlots; addr += 512 {
		if home := x.home(x.hash(addr)); home >= len(x.slots)-3 { // so that the search goes over the end
			crowd = append(crowd, addr)
		}
	}
	for _, addr := range crowd {
		x.Add(addr, s.Add(Block{Addr: addr}))
	}
	for n, addr := range crowd {
		for _, other := range crowd[n:] {
			i, ok := x.Find(other, &s)
			require.True(t, ok)
			require.Equal(t, other, s.blocks[i].Addr)
		}
		i, _ := x.Find(addr, &s)
		x.Remove(addr, i)
		_, ok := x.Find(addr, &s)
		require.False(t, ok)
	}
	require.Equal(t, make([]uint64, len(x.slots)), x.slots)
}
