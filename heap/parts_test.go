// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// parts adds the pool up, segment by segment; pages next to each other are one segment.
func (p *pool) parts() Parts {
	out := Parts{Reserved: p.reserved}
	var starts []uint64
	for _, s := range slices.Sorted(maps.Keys(p.segments)) {
		if last := len(starts) - 1; !p.pages || last < 0 || p.segments[s-segmentSize] == 0 {
			starts = append(starts, s)
		}
	}
	for _, start := range starts {
		end := start + segmentSize
		for p.pages && p.segments[end] != 0 {
			end += segmentSize
		}
		used, edges := uint64(0), []uint64{start, end} // of what is free
		for _, b := range p.blocks {
			if start <= b.Addr && b.Addr < end {
				used += b.Size
				out.Requested += b.Requested
				edges = append(edges, b.Addr, b.Addr+b.Size)
			}
		}
		slices.Sort(edges)
		for free := range slices.Chunk(edges, 2) {
			out.Largest = max(out.Largest, free[1]-free[0])
		}
		out.Allocated += used
		if used == 0 {
			out.Free += end - start
		} else {
			out.InactiveSplit += end - start - used
		}
	}
	return out
}

func TestPartsMatchPool(t *testing.T) {
	for _, pages := range []bool{false, true} {
		exact, losses, free := 0, 0, 0
		for seed := range uint64(20) {
			p, h := newPool(seed, pages), New()
			p.send = h.Apply
			for range 200 {
				p.step()
				got, ok := h.Parts(pid, cuda0)
				if !ok { // segments went, and nothing was reported since
					continue
				}
				require.Equal(t, p.parts(), got, "seed %d", seed)
				require.Equal(t, got.Reserved, got.Allocated+got.InactiveSplit+got.Free)
				exact++
				if got.InactiveSplit > 0 {
					losses++
				}
				if got.Free > 0 {
					free++
				}
			}
		}
		require.Greater(t, exact, 3000)
		require.NotZero(t, losses)
		require.NotZero(t, free)
	}
}

func TestPartsUnknown(t *testing.T) {
	h := New()
	_, ok := h.Parts(pid, cuda0)
	require.False(t, ok, "nothing is known")
	h.SetBaseline(pid, cuda0, 1000, 1<<20)
	_, ok = h.Parts(pid, cuda0)
	require.False(t, ok, "blocks from before are not known by address")

	h = New()
	e := torchEvent(1<<40, 512, 512)
	e.Reserved = segmentSize
	h.Apply(deviceEvent(event.KindAlloc, 1<<40, segmentSize))
	h.Apply(e)
	got, ok := h.Parts(pid, cuda0)
	require.True(t, ok)
	free := uint64(segmentSize - 512)
	require.Equal(t, Parts{Reserved: segmentSize, Allocated: 512, Requested: event.Unknown, InactiveSplit: free, Largest: free}, got,
		"what was asked for was not known")

	for name, tt := range map[string]struct{ addr, allocated, reserved uint64 }{
		"outside the segments":     {1 << 41, 1024, segmentSize},
		"across a segment's end":   {1<<40 + segmentSize - 256, 1024, segmentSize},
		"before a segment":         {1<<40 - 256, 1024, segmentSize},
		"an event was lost":        {1<<40 + 1024, 1024 + 256, segmentSize},
		"another segment is there": {1<<40 + 1024, 1024, 2 * segmentSize},
	} {
		h := New()
		first, second := torchEvent(1<<40+512, 512, 512), torchEvent(tt.addr, 512, tt.allocated)
		first.Reserved, second.Reserved = segmentSize, tt.reserved
		apply(h, deviceEvent(event.KindAlloc, 1<<40, segmentSize), first)
		_, ok := h.Parts(pid, cuda0)
		require.True(t, ok)
		apply(h, second)
		_, ok = h.Parts(pid, cuda0)
		require.False(t, ok, name)
	}
}
