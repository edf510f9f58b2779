// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// async tracks the blocks of PyTorch's backend cudaMallocAsync, in which each tensor is one call of the driver. It
// ignores processes with a caching allocator, whose stream-ordered allocations are not tensors.
type async struct {
	trace  *view.Trace
	caches map[uint32]bool        // processes with a caching allocator
	stacks map[event.StackID]bool // whether a stack is a call by PyTorch itself
	totals map[accountKey]uint64  // bytes in use
}

func newAsync(trace *view.Trace) async {
	a := async{trace: trace, caches: map[uint32]bool{}, stacks: map[event.StackID]bool{}, totals: map[accountKey]uint64{}}
	accounts := trace.End().Snapshot.Accounts
	for i := range accounts {
		a.caches[accounts[i].PID] = true
	}
	return a
}

// owns reports whether a call with a stack allocated such a block.
func (a *async) owns(pid uint32, stack event.StackID, call string) bool {
	if a.caches[pid] {
		return false
	}
	is, ok := a.stacks[stack]
	if !ok {
		is = stacks.IsAsyncBackend(a.trace.Stack(stack), call)
		a.stacks[stack] = is
	}
	return is
}

// allocated adds a new live block, and returns the bytes in use on its device; ok is false when the block is not the backend's.
func (a *async) allocated(b *heap.Block) (total uint64, ok bool) {
	if b.Layer != event.LayerDevice || b.Size == event.Unknown || !a.owns(b.PID, b.Stack, b.Call) {
		return 0, false
	}
	key := accountKey{b.PID, b.Device}
	a.totals[key] += b.Size
	return a.totals[key], true
}

// freed does the same for a block that is no longer live.
func (a *async) freed(b *heap.Block) (total uint64, ok bool) {
	if b.Layer != event.LayerDevice || b.Size == event.Unknown || !a.owns(b.PID, b.Stack, b.Call) {
		return 0, false
	}
	key := accountKey{b.PID, b.Device}
	a.totals[key] -= min(b.Size, a.totals[key])
	return a.totals[key], true
}

// has reports whether PyTorch has allocated memory of a device in this way.
func (a *async) has(pid uint32, device event.Device) bool {
	_, ok := a.totals[accountKey{pid, device}]
	return ok
}

// only returns the device on which a process's PyTorch has allocated memory in this way, if there is exactly one.
func (a *async) only(pid uint32) (d event.Device, ok bool) {
	n := 0
	for key := range a.totals {
		if key.pid == pid {
			d = key.device
			n++
		}
	}
	return d, n == 1
}

// setAsync subtracts the backend's blocks from the process's memory outside PyTorch.
func (f *follower) setAsync(c *Case, h *heap.Heap) {
	var sum heap.Count
	for b := range h.Blocks() {
		if f.has(c, &b) {
			sum = sum.Plus(heap.CountOf(b.Size, b.Requested))
		}
	}
	u := event.Unknown
	c.Torch = balance.Torch{Allocated: sum.Bytes, Requested: sum.Bytes, Reserved: u, Pending: u, InactiveSplit: u, Free: u}
	c.Other = less(c.Other, sum)
	for i := range c.Owners {
		if o := &c.Owners[i]; stacks.IsPyTorch(o.Owner) {
			o.Count = less(o.Count, sum)
		}
	}
	c.Owners = slices.DeleteFunc(c.Owners, func(o balance.OwnerUse) bool { return o.Objects == 0 })
}

// less returns memory without a part of it.
func less(all, part heap.Count) heap.Count {
	all.Objects -= min(part.Objects, all.Objects)
	all.Bytes -= min(part.Bytes, all.Bytes)
	return all
}

// layer returns the layer of PyTorch's blocks.
func (c *Case) layer() event.Layer {
	if c.Async {
		return event.LayerDevice
	}
	return event.LayerAllocator
}

// held returns PyTorch's memory on the device, as far as known, without Context.
func (c *Case) held() uint64 {
	if c.Async {
		return c.Torch.Allocated
	}
	return c.Torch.Reserved
}
