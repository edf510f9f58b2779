// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"time"

	"github.com/gputrace/gputrace/event/allocator"
)

// addBFC adds the blocks of the allocators of TensorFlow and JAX. The holders of the blocks of one that cannot be read, or is too busy, are
// not known. The oldest reading sets the time: PyTorch's, or the first allocator's.
func (r *reading) addBFC(live *liveBlocks, mapTimeout time.Duration) {
	for _, p := range r.options.BFC {
		m, err := p.Map(r.ctx, r.p.clock, mapTimeout)
		if err != nil {
			if r.ctx.Err() == nil {
				r.note("%s of TensorFlow or JAX was not read: %v", cmp.Or(p.Name, "an allocator"), err)
			}
			continue
		}
		oldest := live.time
		if len(live.devices) == 0 {
			oldest = m.Time
		}
		live.add(m, allocator.BFC)
		live.time = oldest
	}
	if len(r.options.BFC) > 0 {
		live.sort()
	}
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
