// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/process"
)

// Addresses of a made library: the table of BFCAllocator, and of a class derived from it.
const (
	libraryAt = 0x200000
	infoAt    = libraryAt + 0x100
	derivedAt = libraryAt + 0x200
	namesAt   = 0x300000
	tableAt   = libraryAt + 0x18
	otherAt   = libraryAt + 0x58
)

// made library: tables, and what looks like one.
func library() (memory, []present.Region) {
	words := make([]uint64, 0x1000/8)
	set := func(at uint64, values ...uint64) { copy(words[(at-libraryAt)/8:], values) }
	set(libraryAt+0x08, 0, infoAt, 1, 2)           // the table
	set(libraryAt+0x48, 0, derivedAt, 1, 2)        // the table of the derived class
	set(infoAt, 77, namesAt, 0)                    // type information
	set(derivedAt, 77, namesAt+0x20, infoAt)       // of the derived class
	set(libraryAt+0x300, 5, namesAt+0x40, infoAt)  // no name is there
	set(libraryAt+0x400, 5, 0xdead_0000, infoAt)   // its name cannot be read
	set(libraryAt+0x500, 99, namesAt, libraryAt+8) // another class
	names := make([]byte, 0x100)
	copy(names, "N3tsl12BFCAllocatorE")
	copy(names[0x20:], "N10tensorflow15GPUBFCAllocatorE")
	copy(names[0x40:], "\x00\x01\x02")
	return memory{libraryAt: append64(nil, words...), namesAt: names}, []present.Region{{Start: libraryAt, End: libraryAt + 0x1000}}
}

// TestTables: the tables of the class and of those derived from it are found, and nothing else.
func TestTables(t *testing.T) {
	m, in := library()
	require.Equal(t, []uint64{tableAt, otherAt}, tablesOf(m, in, infoAt))
	require.Empty(t, tablesOf(m, in, 0x123))
	all := make([]uint64, 0x1000/8)
	for i := range all {
		all[i] = uint64(i%2) * infoAt // a table at every place
	}
	m[libraryAt] = append64(nil, all...)
	require.Len(t, tablesOf(m, in, infoAt), maxTables)
	for i := range all {
		all[i] = infoAt
	}
	copy(m[namesAt], "1x")
	m[infoAt&^0xfff] = append64(nil, all...)
	require.LessOrEqual(t, len(tablesOf(m, in, infoAt)), maxTables)
}

// put writes an allocator with a name into a process, at an offset of all addresses.
func put(out memory, m *made, table uint64, name string) {
	image := m.memory()
	object := image[objectAt]
	binary.LittleEndian.PutUint64(object, table)
	binary.LittleEndian.PutUint64(object[0x3e8:], objectAt+0x3f8)
	binary.LittleEndian.PutUint64(object[0x3f0:], uint64(len(name)))
	copy(object[0x3f8:], name)
	for at, b := range image {
		out[at] = b
	}
}

// runsOf lists the pages of a process.
func runsOf(m memory) (out []present.Run) {
	for at, b := range m {
		out = append(out, present.Run{Addr: at, Pages: uint64(len(b)+4095) >> present.PageShift})
	}
	return out
}

// testTime is how long candidates are looked at here.
const testTime = 300 * time.Millisecond

func searched(t *testing.T, m memory) *Found {
	t.Helper()
	s := &search{memory: m, tables: []uint64{tableAt, otherAt}, proofTime: testTime}
	s.scan(t.Context(), runsOf(m))
	return s.prove(t.Context(), clock())
}

// TestSearch: an allocator is found by its table, with its name and device. What only looks like one is not.
func TestSearch(t *testing.T) {
	for name, want := range map[string]Pool{
		"GPU_3_bfc":                  {Name: "GPU_3_bfc", Device: 3},
		"GPU_collectivememory_1_bfc": {Name: "GPU_collectivememory_1_bfc", Device: 1},
		"xla_gpu_host_bfc":           {Name: "xla_gpu_host_bfc", Host: true},
		"bfc_cpu_allocator_for_gpu":  {Name: "bfc_cpu_allocator_for_gpu", Host: true},
		"x":                          {Host: true},
	} {
		for _, table := range []uint64{tableAt, otherAt} {
			m := memory{}
			put(m, newMade(common), table, name)
			found := searched(t, m)
			require.Len(t, found.Pools, 1, name)
			require.Empty(t, found.Unproved)
			require.False(t, found.Cut)
			got := found.Pools[0]
			require.Equal(t, want, Pool{Name: got.Name, Device: got.Device, Host: got.Host})
			require.EqualValues(t, objectAt, got.object)
			d, err := got.Map(t.Context(), clock(), time.Second)
			require.NoError(t, err)
			require.Equal(t, []any{got.Name, got.Device, got.Host, uint64(1536)}, []any{d.Name, d.Device, d.Host, d.Allocated})
		}
	}
	m := memory{}
	put(m, newMade(common), tableAt+8, "GPU_0_bfc") // another class
	require.Equal(t, &Found{}, searched(t, m))
}

// TestSearchStale: what is left of an older object, in front of an allocator and in it, is not a second one.
func TestSearchStale(t *testing.T) {
	m := memory{}
	put(m, newMade(common), tableAt, "GPU_0_bfc")
	m[objectAt-0x800] = append(append64(nil, tableAt, tableAt), append(make([]byte, 0x7f0), m[objectAt]...)...)
	m[objectAt-0x800] = append64(m[objectAt-0x800], 1, tableAt, 2) // behind the fields
	delete(m, objectAt)
	found := searched(t, m)
	require.Len(t, found.Pools, 1)
	require.EqualValues(t, objectAt, found.Pools[0].object)
}

// TestSearchUnproved: an allocator that has taken no memory is not an unknown one, if another one shows where that is written.
func TestSearchUnproved(t *testing.T) {
	m := memory{}
	corrupt := newMade(common)
	corrupt.head.Fields[9]++
	put(m, corrupt, tableAt, "GPU_0_bfc")
	require.Equal(t, &Found{Unproved: []string{"GPU_0_bfc"}}, searched(t, m))

	put(m, newMade(common), tableAt, "GPU_0_bfc")
	empty := memory{}
	put(empty, newMade(common), tableAt, "GPU_1_bfc")
	const emptyAt = 0x8_0000
	m[emptyAt] = empty[objectAt]
	binary.LittleEndian.PutUint64(m[emptyAt][0x3e8:], emptyAt+0x3f8)
	h := head{}
	h.Fields[6], h.Fields[7] = none, 1
	copy(m[emptyAt][headAt:], append64(append64(nil, h.Mutex), h.Fields[:]...))
	found := searched(t, m)
	require.Len(t, found.Pools, 1)
	require.Empty(t, found.Unproved)
	h.Fields[7] = 5 // an allocation without a chunk
	copy(m[emptyAt][headAt:], append64(append64(nil, h.Mutex), h.Fields[:]...))
	require.Equal(t, []string{"GPU_1_bfc"}, searched(t, m).Unproved)
	h.Fields[7], h.Fields[9] = 1, 512 // bytes in use without a chunk
	copy(m[emptyAt][headAt:], append64(append64(nil, h.Mutex), h.Fields[:]...))
	require.Equal(t, []string{"GPU_1_bfc"}, searched(t, m).Unproved)
}

// TestSearchHostile: memory that is full of pointers to the table, or of lists that are as long as is believed, ends the search soon.
func TestSearchHostile(t *testing.T) {
	full := make([]uint64, 4<<20/8)
	for i := range full {
		full[i] = tableAt
	}
	begun := time.Now()
	hostile := memory{0x100_0000: append64(nil, full...)}
	found := searched(t, hostile)
	s := &search{memory: hostile, tables: []uint64{tableAt}}
	s.scan(t.Context(), runsOf(hostile))
	require.Len(t, s.candidates, maxCandidates)
	require.True(t, s.cut)
	require.Empty(t, found.Pools)
	require.True(t, found.Cut)
	require.Less(t, time.Since(begun), testTime+2*time.Second)

	const listAt, listBytes = 0x4000_0000, 64 << 20 // every head is possible, each list is long and can be read
	lists := []uint64{tableAt, 0, listAt, listAt + 48*1024, listAt + 48*1024, listAt, listAt + listBytes, listAt + listBytes, none, 7, 5, 0}
	for i := range full[:1<<16] {
		full[i] = lists[i%len(lists)]
	}
	begun = time.Now()
	m := memory{0x100_0000: append64(nil, full[:1<<16]...), listAt: make([]byte, listBytes)}
	require.Empty(t, searched(t, m).Pools)
	require.Less(t, time.Since(begun), testTime+2*time.Second)
}

// TestFindNone: a process without TensorFlow and JAX has none, which is found out at once.
func TestFindNone(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	_, err = Find(t.Context(), p, clock())
	require.ErrorIs(t, err, ErrNotLoaded)
	require.ErrorIs(t, err, ErrNoAllocator)
	_, err = Find(t.Context(), process.Ended(os.Getpid()), clock())
	require.ErrorIs(t, err, process.ErrNotExist)
}

// TestConstants: of the libraries in a folder, what is written and what is in front of it are searched.
func TestConstants(t *testing.T) {
	lib := func(n uint64, name string, writable, exec bool) process.Mapping {
		return process.Mapping{Start: n << 12, End: (n + 1) << 12, Path: name, Inode: 1, Writable: writable, Exec: exec}
	}
	const a, b = "/x/liba.so.2", "/y/libb.so"
	got := constants([]process.Mapping{
		lib(1, a, false, false), lib(2, a, false, true), lib(3, a, false, false), lib(4, a, true, false), lib(5, "/x/data.bin", true, false),
		lib(6, b, true, false),
	}, "/x")
	require.Equal(t, []present.Region{{Start: 3 << 12, End: 4 << 12, File: a}, {Start: 4 << 12, End: 5 << 12, File: a}}, got)
}
