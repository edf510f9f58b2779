package heap

import (
	"cmp"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// Account is the torch layer of one process and device. When Allocated is known,
//
//	Live.Bytes + Before + Lost == Allocated
type Account struct {
	PID    uint32
	Device event.Device

	Allocated uint64 // the allocator's own total at the last event, bytes; Unknown when it never said (PyTorch up to 1.9)
	Reserved  uint64 // bytes of its segments at the last event; Unknown when it never said
	Live      Count  // blocks that were seen to be allocated and still live
	Before    uint64 // bytes that lived before the first event and were not freed since; Unknown without a total
	Baseline  uint64 // Before at the start, bytes; Unknown without a total
	Lost      int64  // net bytes of what did not come through; negative: more frees than allocations

	Gaps     uint64 // steps of the total that no event explains
	GapBytes uint64 // their sizes added up without sign

	Peak     uint64 // largest total seen, bytes; of Live alone when Allocated is unknown
	PeakTime uint64 // when, CLOCK_BOOTTIME nanoseconds; 0: before the first event

	Allocs, Frees uint64 // events
	UnknownFrees  uint64 // of Frees: of blocks not seen to be allocated, mostly from before
	LostFrees     uint64 // blocks whose address was handed out again without a free
	OOMs          uint64 // requests refused
}

// DriverAccount is what one process obtained from the driver on one device since the first event. What it had before is
// not known to this layer.
type DriverAccount struct {
	PID    uint32
	Layer  event.Layer // LayerDevice or LayerHost
	Device event.Device

	Live     Count
	Segments Count // of Live: known by a torch block in it to be a segment of the caching allocator

	Peak     uint64 // largest Live.Bytes
	PeakTime uint64 // when, CLOCK_BOOTTIME nanoseconds; 0: never above 0

	Allocs, Frees uint64 // calls that took effect
	FailedFrees   uint64 // frees that were undone
	UnknownFrees  uint64 // of Frees: of memory not seen to be allocated
	LostFrees     uint64 // allocations whose address was handed out again without a free
	OOMs          uint64 // requests refused
}

// Gap is a step of an allocator's total that the event at that time does not explain: events before it were lost.
type Gap struct {
	Time   uint64 // of the event that showed it, CLOCK_BOOTTIME nanoseconds
	PID    uint32
	Device event.Device
	Bytes  int64 // net bytes of the missing events
}

// Books are the totals, without the sites.
type Books struct {
	First, Time uint64 // of the first and the last event, CLOCK_BOOTTIME nanoseconds; 0: no event
	Events      uint64
	Ignored     uint64 // of Events: with sizes, kinds or addresses that cannot be meant
	Failures    uint64 // failed frees whose free was not seen, so that there was nothing to undo

	Accounts []Account       // by PID and device
	Drivers  []DriverAccount // by PID, layer and device
	Gaps     []Gap           // the last 1000, oldest first
	GapCount uint64          // all of them
}

// Site is all allocations of one layer made by one stack.
type Site struct {
	Layer  event.Layer
	Device event.Device
	PID    uint32
	Stack  event.StackID
	Call   string // as in the events
	// Segment: device memory that the caching allocator deals out as blocks, so that the torch layer counts it too.
	Segment bool

	Alloc Count // since the first event
	Inuse Count // of Alloc: not freed
}

// Snapshot is a copy of everything at one moment. It does not change when the heap does.
type Snapshot struct {
	Books
	Sites []Site // those that ever allocated, in an order that depends on nothing but their names
}

// Block is one live allocation.
type Block struct {
	PID       uint32
	Layer     event.Layer
	Device    event.Device
	Addr      uint64
	Size      uint64 // bytes
	Requested uint64 // bytes; Unknown when not observed
	Time      uint64 // of the allocation, CLOCK_BOOTTIME nanoseconds
	Stack     event.StackID
	Call      string
	Segment   bool // as in Site
}

// Books copies the totals.
func (h *Heap) Books() Books {
	b := Books{
		First: h.first, Time: h.now, Events: h.events, Ignored: h.ignored, Failures: h.failures,
		Gaps: h.gaps.list(), GapCount: h.gaps.total,
	}
	for _, a := range h.accounts {
		b.Accounts = append(b.Accounts, a.export())
	}
	for _, d := range h.drivers {
		b.Drivers = append(b.Drivers, *d)
	}
	slices.SortFunc(b.Accounts, func(x, y Account) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), compareDevice(x.Device, y.Device))
	})
	slices.SortFunc(b.Drivers, func(x, y DriverAccount) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Layer, y.Layer), compareDevice(x.Device, y.Device))
	})
	return b
}

// Snapshot copies the totals and the sites.
func (h *Heap) Snapshot() *Snapshot {
	s := &Snapshot{Books: h.Books(), Sites: make([]Site, 0, len(h.sites.list))}
	for i := range h.sites.list {
		c := &h.sites.list[i]
		if c.Alloc.Objects == 0 { // all of it became segments
			continue
		}
		k := &c.key
		s.Sites = append(s.Sites, Site{
			Layer: k.layer, Device: k.device, PID: k.pid, Stack: k.stack, Call: h.sites.calls[k.call],
			Segment: k.segment, Alloc: c.Alloc, Inuse: c.Inuse,
		})
	}
	slices.SortFunc(s.Sites, compareSite)
	return s
}

// Blocks yields the live allocations, in no order. The heap must not change meanwhile.
func (h *Heap) Blocks() iter.Seq[Block] {
	return func(yield func(Block) bool) {
		for _, a := range h.accounts {
			if !h.yieldBlocks(a.live, yield) {
				return
			}
		}
		for _, s := range h.spaces {
			if !h.yieldBlocks(s.live, yield) {
				return
			}
		}
	}
}

func (h *Heap) yieldBlocks(live map[uint64]uint32, yield func(Block) bool) bool {
	for _, i := range live {
		b := &h.blocks.blocks[i]
		k := &h.sites.list[b.site].key
		ok := yield(Block{
			PID: k.pid, Layer: k.layer, Device: k.device, Addr: b.addr, Size: b.size, Requested: b.requested,
			Time: b.time, Stack: k.stack, Call: h.sites.calls[k.call], Segment: k.segment,
		})
		if !ok {
			return false
		}
	}
	return true
}

func (a *account) export() Account {
	out := a.Account
	if !a.based {
		out.Allocated, out.Before, out.Baseline, out.Lost = event.Unknown, event.Unknown, event.Unknown, 0
	}
	return out
}

func compareDevice(x, y event.Device) int {
	return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Index, y.Index))
}

func compareSite(x, y Site) int {
	segment := func(s *Site) int {
		if s.Segment {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(x.Layer, y.Layer), cmp.Compare(x.PID, y.PID), compareDevice(x.Device, y.Device),
		cmp.Compare(x.Stack, y.Stack), cmp.Compare(x.Call, y.Call), cmp.Compare(segment(&x), segment(&y)))
}
