// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"errors"
	"slices"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
)

// bfcOf is an allocator of TensorFlow or JAX, and its device.
type bfcOf struct {
	allocator *bfc.Allocator
	device    int
}

// addBFC adds the blocks of the allocators of TensorFlow and JAX. An allocator that cannot be read, or is too busy, is left out: then the
// holders of its blocks are not known.
func (r *reading) addBFC(live *liveBlocks) {
	for _, a := range r.bfc {
		s, err := a.allocator.Read(r.ctx, r.p.clock)
		if err != nil {
			if !errors.Is(err, bfc.ErrChanged) && r.ctx.Err() == nil {
				r.note("an allocator of TensorFlow or JAX was not read: %v", err)
			}
			continue
		}
		if len(live.devices) == 0 {
			live.time = s.From
		}
		live.addAllocator(a.device, s)
	}
	if len(r.bfc) > 0 {
		live.sort()
	}
}

// addAllocator adds the blocks of one allocator.
func (l *liveBlocks) addAllocator(device int, s *bfc.State) {
	for _, b := range s.Blocks {
		block := inspect.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, State: inspect.StateAllocated}
		l.blocks = append(l.blocks, Block{Block: block, Device: device, Allocator: allocator.BFC})
		l.segments = append(l.segments, b.Addr, b.Addr+b.Size)
	}
	same := func(d Device) bool { return d.Allocator == allocator.BFC && d.DeviceTotals.Device == device }
	if i := slices.IndexFunc(l.devices, same); i >= 0 {
		d := &l.devices[i]
		d.Allocated, d.Reserved, d.Active = d.Allocated+s.InUse, d.Reserved+s.Reserved, d.Active+s.InUse
		return
	}
	totals := inspect.DeviceTotals{Device: device, Allocated: s.InUse, Reserved: s.Reserved}
	l.devices = append(l.devices, Device{DeviceTotals: totals, Allocator: allocator.BFC, Active: s.InUse})
}

// begins reports whether a block begins at an address.
func (l *liveBlocks) begins(addr uint64) bool { return l.starts.Has(addr) }

// knowsHandles reports whether arrays of TensorFlow or JAX can be read.
func (r *reading) knowsHandles() bool { return r.handles != nil && r.handles.Known() }

// findHandles makes goals of the arrays of TensorFlow and JAX whose memory is a block.
func (r *reading) findHandles(live *liveBlocks) {
	if r.handles == nil {
		return
	}
	r.handles.Find(r.im, live.begins)
	if !r.handles.Known() {
		r.note("no array of TensorFlow or JAX leads to a block")
	}
	r.handles.Visit(r.im, live.begins, func(object, data uint64) {
		r.targets = append(r.targets, target{object: object, storage: data, data: data, goal: r.graph.Goal(object), array: true, handle: true})
	})
}

// withoutHandle leaves out the attributes at the end of a path that lead from a variable of TensorFlow to its array: _handle of a
// ResourceVariable (tensorflow/python/ops/resource_variable_ops.py), and _value of Keras's own variable in front of it
// (keras/src/backend/common/variables.py).
func withoutHandle(p Path, of allocator.Allocator) Path {
	if of != allocator.BFC {
		return p
	}
	for _, name := range []string{"_handle", "_value"} {
		n := len(p) - 1
		if n < 1 || p[n].Name != name || p[n].Kind != StepAttribute && (p[n].Kind != StepKey || p[n-1].Kind != StepDict) {
			return p
		}
		if p = p[:n]; p[n-1].Kind == StepDict {
			p = p[:n-1]
		}
	}
	return p
}
