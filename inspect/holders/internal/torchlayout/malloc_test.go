// SPDX-License-Identifier: Apache-2.0

//go:build linux

package torchlayout

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// madeMalloc says what the made-up process has allocated, as macOS would: by the first bytes of what it gave.
type madeMalloc struct {
	m      *made.Process
	starts map[uint64]uint64 // bytes
	asked  []int             // places of each question
	change func(place, answer [2]uint64) [2]uint64
	err    error
	more   int // answers that nobody asked for
}

// newMalloc finds what was allocated by the sizes that glibc's malloc has before each piece.
func newMalloc(m *made.Process) *madeMalloc {
	out := &madeMalloc{m: m, starts: map[uint64]uint64{}}
	for at := made.Heap; ; {
		chunk := m.Word(at+8) &^ 7
		if m.Word(at+8+chunk) == 0 {
			return out
		}
		out.starts[at+16] = chunk - 8
		at += chunk
	}
}

// Sizes implements Malloc.
func (f *madeMalloc) Sizes(places [][2]uint64) (answers [][2]uint64, err error) {
	f.asked = append(f.asked, len(places))
	for _, p := range places {
		a := [2]uint64{f.m.Word(p[0]), max(f.starts[p[1]], 15) - 15}
		if f.change != nil {
			a = f.change(p, a)
		}
		answers = append(answers, a)
	}
	return append(answers, make([][2]uint64, max(f.more, 0))...)[:len(places)+f.more], f.err
}

// readApple reads a made-up process as one of macOS.
func readApple(t *testing.T, m *made.Process, f *madeMalloc) *Reader {
	t.Helper()
	im := newImage(t, m)
	heap, err := pyobject.HeapAt(m, cpython.Version{Major: 3, Minor: 11}, m.Runtime, m.Types["type"])
	require.NoError(t, err)
	r, notes := NewReader(Find(im, memory.NewLeaves(heap.LeafTypes(im), heap.HeadShift()), Apple(f)), heap, nil, madeBlocks{m.Blocks})
	require.Empty(t, notes)
	return r
}

// saved counts the tensors that nodes saved.
func saved(r *Reader) (n int) {
	r.Nodes(func(node uint64) {
		for _, ref := range r.NodeRefs(nil, node) {
			if ref.Kind == RefSaved {
				n++
			}
		}
	})
	return n
}

// TestAskedOnce: malloc is asked when a size is first needed, and not again, also for other images.
func TestAskedOnce(t *testing.T) {
	m, _ := made.New()
	f := newMalloc(m)
	r := readApple(t, m, f)
	require.Empty(t, f.asked)
	require.False(t, r.Unsized())
	for range 3 {
		require.Equal(t, 1, saved(r))
		require.Equal(t, 1, saved(r.On(newImage(t, m))))
	}
	require.Equal(t, []int{1, 0x230/16 - 1}, f.asked, "the node, and whether something begins within it")
	require.False(t, r.Unsized())
}

// TestSizesThatAreNone: an answer that is not of the object, or cannot be, is none.
func TestSizesThatAreNone(t *testing.T) {
	for name, wrong := range map[string]madeMalloc{
		"nothing":      {change: func(_, a [2]uint64) [2]uint64 { return [2]uint64{a[0], 0} }},
		"too large":    {change: func(_, a [2]uint64) [2]uint64 { return [2]uint64{a[0], maxNode} }},
		"the largest":  {change: func(_, a [2]uint64) [2]uint64 { return [2]uint64{a[0], ^uint64(0)} }},
		"another":      {change: func(_, a [2]uint64) [2]uint64 { return [2]uint64{a[0] + 8, a[1]} }},
		"all alike":    {change: func(_, a [2]uint64) [2]uint64 { return [2]uint64{a[0], 0x230} }},
		"no more":      {err: errors.New("it has ended")},
		"too few":      {more: -1},
		"more than it": {more: 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := made.New()
			f := newMalloc(m)
			f.change, f.err, f.more = wrong.change, wrong.err, wrong.more
			r := readApple(t, m, f)
			require.Zero(t, saved(r))
			require.True(t, r.Unsized())
			require.LessOrEqual(t, len(f.asked), 3)
		})
	}
}

// TestMemoryOf: what make_shared makes lies 24 bytes into its memory, which its address tells.
func TestMemoryOf(t *testing.T) {
	start, in := memoryOf(0x1230)
	require.Equal(t, [2]uint64{0x1230, 0}, [2]uint64{start, in})
	start, in = memoryOf(0x1238)
	require.Equal(t, [2]uint64{0x1220, 24}, [2]uint64{start, in})
}

// copied is a made-up process with so many further nodes at some addresses, 32 bytes apart.
func copied(t *testing.T, n uint64) (m *made.Process, f *madeMalloc, first uint64) {
	t.Helper()
	m, _ = made.New()
	f = newMalloc(m)
	first = made.Heap + 2*made.Pages*4096 - n*32
	table := uint64(0)
	readApple(t, m, f).Nodes(func(node uint64) { table = max(table, m.Word(node)) })
	for i := range n {
		m.Put(first+32*i, table, 1<<32|1)
	}
	return m, f, first
}

// TestWhole: an object that is not there any more when it is looked at again says nothing; one in which something begins has another size.
func TestWhole(t *testing.T) {
	for name, c := range map[string]struct {
		again func(i int, a [2]uint64) [2]uint64 // an answer of the second question
		saved bool
	}{
		"two are there no more": {func(i int, a [2]uint64) [2]uint64 { return [2]uint64{a[0] + uint64(i/35), uint64(i / 35)} }, true},
		"none is there":         {func(_ int, a [2]uint64) [2]uint64 { return [2]uint64{a[0] + 8, 0} }, false},
		"something begins":      {func(i int, a [2]uint64) [2]uint64 { return [2]uint64{a[0], uint64(i / 100)} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, f, first := copied(t, 20)
			i := -1
			f.change = func(p, a [2]uint64) [2]uint64 {
				if a[1] = 0; len(f.asked) > 1 {
					i++
					return c.again(i, a)
				}
				if p[0] >= first {
					a[1] = 0x221
				}
				return a
			}
			r := readApple(t, m, f)
			require.Equal(t, c.saved, saved(r) > 0)
			require.Equal(t, !c.saved, r.Unsized())
			require.Equal(t, []int{21, 3 * (0x228 / 16)}, f.asked)
		})
	}
}

// TestMostDecide: of many objects some are asked for, and what most say that are there counts. Where none of these
// is there, more are asked for.
func TestMostDecide(t *testing.T) {
	const copies = 500
	for name, c := range map[string]struct {
		least func(i int) uint64 // of a copy
		asked []int
		saved bool
	}{
		"most":  {func(i int) uint64 { return 0x221 - uint64(i%3)/2*0x100 }, []int{64, 3 * (0x228 / 16)}, true},
		"split": {func(i int) uint64 { return 0x221 - uint64(i/(copies/3+1))*0x10 }, []int{64}, false},
		"few": {func(i int) uint64 {
			if i == 2 {
				return 0x221
			}
			return 0
		}, []int{64, copies + 1, 0x228 / 16}, true},
		"none": {func(int) uint64 { return 0 }, []int{64, copies + 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, f, first := copied(t, copies)
			f.change = func(p, a [2]uint64) [2]uint64 {
				if a[1] = 0; p[0] == p[1] && p[0] >= first {
					a[1] = c.least(int(p[0]-first) / 32)
				}
				return a
			}
			r := readApple(t, m, f)
			require.Equal(t, c.saved, saved(r) > 0)
			require.Equal(t, c.asked, f.asked)
		})
	}
}

// TestAskedForAtMost: however many classes there are, a question has its bounds.
func TestAskedForAtMost(t *testing.T) {
	m, _ := made.New()
	f := newMalloc(m)
	r := readApple(t, m, f)
	open := map[*class][]uint64{}
	for range 3000 {
		c := &class{}
		r.list = append(r.list, c)
		open[c] = make([]uint64, 2000)
		for i := range open[c] {
			open[c][i] = made.Heap
		}
	}
	r.vouch(nil, open, 64)
	r.vouch(nil, open, 1024)
	require.LessOrEqual(t, slices.Max(f.asked), maxAskedSizes)
	require.Greater(t, slices.Min(f.asked), 3000)
}
