// SPDX-License-Identifier: Apache-2.0

//go:build linux

package memory

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRing: an image that drops pages shows the memory of the process, however it is asked, and whatever was read before.
func TestRing(t *testing.T) {
	const pages = 3*minRing + 7
	m := newPagesMemory(pages)
	for i := range uint64(pages) {
		page := m[streamBase+i<<PageShift]
		for at := 0; at < PageSize; at += 8 {
			binary.LittleEndian.PutUint64(page[at:], i<<PageShift+uint64(at))
		}
	}
	delete(m, streamBase+11<<PageShift)
	there := func(offset, n uint64) bool { return offset>>PageShift > 11 || (offset+n-1)>>PageShift < 11 }
	regions := []Region{{Start: streamBase, End: streamBase + (pages+5)<<PageShift, Heap: true}}
	im, err := NewRing(t.Context(), m, regions, 0)
	require.NoError(t, err)
	defer im.Close()
	im.Reset(regions, []Run{{Addr: streamBase, Pages: 11}, {Addr: streamBase + 12<<PageShift, Pages: pages - 12}})
	im.EachPage(func(addr uint64, page []byte) uint64 {
		if addr>>PageShift%3 == 0 {
			im.Keep(addr, page)
		}
		return 0
	})
	random := rand.New(rand.NewPCG(1, 2))
	views := map[uint64][]byte{}
	for range 20_000 {
		offset := random.Uint64N(pages<<PageShift-3*PageSize) &^ 7
		n := 8 * (1 + random.Uint64N(1000))
		if !there(offset, n) {
			require.Nil(t, im.View(streamBase+offset, int(n)))
			continue
		}
		require.Equal(t, offset, im.Word(streamBase+offset))
		view := im.View(streamBase+offset, int(n))
		require.Len(t, view, int(n))
		views[offset] = view[:8]
		require.Equal(t, offset+n-8, binary.LittleEndian.Uint64(view[n-8:]))
		var b [8]byte
		_, err := im.ReadAt(b[:], streamBase+offset)
		require.NoError(t, err)
		require.Equal(t, offset, binary.LittleEndian.Uint64(b[:]))
	}
	for offset, view := range views {
		require.Equal(t, offset, binary.LittleEndian.Uint64(view), "a view stays as it was")
	}
	require.LessOrEqual(t, im.BytesHeld(), uint64(minRing+firstPage)<<PageShift)
	require.False(t, im.Full())
	require.Zero(t, im.Word(streamBase+pages<<PageShift))
	m[streamBase+20<<PageShift][0] = 99
	require.True(t, im.Again(streamBase+20<<PageShift, 8))
	require.EqualValues(t, 99, im.Word(streamBase+20<<PageShift)&0xff)
}
