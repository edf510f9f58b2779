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
//
// After Reconcile, until something is lost again, Lost is 0 and each byte of Before is in a known block.
type Account struct {
	PID    uint32
	Device event.Device

	Allocated uint64 // the allocator's own total at the last event, bytes; Unknown when it never said (PyTorch up to 1.9)
	Reserved  uint64 // bytes of its segments, less those that were given back since it last said it; Unknown when it never said
	Live      Count  // blocks that were allocated since the first event and still live
	Recovered Count  // of Live: blocks whose allocation did not come through, from the allocator's books
	Before    uint64 // bytes that lived before the first event and were not freed since; Unknown without a total
	// BeforeBlocks is the blocks of Before that are known by their address, from the allocator's books.
	BeforeBlocks Count
	Baseline     uint64 // Before at the start, bytes; Unknown without a total
	Lost         int64  // net bytes of what did not come through; negative: more frees than allocations

	// SegmentBytes is what the segments that the driver's events (and the allocator's books, for older ones) tell of
	// came to when Reserved was said, bytes. Unknown until all of them are known. A difference to Reserved is lost driver
	// events, or segments that an allocator outside PyTorch cut out of larger memory.
	SegmentBytes uint64
	Checks       uint64 // how often Reconcile compared it with the allocator's books

	Gaps     uint64 // steps of the total that no event explains
	GapBytes uint64 // their sizes added up without sign

	Peak     uint64 // largest total seen, bytes; of Live alone when Allocated is unknown
	PeakTime uint64 // when, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	// PeakBefore, PeakLost and PeakReserved are Before, Lost and Reserved then. The Site.Peak of the layer's sites that are not
	// from before, PeakBefore and PeakLost add up to Peak.
	PeakBefore   uint64
	PeakLost     int64
	PeakReserved uint64

	Allocs, Frees uint64 // events
	UnknownFrees  uint64 // of Frees: of blocks that are not known, mostly from before
	LostFrees     uint64 // blocks whose free was lost: the address was handed out again, or the books do not have them
	OOMs          uint64 // requests refused
}

// DriverAccount is what one process obtained from the driver in one layer on one device since the first event, and the
// segments that the allocator's books told of. What else it had before is not known to this layer.
type DriverAccount struct {
	PID    uint32
	Layer  event.Layer  // any but LayerTorch
	Device event.Device // of memory in which torch blocks lie, the one that torch names

	Live     Count
	Segments Count // of Live: a torch block in it showed it to be a segment of the caching allocator, or the books did
	Found    Count // of Live: from the allocator's books, not from an event
	// ByObject is Live by what it is: index event.Object. Of ObjectPhysical each handle is counted once, however often it
	// is mapped, and as long as it has a reference or a mapping.
	ByObject [event.ObjectExternal + 1]Count
	// Doubtful is what of Live may be gone: a context was destroyed, and whether this was allocated in it is not known.
	Doubtful Count

	Peak     uint64 // largest Live.Bytes
	PeakTime uint64 // when, CLOCK_BOOTTIME nanoseconds; 0: never above 0

	Allocs, Frees uint64 // calls that took effect
	FailedFrees   uint64 // frees, unmaps and resets that were undone
	UnknownFrees  uint64 // of Frees: of memory not seen to be allocated
	LostFrees     uint64 // allocations or mappings whose end was lost: there is something else by now, or nothing
	ResetFrees    uint64 // allocations that went with their context

	Retains        uint64 // further references of a handle, of shared memory or of a context
	UnknownRetains uint64 // of Retains: of a handle that was not seen to be made
	Maps, Unmaps   uint64 // calls that took effect, of physical memory
	UnknownMaps    uint64 // of Maps: of a handle that was not seen to be made; its bytes are not known
	UnknownUnmaps  uint64 // of Unmaps: where nothing was seen to be mapped
	Resets, Trims  uint64 // calls, of the holder layer
	OOMs           uint64 // requests refused
}

// Gap is a step of an allocator's total that the event at that time does not explain: events before it were lost.
type Gap struct {
	Time   uint64 // of the event that showed it, CLOCK_BOOTTIME nanoseconds
	PID    uint32
	Device event.Device
	Bytes  int64 // net bytes of the missing events
}

// Hole is a time in which events of a process were lost, of any layer. What lives at one end of it may be unlike what the events
// say of the other.
type Hole struct {
	PID uint32
	event.Loss
}

// Books are the totals, without the sites.
type Books struct {
	First, Time uint64 // of the first and the last event, CLOCK_BOOTTIME nanoseconds; 0: no event
	Events      uint64
	Ignored     uint64 // of Events: with sizes, kinds or addresses that cannot be meant
	Failures    uint64 // failed frees whose free was not seen, so that there was nothing to undo

	Accounts  []Account       // by PID and device
	Drivers   []DriverAccount // by PID, layer and device
	Gaps      []Gap           // the last 1000, oldest first
	GapCount  uint64          // all of them
	Holes     []Hole          // the last 1000, oldest first
	HoleCount uint64          // all of them
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
	Origin  Origin

	Alloc Count // that were seen to be made
	Inuse Count // not given back; of Alloc, but for what only the allocator's books told of
	// Peak is Inuse when the allocator's total on the site's device was at its peak (Account.PeakTime). Where no caching
	// allocator is on the device: when the site's layer was (DriverAccount.PeakTime).
	Peak Count
}

// Snapshot is a copy of everything at one moment. It does not change when the heap does.
type Snapshot struct {
	Books
	Sites []Site // those that allocated or have something in use, in an order that depends on nothing but their names
}

// Block is one live allocation.
type Block struct {
	PID       uint32
	Layer     event.Layer
	Device    event.Device
	Object    event.Object // what Addr is
	Addr      uint64       // or handle
	Size      uint64       // bytes; Unknown where nobody said
	Requested uint64       // bytes; Unknown when not observed
	Stream    uint64       // torch: raw handle; Unknown when not observed, and elsewhere
	Time      uint64       // of the allocation, CLOCK_BOOTTIME nanoseconds; 0: not known, only the books told of it
	Stack     event.StackID
	Call      string
	Segment   bool   // as in Site
	Origin    Origin // as in Site
}

// Books copies the totals.
func (h *Heap) Books() Books {
	b := Books{
		First: h.first, Time: h.now, Events: h.events, Ignored: h.ignored, Failures: h.failures,
		Gaps: h.gaps.list(), GapCount: h.gaps.total,
		Holes: append([]Hole{}, h.holes...), HoleCount: h.holeCount,
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

// GapCount is Books.GapCount alone.
func (h *Heap) GapCount() uint64 { return h.gaps.total }

// Snapshot copies the totals and the sites.
func (h *Heap) Snapshot() *Snapshot {
	s := &Snapshot{Books: h.Books(), Sites: make([]Site, 0, len(h.sites.list))}
	for i := range h.sites.list {
		c := &h.sites.list[i]
		if c.Alloc.Objects+c.Inuse.Objects == 0 { // all of it became segments, or was only found
			continue
		}
		k := &c.key
		s.Sites = append(s.Sites, Site{
			Layer: k.layer, Device: k.device, PID: k.pid, Stack: k.stack, Call: h.sites.calls[k.call],
			Segment: k.segment, Origin: k.origin, Alloc: c.Alloc, Inuse: c.Inuse, Peak: c.peak(),
		})
	}
	slices.SortFunc(s.Sites, compareSite)
	return s
}

// Blocks yields the live allocations of all layers, in no order. The heap must not change meanwhile.
func (h *Heap) Blocks() iter.Seq[Block] {
	return func(yield func(Block) bool) {
		for _, a := range h.accounts {
			for i := range a.live.all() {
				if !yield(h.torchBlock(&h.blocks.blocks[i])) {
					return
				}
			}
		}
		for _, p := range h.processes {
			for o := range p.objects {
				if !yield(h.driverBlock(o)) {
					return
				}
			}
		}
	}
}

// objects yields what is live, each once.
func (p *process) objects(yield func(*object) bool) {
	for _, s := range p.spaces {
		for _, o := range s {
			if !yield(o) {
				return
			}
		}
	}
	for o := range p.orphans {
		if !yield(o) {
			return
		}
	}
	for _, o := range p.pieces {
		if !yield(o) {
			return
		}
	}
}

func (h *Heap) torchBlock(b *block) Block {
	out := h.siteBlock(b.site)
	out.Addr, out.Size, out.Requested, out.Stream, out.Time = b.addr, b.size, b.requested, b.stream, b.time
	return out
}

func (h *Heap) driverBlock(o *object) Block {
	out := h.siteBlock(o.site)
	out.Object, out.Addr, out.Size, out.Time = o.sort, o.addr, o.size, o.time
	out.Requested, out.Stream = event.Unknown, event.Unknown
	return out
}

func (h *Heap) siteBlock(site uint32) Block {
	k := &h.sites.list[site].key
	return Block{
		PID: k.pid, Layer: k.layer, Device: k.device, Stack: k.stack, Call: h.sites.calls[k.call], Segment: k.segment, Origin: k.origin,
	}
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
		cmp.Compare(x.Stack, y.Stack), cmp.Compare(x.Call, y.Call), cmp.Compare(segment(&x), segment(&y)),
		cmp.Compare(x.Origin, y.Origin))
}
