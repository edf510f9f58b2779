package heap

import "github.com/gputrace/gputrace/event"

// BlockKey tells a block from all others that live.
type BlockKey struct {
	PID    uint32
	Layer  event.Layer
	Object event.Object
	Addr   uint64 // or handle
	Time   uint64 // of the allocation; 0: not known
}

// Key is the block's. It is the same all its life; Requested and Stream of a block can become known later than its birth, from
// the allocator's books.
func (b *Block) Key() BlockKey { return BlockKey{b.PID, b.Layer, b.Object, b.Addr, b.Time} }

// Follower is told what lives, in all layers, as the heap books it. A block is valid during the call only.
type Follower interface {
	// Born: the block lives. A free that failed makes a block live again: its Time is that of its allocation, as before.
	Born(b *Block)
	// Gone: the block no longer lives. time is that of the event that showed it, CLOCK_BOOTTIME nanoseconds.
	Gone(b *Block, time uint64)
	// Moved: a block that lives is booked at another site from now on, with all that was counted for it: device memory turned
	// out to be a segment.
	Moved(from, to *Block)
}

// Follow tells f what happens from now on; nil: nobody. What lives already is not told, but what SetState makes live is.
func (h *Heap) Follow(f Follower) { h.follower = f }

// Account copies the books of one caching allocator; false: it has none yet.
func (h *Heap) Account(pid uint32, device event.Device) (Account, bool) {
	a := h.accounts[accountKey{pid, device}]
	if a == nil {
		return Account{}, false
	}
	return a.export(), true
}

// Driver copies the books of one layer of the driver's memory; false: it has none yet.
func (h *Heap) Driver(pid uint32, layer event.Layer, device event.Device) (DriverAccount, bool) {
	d := h.drivers[driverKey{pid, layer, device}]
	if d == nil {
		return DriverAccount{}, false
	}
	return *d, true
}

func (h *Heap) bornTorch(i uint32) {
	if h.follower != nil {
		h.told = h.torchBlock(&h.blocks.blocks[i])
		h.follower.Born(&h.told)
	}
}

func (h *Heap) goneTorch(i uint32) {
	if h.follower != nil {
		h.told = h.torchBlock(&h.blocks.blocks[i])
		h.follower.Gone(&h.told, h.now)
	}
}

func (h *Heap) bornDriver(o *object) {
	if h.follower != nil {
		h.told = h.driverBlock(o)
		h.follower.Born(&h.told)
	}
}

func (h *Heap) goneDriver(o *object) {
	if h.follower != nil {
		h.told = h.driverBlock(o)
		h.follower.Gone(&h.told, h.now)
	}
}

// tellAll tells the follower of all that lives.
func (h *Heap) tellAll() {
	if h.follower == nil {
		return
	}
	for b := range h.Blocks() {
		h.follower.Born(&b)
	}
}
