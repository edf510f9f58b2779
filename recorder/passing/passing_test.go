// SPDX-License-Identifier: Apache-2.0

package passing

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TestPassing: what is freed while holders are read is kept as far as the scan has seen it, and after the end of the recording too.
func TestPassing(t *testing.T) {
	var p Blocks
	block := func(addr uint64) *heap.Block {
		return &heap.Block{Layer: event.LayerAllocator, Addr: addr, Size: 512, Time: 5}
	}
	p.Freed(block(1), 10) // before
	p.Begin()
	p.Freed(block(2), 20)
	p.Freed(block(3), 30)
	for _, e := range []event.Event{
		{Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 4, Size: 512, Time: 40, Stack: 7},
		{Kind: event.KindFree, Layer: event.LayerAllocator, Addr: 4, Time: 50},
		{Kind: event.KindFree, Layer: event.LayerAllocator, Addr: 5, Time: 50},
		{Kind: event.KindAlloc, Layer: event.LayerDevice, Addr: 6, Time: 60},
		{Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 7, Size: 512, Time: 60},
	} {
		p.Later(&e)
	}
	got := map[uint64]uint64{}
	for _, g := range p.Take(func(b *heap.Block, _ uint64) bool { return b.Addr != 3 }) {
		got[g.Addr] = g.At
	}
	require.Equal(t, map[uint64]uint64{2: 20, 4: 50, 7: math.MaxUint64}, got)
	p.Freed(block(8), 70)
	require.Empty(t, p.Take(func(*heap.Block, uint64) bool { return true }))
}

// TestPassingMany: of more blocks than there is room for the latest are kept.
func TestPassingMany(t *testing.T) {
	var p Blocks
	p.Begin()
	for i := range uint64(maxPassing + 10) {
		p.Freed(&heap.Block{Addr: i}, i)
	}
	for _, g := range p.Take(func(*heap.Block, uint64) bool { return true }) {
		require.GreaterOrEqual(t, g.At, uint64(10))
	}
}
