// SPDX-License-Identifier: Apache-2.0

package objgraph

import "github.com/gputrace/gputrace/inspect/holders/internal/memory"

// maxMetaDepth bounds how often classes of classes are looked for.
const maxMetaDepth = 4

// collected calls visit with the objects that the cycle collector knows. A collector without lists has them found in memory, by the
// address of their class.
func (w *Graph) collected(visit func(object uint64)) {
	h, im := w.t.Heap(), w.t.Image()
	if !h.Unlisted() {
		h.Collected(im, func(o uint64) bool {
			visit(o)
			return true
		})
		return
	}
	classes := w.allClasses()
	im.Words(classes, func(at, _ uint64) {
		if o := at - h.TypeField(); o&7 == 0 && h.IsCollected(im, o) {
			visit(o)
		}
	})
}

// allClasses finds the classes whose instances the collector knows.
func (w *Graph) allClasses() *memory.Table {
	h, im := w.t.Heap(), w.t.Image()
	classes, seen := memory.NewTable(), memory.NewTable()
	metas := memory.NewTable()
	metas.Set(h.MetaType(), 1)
	for range maxMetaDepth {
		next := memory.NewTable()
		im.Words(metas, func(at, _ uint64) {
			addr := at - h.TypeField()
			t := h.TypeAt(im, addr)
			if t == nil || seen.Has(addr) {
				return
			}
			seen.Set(addr, 1)
			if t.Collected() {
				classes.Set(addr, 1)
			}
			if t.Meta() && addr != h.MetaType() {
				next.Set(addr, 1)
			}
		})
		if metas = next; metas.Len() == 0 {
			break
		}
	}
	return classes
}
