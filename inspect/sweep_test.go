// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSweepImages sweeps recorded states: what does not change is seen as Map sees it.
func TestSweepImages(t *testing.T) {
	for name, m := range images(t) {
		t.Run(name, func(t *testing.T) {
			want, err := m.allocator().Map(t.Context())
			require.NoError(t, err)
			got, err := m.allocator().Sweep(t.Context())
			require.NoError(t, err)
			require.True(t, got.Devices[0].Balanced)
			require.Equal(t, want.Devices[0].Segments, got.Devices[0].Segments)
			busy, err := sweepOf(t.Context(), m.allocator())
			require.NoError(t, err)
			require.Equal(t, want.Devices[0].Segments, busy.Segments)
			require.Zero(t, busy.Skipped)
		})
	}
}

// sweepOf takes the way of a sweep that found no quiet moment.
func sweepOf(ctx context.Context, a *Allocator) (*DeviceSweep, error) {
	devices, err := a.devices(ctx)
	if err != nil {
		return nil, err
	}
	s, err := a.stats(ctx, devices[0])
	if err != nil {
		return nil, err
	}
	return a.sweepBusy(ctx, newPages(a.memory), devices[0], 0, s, Window{})
}

// TestSweepDamage changes one thing of the state at a time, as if it were just being changed: all blocks that do not touch
// the damaged one are seen as they are, and no other.
func TestSweepDamage(t *testing.T) {
	for name, m := range images(t) {
		a := m.allocator()
		devices, err := a.devices(t.Context())
		require.NoError(t, err)
		b := newStateReader(m, 0, devices[0], m.shape())
		require.NoError(t, b.read())
		clean, err := sweepOf(t.Context(), m.allocator())
		require.NoError(t, err)
		damages := 0
		for i := 0; i < len(b.list); i += 3 {
			tile := b.list[i]
			for off, value := range damagesOf(b, tile) {
				damages++
				old := m.Words[tile.at+off]
				m.Words[tile.at+off] = value
				got, err := sweepOf(t.Context(), m.allocator())
				require.NoError(t, err, "%s: block %#x with %#x at +%#x", name, tile.at, value, off)
				checkElsewhere(t, clean.Segments, got.Segments, tile)
				m.Words[tile.at+off] = old
			}
		}
		assert.Greater(t, damages, 50)
	}
}

// checkElsewhere compares the blocks that the program holds, without those that touch a tile.
func checkElsewhere(t *testing.T, want, got []Segment, around *tile) {
	t.Helper()
	from, to := around.ptr, around.ptr+around.size
	held := func(segments []Segment) (out []Block) {
		for _, s := range segments {
			for _, b := range s.Blocks {
				if b.State != StateFree && (b.Addr+b.Size < from || b.Addr > to) {
					out = append(out, b)
				}
			}
		}
		return out
	}
	require.Equal(t, held(want), held(got))
}

// TestSweepOverlap: of tiles that were read at different times, those in use stay, and nothing overlaps.
func TestSweepOverlap(t *testing.T) {
	free := func(ptr, size uint64) *tile { return &tile{at: ptr, ptr: ptr, size: size, mapped: true} }
	held := func(ptr, size uint64) *tile {
		return &tile{at: ptr + 1, ptr: ptr, size: size, mapped: true, allocated: true}
	}
	for _, c := range []struct {
		name    string
		tiles   []*tile
		want    []int // of the tiles, by address
		skipped int
	}{
		{"apart", []*tile{held(1024, 512), free(2048, 512)}, []int{0, 1}, 0},
		{"beside", []*tile{free(1536, 512), held(1024, 512)}, []int{1, 0}, 0},
		{"split since", []*tile{free(1024, 2048), held(1024, 512), free(1536, 1536)}, []int{1, 2}, 1},
		{"freed since", []*tile{held(1024, 512), free(1024, 2048)}, []int{0}, 1},
		{"several freed since", []*tile{free(1024, 4096), held(2048, 512), held(4096, 512)}, []int{1, 2}, 1},
		{"merged since", []*tile{free(1024, 512), free(1024, 1024), free(1536, 512)}, []int{0, 2}, 1},
		{"two in use", []*tile{held(1024, 1024), held(1536, 512)}, []int{0}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &stateReader{list: c.tiles}
			var want []*tile
			for _, i := range c.want {
				want = append(want, c.tiles[i])
			}
			assert.Equal(t, want, b.line())
			assert.Equal(t, c.skipped, b.skipped)
		})
	}
}

// checkApart checks what is true of any sweep: blocks lie in their segments, by address, and nowhere on each other.
func checkApart(t *testing.T, segments []Segment) map[uint64]Block {
	t.Helper()
	at, end := map[uint64]Block{}, uint64(0)
	for _, s := range segments {
		require.GreaterOrEqual(t, s.Addr, end)
		end = s.Addr
		for _, b := range s.Blocks {
			require.Equal(t, end, b.Addr)
			end += b.Size
			at[b.Addr] = b
		}
		require.Equal(t, s.Addr+s.Size, end)
	}
	return at
}

// wholeMap is the map of a recorded state, and the device that it is of.
func wholeMap(t *testing.T, a *Allocator) ([]Segment, device) {
	t.Helper()
	whole, err := a.Map(t.Context())
	require.NoError(t, err)
	devices, err := a.devices(t.Context())
	require.NoError(t, err)
	return whole.Devices[0].Segments, devices[0]
}

// refilled is a state whose table of active blocks is being filled again, has some of them so far, and whose mutex is held, until
// that was looked at often enough.
type refilled struct {
	*image
	mutex uint64
	table table
	some  uint64 // entries of the table that are filled, from the first on
	count uint64 // blocks in them
	looks int    // that are still to come
}

func (r *refilled) ReadAt(b []byte, addr uint64) (int, error) {
	if addr == r.mutex && len(b) == mutexEnd {
		clear(b)
		b[mutexKind] = mutexRecursive
		if r.looks--; r.looks > 0 {
			b[0] = 1
		}
		return len(b), nil
	}
	n, err := r.image.ReadAt(b, addr)
	from, to := r.table.entries+activeStride*r.some, r.table.entries+activeStride*(r.table.slots+r.table.lookups-1)
	for i := range b {
		switch at := addr + uint64(i); {
		case r.looks <= 0:
		case at >= from && at < to && (at-from)%activeStride == 0:
			b[i] = 0xff // an entry's distance: it is empty
		case at >= r.table.at+tableSize-8 && at < r.table.at+tableSize:
			b[i] = byte(r.count >> (8 * (at - r.table.at - tableSize + 8)))
		}
	}
	return n, err
}

// TestSweepRefill sweeps a state whose table of active blocks grew just now, by a thread that was then held up: the sweep waits
// until the table is full again, or says that it did not see the end of it.
func TestSweepRefill(t *testing.T) {
	for name, m := range images(t) {
		t.Run(name, func(t *testing.T) {
			a := m.allocator()
			want, d := wholeMap(t, a)
			require.NotNil(t, a.places)
			head := d.addr + a.places.active
			w, err := words(m, head, tableSize/8)
			require.NoError(t, err)
			full, ok := newTable(head, w)
			require.True(t, ok)
			for _, some := range []uint64{0, full.slots / 2} {
				sweep := func(looks int) *DeviceSweep {
					a.memory = &refilled{m, d.mutex, full, some, filled(t, m, full, some), looks}
					got, err := sweepOf(t.Context(), a)
					require.NoError(t, err)
					return got
				}
				late := sweep(50)
				require.Equal(t, want, late.Segments)
				require.True(t, late.Window.Settled)
				never := sweep(1 << 30)
				require.NotEqual(t, want, never.Segments, "nothing hangs on the table")
				require.False(t, never.Window.Settled)
			}
		})
	}
}

// filled is how many of the first entries of a table have a block.
func filled(t *testing.T, m *image, of table, entries uint64) (n uint64) {
	t.Helper()
	var distance [8]byte
	for i := range entries {
		_, err := m.ReadAt(distance[:], of.entries+activeStride*i)
		require.NoError(t, err)
		if int8(distance[0]) >= 0 {
			n++
		}
	}
	return n
}

// outOfDate is a state whose pages, when they are first read, are as they were before there was a block.
type outOfDate struct {
	*image
	blocks []*tile
	size   uint64 // of a block
	read   map[uint64]bool
}

func (o *outOfDate) ReadAt(b []byte, addr uint64) (int, error) {
	n, err := o.image.ReadAt(b, addr)
	page := addr &^ (pageSize - 1)
	if o.read[page] {
		return n, err
	}
	o.read[page] = true
	for _, x := range o.blocks {
		if from, to := max(x.at, addr), min(x.at+o.size, addr+uint64(len(b))); from < to {
			clear(b[from-addr : to-addr])
		}
	}
	return n, err
}

// TestSweepOutOfDate sweeps a state that has filled since it was copied: everything in use is seen.
func TestSweepOutOfDate(t *testing.T) {
	for name, m := range images(t) {
		t.Run(name, func(t *testing.T) {
			a := m.allocator()
			want, d := wholeMap(t, a)
			b := newStateReader(m, 0, d, m.shape())
			require.NoError(t, b.read())
			a.memory = &outOfDate{m, b.list, b.shape.end(), map[uint64]bool{}}
			got, err := sweepOf(t.Context(), a)
			require.NoError(t, err)
			checkElsewhere(t, want, got.Segments, &tile{})
		})
	}
}
