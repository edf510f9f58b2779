// SPDX-License-Identifier: Apache-2.0

package heap

import "github.com/gputrace/gputrace/event"

// BlockKey identifies a live block.
type BlockKey struct {
	PID    uint32
	Layer  event.Layer
	Object event.Object
	Addr   uint64 // or handle
	Time   uint64 // of the allocation; 0: not known
}

// Key returns what identifies the block for its whole lifetime. It excludes Requested and Stream, which the allocator
// state can fill in later.
func (b *Block) Key() BlockKey { return BlockKey{b.PID, b.Layer, b.Object, b.Addr, b.Time} }

// Follower is called for every allocation and free, in all layers. A block is valid only during the call.
type Follower interface {
	// Allocated is called when a block joins the live set. A failed free puts a block back with the Time of its allocation.
	Allocated(b *Block)
	// Freed is called when a block leaves the live set. time is the time of the event that showed it, CLOCK_BOOTTIME nanoseconds.
	Freed(b *Block, time uint64)
	// Moved is called when a live block, with its counts, moves to another site, because its device memory turned out to be a segment.
	Moved(from, to *Block)
}

// Follow sets the follower of all changes from now on; nil removes it. Blocks that are already live are not reported to
// it; blocks that SetState adds are.
func (h *Heap) Follow(f Follower) { h.follower = f }

// Account returns the account of a caching allocator, valid until the heap changes, not to be changed; false: there is none yet.
func (h *Heap) Account(pid uint32, device event.Device) (*Account, bool) {
	key, a := accountKey{pid, device}, h.last
	if a == nil || key != h.lastKey {
		a = h.accounts[key]
	}
	switch {
	case a == nil:
		return &Account{}, false
	case a.hasTotal:
		return &a.Account, true
	}
	out := a.export()
	return &out, true
}

// Driver returns the account of one layer of the driver's memory, under the same rules as Account.
func (h *Heap) Driver(pid uint32, layer event.Layer, device event.Device) (*DriverAccount, bool) {
	d := h.drivers[driverKey{pid, layer, device}]
	return d, d != nil
}

func (h *Heap) notifyTorchAlloc(i uint32) {
	if h.follower != nil {
		h.scratch = h.torchBlock(i)
		h.follower.Allocated(&h.scratch)
	}
}

func (h *Heap) notifyTorchFree(i uint32) {
	if h.follower != nil {
		h.scratch = h.torchBlock(i)
		h.follower.Freed(&h.scratch, h.now)
	}
}

func (h *Heap) notifyDriverAlloc(o *object) {
	if h.follower != nil {
		h.scratch = h.driverBlock(o)
		h.follower.Allocated(&h.scratch)
	}
}

func (h *Heap) notifyDriverFree(o *object) {
	if h.follower != nil {
		h.scratch = h.driverBlock(o)
		h.follower.Freed(&h.scratch, h.now)
	}
}

// notifyAll calls the follower for every live block.
func (h *Heap) notifyAll() {
	if h.follower == nil {
		return
	}
	for b := range h.Blocks() {
		h.follower.Allocated(&b)
	}
}
