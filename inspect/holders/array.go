// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/holders/internal/arrays"
	"github.com/gputrace/gputrace/inspect/holders/internal/handles"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/inspect/internal/present"
)

// findObjects looks for the objects of PyTorch and of CuPy in the process's own memory.
func (r *reading) findObjects() {
	r.leaves = r.newLeaves()
	var scans []func(addr uint64, page []byte) bool
	if r.heap != nil {
		im, done := r.probe()
		r.arrays = arrays.New(r.heap, im)
		if len(r.options.BFC) > 0 {
			r.handles = handles.New(r.heap, im)
		}
		done()
	}
	if r.arrays != nil {
		scans = append(scans, r.arrays.Scan)
	}
	if r.handles != nil {
		scans = append(scans, r.handles.Scan)
	}
	r.objects = torchlayout.Find(r.im, r.leaves, r.p.abi(), scans...)
	if r.arrays == nil {
		return
	}
	r.arrays.Find(r.im)
	if !r.arrays.Known() {
		r.note("the layout of CuPy's arrays was not found: no array leads to a block of a pool")
	}
}

// knowsArrays reports whether arrays can be read.
func (r *reading) knowsArrays() bool { return r.arrays != nil && r.arrays.Known() }

// addArrays adds the blocks of CuPy's pools to PyTorch's.
func (r *reading) addArrays(live *liveBlocks) error {
	if !r.knowsArrays() {
		return nil
	}
	maps, err := r.p.Maps()
	if err != nil {
		return err
	}
	s, at, err := r.arrays.Now(r.ctx, r.p, r.p.clock, present.Regions(maps))
	if err != nil {
		return err
	}
	if len(live.devices) == 0 { // else PyTorch's blocks are older
		live.time = at
	}
	live.addPools(s)
	return nil
}

// addCopied adds the blocks that a copy has, if nothing is read later.
func (r *reading) addCopied(live *liveBlocks) {
	if r.frozen && r.knowsArrays() {
		live.addPools(r.arrays.Copied(r.im))
	}
}

// addPools adds the blocks of CuPy's pools.
func (l *liveBlocks) addPools(s *arrays.State) {
	for _, b := range s.Blocks {
		block := inspect.Block{Addr: b.Addr, Size: b.Size, Requested: inspect.Unknown, State: inspect.StateAllocated}
		l.blocks = append(l.blocks, Block{Block: block, Device: b.Device, Allocator: allocator.CuPy})
		l.segments = append(l.segments, b.Addr, b.Addr+b.Size)
	}
	for _, d := range s.Devices {
		totals := inspect.DeviceTotals{Device: d.Index, Allocated: d.Used, Reserved: inspect.Unknown}
		device := Device{DeviceTotals: totals, Allocator: allocator.CuPy, Active: d.Used, Uncounted: !d.Counted}
		if d.Missing > 0 {
			device.Changing = &inspect.Changing{BytesLow: d.Missing, BytesHigh: d.Missing, BlocksLow: 1, BlocksHigh: d.Missing / arrays.Unit}
		}
		l.devices = append(l.devices, device)
	}
	l.sort()
}

// without reports whether blocks were found, and none of them by an allocator.
func (l *liveBlocks) without(a allocator.Allocator) bool {
	return len(l.devices) > 0 && !slices.ContainsFunc(l.devices, func(d Device) bool { return d.Allocator == a })
}

// findArrays makes goals of the arrays whose memory lies in a block.
func (r *reading) findArrays(live *liveBlocks) {
	if !r.knowsArrays() {
		return
	}
	r.arrays.Visit(r.im, func(object, memory, data uint64) {
		if live.segment(data) {
			r.targets = append(r.targets, target{object: object, storage: memory, data: data, goal: r.graph.Goal(object), array: true})
		}
	})
}

// addObject takes in a Python object that is a target with the references to it that were found.
func (c *counted) addObject(t *torchlayout.Reader, object uint64, found []objgraph.Holder) {
	c.seen = true
	n, ok := t.Heap().ReferenceCount(t.Image(), object)
	missing, doubtful := int(n), 0
	for i := range found {
		if found[i].Doubtful {
			doubtful++
			continue
		}
		c.holders++
		missing--
	}
	c.unclear = c.unclear || !ok || missing < 0
	c.missing.Python += max(0, missing-doubtful)
}

// addArray describes an array; a pointer without one has no shape.
func (a *assembly) addArray(out []Tensor, b *Block, g *target, found []objgraph.Holder) []Tensor {
	t := a.torchNow()
	im := t.Image()
	if g.handle {
		return append(out, Tensor{Object: g.object, Class: cutText(t.Heap().TypeOf(im, g.object).Short()), RequiresGrad: No})
	}
	if !a.arrays.IsArray(im, g.object) {
		return out
	}
	s := Tensor{Object: g.object, Storage: g.storage, Class: cutText(t.Heap().TypeOf(im, g.object).Short()), RequiresGrad: No}
	if shape, ok := a.arrays.Geometry(im, g.object, b.Addr); ok {
		s.Shape, s.Strides, s.Offset, s.DType = shape.Shape, shape.Strides, shape.Offset, shape.DType
	}
	s.Base = len(found) > 0 && !slices.ContainsFunc(found, func(h objgraph.Holder) bool {
		return h.Kind != pyobject.RefSlot || !a.arrays.IsArray(im, a.graph.Addr(h.From))
	})
	return append(out, s)
}

// whyArray says why a block of another framework than PyTorch has no path.
func (a *assembly) whyArray(b *Block, block int, known bool) {
	switch {
	case known:
		b.Category, b.Why = CategoryChanging, "its holder changed while it was read"
	case a.now != nil && !a.seen(b):
		b.Category, b.Why = CategoryChanging, "allocated while it was read"
	case len(a.byBlock[block]) > 0:
		b.Why = "no path leads to its array"
	case b.Allocator == allocator.BFC:
		b.Why = "no array is known to use it"
	default:
		b.Why = "no array uses it"
	}
}
