// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"cmp"
	"iter"
	"maps"

	"github.com/gputrace/gputrace/internal/sorts"
)

// Go ranges over a map in a different order each time. Followers number what they are called with, so every walk over
// processes, accounts and objects that calls or writes something is in the order of their keys.

// sortedAccounts lists the accounts of caching allocators by PID and device.
func (h *Heap) sortedAccounts() []*account {
	return sorts.Collect(maps.Values(h.accounts), func(x, y *account) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), compareDevice(x.Device, y.Device))
	})
}

// sortedProcesses lists the processes by PID.
func (h *Heap) sortedProcesses() []*process {
	return sorts.Collect(maps.Values(h.processes), func(x, y *process) int { return cmp.Compare(x.pid, y.pid) })
}

// inSpace lists the objects of one sort that have an address or handle, sorted by it.
func (p *process) inSpace(key spaceKey) []*object { return sortedObjects(maps.Values(p.spaces[key])) }

// objects yields each live object once.
func (p *process) objects(yield func(*object) bool) {
	keys := sorts.Collect(maps.Keys(p.spaces), func(x, y spaceKey) int {
		return cmp.Or(cmp.Compare(x.layer, y.layer), cmp.Compare(x.sort, y.sort))
	})
	lists := make([][]*object, 0, len(keys)+2)
	for _, key := range keys {
		lists = append(lists, p.inSpace(key))
	}
	for _, list := range append(lists, sortedObjects(maps.Keys(p.orphans)), p.pieces) {
		for _, o := range list {
			if !yield(o) {
				return
			}
		}
	}
}

// sortedObjects sorts objects by address or handle; objects that had the same one in turn are in that order.
func sortedObjects(objects iter.Seq[*object]) []*object {
	return sorts.Collect(objects, func(x, y *object) int {
		return cmp.Or(cmp.Compare(x.addr, y.addr), cmp.Compare(x.listed, y.listed), cmp.Compare(x.time, y.time))
	})
}
