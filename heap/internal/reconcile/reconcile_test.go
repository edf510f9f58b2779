// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

const u = event.Unknown

// live is a block from before the reading, at time 5; the reading begins at 10.
func live(addr, size, requested, stream uint64) Live {
	return Live{Block: blocks.Block{Addr: addr, Size: size, Requested: requested, Stream: stream, Time: 5}, Number: uint32(addr)}
}

func read(addr, size, requested uint64) event.ObservedBlock {
	return event.ObservedBlock{Addr: addr, Size: size, Requested: requested}
}

// TestBlocks has a row for each line of the table of Blocks, and for what fields decide.
func TestBlocks(t *testing.T) {
	younger := live(1, 4, 4, 0)
	younger.Time = 10
	for name, tt := range map[string]struct {
		in   Input
		want Plan
	}{
		"nothing":         {Input{}, Plan{}},
		"freed meanwhile": {Input{Seen: []event.ObservedBlock{read(1, 4, 4)}, Freed: map[uint64]struct{}{1: {}}}, Plan{Dirty: 1}},
		"read only":       {Input{Seen: []event.ObservedBlock{read(1, 4, 4)}, Total: 4}, Plan{Added: []event.ObservedBlock{read(1, 4, 4)}}},
		"read twice": {Input{Seen: []event.ObservedBlock{read(1, 4, 4), read(1, 4, 4)}, Total: 4},
			Plan{Added: []event.ObservedBlock{read(1, 4, 4)}}},
		"allocated meanwhile":  {Input{Live: []Live{younger}, Total: 4}, Plan{Dirty: 1}},
		"its free was lost":    {Input{Live: []Live{live(1, 4, 4, 0)}}, Plan{Retire: []uint32{1}}},
		"both":                 {Input{Live: []Live{live(1, 4, 4, 0)}, Seen: []event.ObservedBlock{read(1, 4, 4)}, Total: 4}, Plan{Kept: 1}},
		"both, of another age": {Input{Live: []Live{younger}, Seen: []event.ObservedBlock{read(1, 9, 9)}, Total: 4}, Plan{Dirty: 1}},
		"another size": {
			Input{Live: []Live{live(1, 4, 4, 0)}, Seen: []event.ObservedBlock{read(1, 9, 4)}, Total: 9},
			Plan{Retire: []uint32{1}, Added: []event.ObservedBlock{read(1, 9, 4)}, Kept: 0},
		},
		"another request": {
			Input{Live: []Live{live(1, 4, 4, 0)}, Seen: []event.ObservedBlock{read(1, 4, 3)}, Total: 4},
			Plan{Retire: []uint32{1}, Added: []event.ObservedBlock{read(1, 4, 3)}},
		},
		"a request that was not read": {Input{Live: []Live{live(1, 4, 4, 0)}, Seen: []event.ObservedBlock{read(1, 4, u)}, Total: 4},
			Plan{Kept: 1}},
		"a request that only was read": {
			Input{Live: []Live{live(1, 4, u, 0)}, Seen: []event.ObservedBlock{read(1, 4, 3)}, Total: 4},
			Plan{Kept: 1, Refine: []Refinement{{1, read(1, 4, 3)}}},
		},
		"no request at all": {Input{Live: []Live{live(1, 4, u, 0)}, Seen: []event.ObservedBlock{read(1, 4, u)}, Total: 4}, Plan{Kept: 1}},
		"a stream that only was read": {
			Input{Live: []Live{live(1, 4, 4, u)}, Seen: []event.ObservedBlock{read(1, 4, u)}, Total: 4},
			Plan{Kept: 1, Refine: []Refinement{{1, read(1, 4, u)}}},
		},
	} {
		tt.in.From = 10
		got, err := Blocks(&tt.in)
		require.NoError(t, err, name)
		require.Equal(t, &tt.want, got, name)
	}
}

func TestBlocksRefused(t *testing.T) {
	for why, in := range map[string]Input{
		"no block can be 4 bytes at 0x0":                {Seen: []event.ObservedBlock{read(0, 4, 4)}, Total: 4},
		"no block can be 4 bytes at 0x8000000000000000": {Seen: []event.ObservedBlock{read(1<<63, 4, 4)}, Total: 4},
		"no block can be 0 bytes at 0x1":                {Seen: []event.ObservedBlock{read(1, 0, 0)}},
		"no block can be 144115188075855872 bytes at 0x1": {Seen: []event.ObservedBlock{read(1, blocks.MaxBytes, 4)},
			Total: blocks.MaxBytes},
		"no block can be 5 bytes at 0x1":                     {Seen: []event.ObservedBlock{read(1, 5, blocks.MaxBytes)}, Total: 5},
		"the blocks are 4 bytes, the allocator's total is 5": {Seen: []event.ObservedBlock{read(1, 4, 4)}, Total: 5},
		"two blocks at 0x4":                                  {Seen: []event.ObservedBlock{read(1, 4, 4), read(4, 4, 4)}, Total: 8},
		"two blocks at 0x7": {Seen: []event.ObservedBlock{read(4, 4, 4)},
			Live: []Live{{Block: blocks.Block{Addr: 7, Size: 1, Time: 10}}}, Total: 5},
		"the blocks are 0 bytes, the allocator's total is 1 ...": {Live: []Live{live(1, 4, 4, 0)}, Total: 1},
	} {
		in.From = 10
		_, err := Blocks(&in)
		require.Error(t, err, why)
		require.Contains(t, why, err.Error())
	}
}

// TestBlocksLeadToTheTruth: whatever is lost of what happened before the reading, the outcome is the allocator's blocks.
func TestBlocksLeadToTheTruth(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 17))
		in, truth := Input{From: 10, Freed: map[uint64]struct{}{}}, map[uint64]uint64{}
		for addr := uint64(16); addr < 16*60; addr += 16 {
			size := 1 + rng.Uint64N(16)
			switch rng.IntN(6) {
			case 0: // the event was lost
				in.Seen, truth[addr] = append(in.Seen, read(addr, size, u)), size
			case 1: // the free was lost
				in.Live = append(in.Live, live(addr, size, u, u))
			case 2: // new
				b := live(addr, size, u, u)
				b.Time = 10 + rng.Uint64N(3)
				in.Live, truth[addr] = append(in.Live, b), size
			case 3: // just freed
				in.Seen, in.Freed[addr] = append(in.Seen, read(addr, size, u)), struct{}{}
			case 4: // the same, or replaced
				in.Live = append(in.Live, live(addr, 1+rng.Uint64N(16), u, u))
				in.Seen, truth[addr] = append(in.Seen, read(addr, size, u)), size
			}
		}
		rng.Shuffle(len(in.Seen), func(i, j int) { in.Seen[i], in.Seen[j] = in.Seen[j], in.Seen[i] })
		rng.Shuffle(len(in.Live), func(i, j int) { in.Live[i], in.Live[j] = in.Live[j], in.Live[i] })
		for _, size := range truth {
			in.Total += size
		}
		plan, err := Blocks(&in)
		require.NoError(t, err, "seed %d", seed)
		got := map[uint64]uint64{}
		for _, b := range in.Live {
			if !slices.Contains(plan.Retire, b.Number) {
				got[b.Addr] = b.Size
			}
		}
		for _, b := range plan.Added {
			got[b.Addr] = b.Size
		}
		require.True(t, maps.Equal(truth, got), "seed %d", seed)
	}
}
