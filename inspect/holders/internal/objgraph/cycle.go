// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// Turn is one reference of a cycle.
type Turn struct {
	From, To uint64
	Ref      pyobject.Ref
}

const (
	// maxTurn bounds the references of a cycle that is named, and maxLooked the objects that are looked at for it.
	maxTurn   = 16
	maxLooked = 1 << 14
)

// Cycle is the references by which garbage at an address leads back to itself; nil: none is known.
func (w *Graph) Cycle(addr uint64) []Turn { return w.cycles[addr] }

// noteCycle looks for the shortest way from an unreached object back to itself.
func (w *Graph) noteCycle(u *unreached, object uint64) {
	if _, done := w.cycles[object]; done {
		return
	}
	if w.cycles == nil {
		w.cycles = map[uint64][]Turn{}
	}
	w.cycles[object] = u.cycle(object)
}

// cycle follows the references to an object backwards, until one comes from the object.
func (u *unreached) cycle(object uint64) []Turn {
	next := map[uint64]Turn{} // by object: how it leads on towards the one that is looked for
	todo := []uint64{object}
	for n := 0; len(todo) > 0 && n < maxLooked; n++ {
		to := todo[0]
		todo = todo[1:]
		for _, up := range u.up[to] {
			t := Turn{up.from, to, up.ref}
			if up.from == object {
				return unwind(next, t, object)
			}
			if _, seen := next[up.from]; !seen {
				next[up.from] = t
				todo = append(todo, up.from)
			}
		}
	}
	return nil
}

// unwind lists the references from the first one on, which leaves the object, to the one that leads to it.
func unwind(next map[uint64]Turn, first Turn, object uint64) []Turn {
	out := []Turn{first}
	for at := first.To; at != object; at = out[len(out)-1].To {
		if len(out) == maxTurn {
			return nil
		}
		out = append(out, next[at])
	}
	return slices.Clip(out)
}
