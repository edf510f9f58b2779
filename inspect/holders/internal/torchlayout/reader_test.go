// SPDX-License-Identifier: Apache-2.0

//go:build linux

package torchlayout

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/made"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
)

// madeBlocks is the allocator of a made-up process: each of its storages has 128 bytes.
type madeBlocks struct{ count int }

// Requested implements Blocks.
func (b madeBlocks) Requested(addr uint64) (uint64, bool) {
	return 128, addr >= made.Device && addr%made.Block == 0 && addr < made.Device+uint64(b.count)*made.Block
}

// readMade reads a made-up process. It is read when it is asked for: changes of it are seen in another image.
func readMade(t *testing.T) (*made.Process, *Reader) {
	t.Helper()
	m, _ := made.New()
	im := newImage(t, m)
	heap, err := pyobject.HeapAt(m, cpython.Version{Major: 3, Minor: 11}, m.Runtime, m.Types["type"])
	require.NoError(t, err)
	r, notes := NewReader(Find(im, memory.NewLeaves(heap.LeafTypes(im), heap.HeadShift()), GNU), heap, nil, madeBlocks{m.Blocks})
	require.Empty(t, notes)
	return m, r
}

func newImage(t *testing.T, m *made.Process) *memory.Image {
	t.Helper()
	regions, runs := m.Regions()
	im, err := memory.New(t.Context(), m, regions, 1<<10)
	require.NoError(t, err)
	t.Cleanup(im.Close)
	im.Reset(regions, runs)
	return im
}

// TestLayouts: every offset is found where the process was made to have it.
func TestLayouts(t *testing.T) {
	_, r := readMade(t)
	require.Equal(t, layout{
		storageData: 0x10, storageSize: 0x30, tensorStorage: 0x10, tensorMeta: 0x18, tensorSizes: 0x38, pythonObject: 0x30, cdata: 0x10,
		grad: 0x28, gradFn: 0x30, nextEdges: 0x58, edgeSize: 16, nodeSize: 0x1d0,
	}, r.layout)
	require.True(t, r.KnowsTensors() && r.KnowsNodes())
}

// TestTensors: each has a storage, a block of its own, a shape, and the Python object that has it.
func TestTensors(t *testing.T) {
	m, r := readMade(t)
	seen := map[uint64]bool{}
	r.Tensors(func(impl, storage, data uint64) {
		require.False(t, seen[data])
		seen[data] = true
		g, ok := r.Geometry(impl)
		require.True(t, ok)
		require.Equal(t, Geometry{Sizes: []int64{4, 8}, Strides: []int64{8, 1}, DType: "float32"}, g)
		object := r.Object(impl)
		require.Equal(t, impl, r.Impl(object))
		require.Equal(t, object, r.Known(impl))
		require.Equal(t, "TensorImpl", r.TensorClass(object))
		require.True(t, r.InBlock(impl, storage, object, data, made.Block))
		require.False(t, r.InBlock(impl, storage, object, data+made.Block, made.Block))
		require.False(t, r.InBlock(impl, storage, object+16, data, made.Block))
	})
	require.Len(t, seen, m.Blocks)
	storages := 0
	r.Storages(func(_, data uint64) {
		require.True(t, seen[data])
		storages++
	})
	require.Equal(t, m.Blocks, storages)
}

// TestNodes: the graph of the made-up loss has a multiplication, and behind it the weight.
func TestNodes(t *testing.T) {
	_, r := readMade(t)
	var names []string
	r.Nodes(func(node uint64) {
		names = append(names, r.ClassName(node))
		require.True(t, r.IsNode(node))
		kinds := map[pyobject.RefKind]int{}
		for _, ref := range r.NodeRefs(nil, node) {
			kinds[ref.Kind]++
		}
		want := map[pyobject.RefKind]int{RefNext: 1, RefSaved: 1}
		if r.ClassName(node) == "AccumulateGrad" {
			want = map[pyobject.RefKind]int{RefVariable: 1}
		}
		require.Equal(t, want, kinds)
	})
	require.ElementsMatch(t, []string{"AccumulateGrad", "MulBackward0"}, names)
}

// TestOnSharesClasses: a class that is first seen in another image is known in the first one too.
func TestOnSharesClasses(t *testing.T) {
	m, r := readMade(t)
	table := m.NewClass("N3foo3BarE")
	m.Put(m.Runtime, table) // any memory of the heap
	other := r.On(newImage(t, m))
	require.Equal(t, "Bar", other.ClassName(m.Runtime))
	require.Equal(t, "Bar", r.byTable(table).short())
}

// TestLeftOver: freed memory that has a storage's table still, and behind it the size of the piece of memory there,
// is no storage. One whose counts are words of their own is.
func TestLeftOver(t *testing.T) {
	for name, c := range map[string]struct {
		counts []uint64
		live   bool
	}{
		"of now": {[]uint64{1<<32 | 3}, true}, "of its own": {[]uint64{3, 1}, true}, "with Python": {[]uint64{1<<63 | 1<<32 | 3}, true},
		"size of a piece": {[]uint64{0x71}, false}, "all gone": {[]uint64{1 << 32}, false}, "of its own, gone": {[]uint64{0, 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, r := readMade(t)
			var storage uint64
			r.Storages(func(s, _ uint64) { storage = s })
			m.Put(storage+countAt, c.counts...)
			live := false
			r.On(newImage(t, m)).Storages(func(s, _ uint64) { live = live || s == storage })
			require.Equal(t, c.live, live)
		})
	}
}

// TestMissing: what the counts know beside what was found is missing; what they do not know makes them doubtful.
func TestMissing(t *testing.T) {
	_, r := readMade(t)
	r.Tensors(func(impl, _, _ uint64) {
		object := r.Object(impl)
		none, ok := r.MissingOfTensor(impl, object, References{})
		require.True(t, ok)
		require.Positive(t, none.Native+none.Python)
		all, ok := r.MissingOfTensor(impl, object, none)
		require.True(t, ok)
		require.Zero(t, all)
		none.Python++
		_, ok = r.MissingOfTensor(impl, object, none)
		require.False(t, ok)
	})
}

// TestMetaBeside: where gradients lie is found although most of them were freed by the time they were read, and
// although the word in front of them still has a tensor of what was there before.
func TestMetaBeside(t *testing.T) {
	m, r := readMade(t)
	metas, undefined := r.byRole[roleMeta], r.byRole[roleUndefined]
	require.GreaterOrEqual(t, len(metas), 2)
	require.NotEmpty(t, undefined)
	freed := m.Types["type"] // anything but a tensor
	for i, meta := range metas {
		m.Put(meta+0x20, undefined[0])
		if i > 0 {
			m.Put(meta+0x28, freed)
		}
	}
	m.Put(metas[0]+0x28, undefined[0], 0)
	again, _ := NewReader(Find(newImage(t, m), memory.NewLeaves(nil, 0), GNU), r.heap, nil, madeBlocks{m.Blocks})
	require.EqualValues(t, 0x28, again.grad)
	require.EqualValues(t, 0x30, again.gradFn)
}

// TestMetaFreed: where gradients lie is found although the node behind them was freed by the time it was read.
func TestMetaFreed(t *testing.T) {
	m, r := readMade(t)
	freed := m.Types["type"] // anything but a tensor or a node
	for _, meta := range r.byRole[roleMeta] {
		m.Put(meta+0x28, r.byRole[roleUndefined][0], freed)
	}
	again, _ := NewReader(Find(newImage(t, m), memory.NewLeaves(nil, 0), GNU), r.heap, nil, madeBlocks{m.Blocks})
	require.EqualValues(t, 0x28, again.grad)
}

// TestGraphSeen: a node that was not read is not taken for a node that does not exist.
func TestGraphSeen(t *testing.T) {
	m, r := readMade(t)
	var seen, graphs int
	r.Tensors(func(impl, _, _ uint64) {
		require.True(t, r.GraphSeen(impl))
		seen++
		node := r.GradFn(impl)
		if node == 0 {
			return
		}
		graphs++
		im, err := memory.NewProbe(t.Context(), m, nil, 16)
		require.NoError(t, err)
		defer im.Close()
		pages := []uint64{impl &^ (memory.PageSize - 1)}
		if meta := m.Word(impl+r.tensorMeta) &^ (memory.PageSize - 1); meta != pages[0] {
			pages = append(pages, meta)
		}
		im.ReadOnce(m, pages)
		require.Equal(t, im.Has(node), r.On(im).GraphSeen(impl))
	})
	require.Positive(t, seen)
	require.Positive(t, graphs)
}

// TestHasGrad: a tensor whose gradient was freed has one; a tensor with the undefined tensor in its place has not.
func TestHasGrad(t *testing.T) {
	m, r := readMade(t)
	var with, without []uint64
	r.Tensors(func(impl, _, _ uint64) {
		if meta := m.Word(impl + r.tensorMeta); meta == 0 {
			require.False(t, r.HasGrad(impl))
		} else if r.HasGrad(impl) {
			with = append(with, meta)
			require.True(t, r.HasGrad(r.Object(impl)))
		} else {
			without = append(without, meta)
		}
	})
	require.Len(t, with, 1, "the weight")
	require.Len(t, without, 1, "the loss")
	m.Put(without[0]+r.grad, m.Types["type"])
	now := r.On(newImage(t, m))
	now.Tensors(func(impl, _, _ uint64) {
		require.Equal(t, m.Word(impl+r.tensorMeta) != 0, now.HasGrad(impl))
	})
}

// TestRenewTorn: a dictionary whose table was empty when it was read, because it had another one then, is read again.
func TestRenewTorn(t *testing.T) {
	m, r := readMade(t)
	heap, im := r.Heap(), newImage(t, m)
	var dicts int
	heap.Collected(r.im, func(o uint64) bool {
		at, bytes := heap.Apart(r.im, o)
		want := len(r.Refs(nil, o))
		if used := m.Word(o + 0x10); bytes == 0 || at != m.Word(o+0x20) || used == 0 || used > 100 || want == 0 {
			return true // no dictionary, or one without elements
		}
		dicts++
		words := make([]uint64, (bytes+7)/8)
		for i := range words {
			words[i] = m.Word(at + 8*uint64(i))
		}
		m.Put(at, make([]uint64, len(words))...)
		im.Forget()
		old := r.On(im)
		require.Empty(t, old.Refs(nil, o))
		require.True(t, heap.Torn(im, o))
		m.Put(at, words...)
		old.Renew(o)
		require.False(t, heap.Torn(im, o))
		require.Len(t, old.Refs(nil, o), want)
		return true
	})
	require.Greater(t, dicts, 2)
}
