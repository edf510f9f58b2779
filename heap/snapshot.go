// SPDX-License-Identifier: Apache-2.0

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
// After Reconcile, until more events are lost, Lost is 0 and each byte of Before is in a known block.
type Account struct {
	PID    uint32
	Device event.Device

	Allocated uint64 // the allocator's own total at the last event, bytes; Unknown when it reports none (PyTorch up to 1.9)
	Reserved  uint64 // bytes of its segments, less those freed since its last report; Unknown without a report
	Live      Count  // blocks that were allocated since the first event and not freed
	Recovered Count  // part of Live: blocks from the allocator state whose allocation event was lost
	Before    uint64 // bytes that were allocated before the first event and not freed since; Unknown without a total
	// BeforeBlocks counts the blocks of Before whose addresses are known from the allocator state.
	BeforeBlocks Count
	Baseline     uint64 // Before at the start, bytes; Unknown without a total
	Lost         int64  // net bytes of lost events; negative: more frees than allocations

	// SegmentBytes is the sum in bytes of the segments known from the driver's events (older ones from the allocator
	// state) at the time when Reserved was reported; Unknown until all of them are known. A difference to Reserved
	// means lost driver events, or segments that an allocator outside PyTorch cut from larger memory.
	SegmentBytes uint64
	Checks       uint64 // number of times Reconcile compared it with the allocator state

	Gaps     uint64 // steps of the total that no event explains
	GapBytes uint64 // their sizes added up without sign

	Peak     uint64 // largest total seen, bytes; of Live alone when Allocated is unknown
	PeakTime uint64 // time of Peak, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	// PeakBefore, PeakLost and PeakReserved are Before, Lost and Reserved at the peak. Peak is the sum of PeakBefore,
	// PeakLost and Site.Peak of all sites of the layer that are not from before.
	PeakBefore   uint64
	PeakLost     int64
	PeakReserved uint64

	Allocs, Frees uint64 // events
	UnknownFrees  uint64 // part of Frees: blocks that are not known, mostly from before
	LostFrees     uint64 // blocks whose free was lost: the address was allocated again, or is not in the allocator state
	OOMs          uint64 // requests refused
}

// DriverAccount is the memory that one process obtained from the driver in one layer on one device since the first
// event, and the segments of the allocator state. It excludes other memory from before the first event.
type DriverAccount struct {
	PID    uint32
	Layer  event.Layer  // any but LayerAllocator
	Device event.Device // if torch blocks are in the memory, torch's name of the device

	Live     Count
	Segments Count // part of Live: segments of the caching allocator, known by a torch block in them or from the allocator state
	Found    Count // part of Live: known from the allocator state, not from an event
	// ByObject divides Live by event.Object, which is the index. A handle of ObjectPhysical is counted once however
	// often it is mapped, as long as it has a reference or a mapping.
	ByObject [event.ObjectExternal + 1]Count
	// Doubtful is the part of Live that may be freed: a context was destroyed, and this may have been allocated in it.
	Doubtful Count

	Peak     uint64 // largest Live.Bytes
	PeakTime uint64 // time of Peak, CLOCK_BOOTTIME nanoseconds; 0: never above 0

	Allocs, Frees uint64 // calls that took effect
	FailedFrees   uint64 // frees, unmaps and resets that were undone
	UnknownFrees  uint64 // part of Frees: memory whose allocation was not seen
	LostFrees     uint64 // allocations or mappings whose free was lost: the place is empty or has other memory
	ResetFrees    uint64 // allocations freed with their context

	Retains        uint64 // references added to a handle, shared memory or a context
	UnknownRetains uint64 // part of Retains: handles whose allocation was not seen
	Maps, Unmaps   uint64 // calls that took effect, of physical memory
	UnknownMaps    uint64 // part of Maps: handles whose allocation was not seen; their bytes are not known
	UnknownUnmaps  uint64 // part of Unmaps: ranges in which no mapping was seen
	Resets, Trims  uint64 // calls, of the holder layer
	OOMs           uint64 // requests refused
}

// Gap is a step of an allocator's total that the event at that time does not explain, because events before it were lost.
type Gap struct {
	Time   uint64 // time of the event that showed it, CLOCK_BOOTTIME nanoseconds
	PID    uint32
	Device event.Device
	Bytes  int64 // net bytes of the missing events
}

// LossInterval is a time in which events of a process were lost, in any layer. The live set at its end may differ from
// the sum of the received events.
type LossInterval struct {
	PID uint32
	event.Loss
}

// Totals are the heap's own sums, without the sites.
type Totals struct {
	First, Time uint64 // times of the first and the last event, CLOCK_BOOTTIME nanoseconds; 0: no event
	Events      uint64
	Ignored     uint64 // part of Events: implausible sizes, kinds or addresses
	Failures    uint64 // failed frees whose free was not seen, so that nothing was undone

	Accounts          []Account       // by PID and device
	Drivers           []DriverAccount // by PID, layer and device
	Asleep            []Asleep        // by PID and device; none: all segments have memory
	Gaps              []Gap           // the last 1000, oldest first
	GapCount          uint64          // all of them
	LossIntervals     []LossInterval  // the last 1000, oldest first
	LossIntervalCount uint64          // all of them
}

// Site counts all allocations of one layer by one stack.
type Site struct {
	Layer  event.Layer
	Device event.Device
	PID    uint32
	Stack  event.StackID
	Call   string // as in the events
	// Segment is true for device memory that the caching allocator divides into blocks, so that the torch layer counts it too.
	Segment bool
	Origin  Origin

	Alloc Count // allocations whose events were seen
	Inuse Count // allocations not freed, of Alloc or known only from the allocator state
	// Peak is Inuse when the allocator's total on the site's device was at its peak (Account.PeakTime) or, on a device
	// without a caching allocator, when the site's layer was (DriverAccount.PeakTime).
	Peak Count
}

// Snapshot is a copy of all totals and sites at one moment. Later changes of the heap do not affect it.
type Snapshot struct {
	Totals
	Sites []Site // sites with an allocation or memory in use, in an order that depends only on their fields
}

// Block is one live allocation.
type Block struct {
	PID       uint32
	Layer     event.Layer
	Device    event.Device
	Object    event.Object // what Addr is
	Addr      uint64       // or handle
	Size      uint64       // bytes; Unknown when not known
	Requested uint64       // bytes; Unknown when not observed
	Stream    uint64       // torch: raw handle; Unknown when not observed, and elsewhere
	Time      uint64       // time of the allocation, CLOCK_BOOTTIME nanoseconds; 0: not known, from the allocator state
	Stack     event.StackID
	Call      string
	Segment   bool   // as in Site
	Origin    Origin // as in Site
	Number    uint32 // from 1, unique among the live blocks of caching allocators in the heap; 0: the block is of another layer
}

// Totals copies the heap's sums.
func (h *Heap) Totals() Totals {
	b := Totals{
		First: h.first, Time: h.now, Events: h.events, Ignored: h.ignored, Failures: h.failures,
		Gaps: h.gaps.List(), GapCount: h.gaps.Total,
		LossIntervals: append([]LossInterval{}, h.lossIntervals...), LossIntervalCount: h.lossIntervalCount,
	}
	b.Asleep = h.asleep()
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

// GapCount returns Totals.GapCount without copying the totals.
func (h *Heap) GapCount() uint64 { return h.gaps.Total }

// Snapshot copies the totals and the sites.
func (h *Heap) Snapshot() *Snapshot {
	s := &Snapshot{Totals: h.Totals(), Sites: make([]Site, 0, len(h.sites.list))}
	for i := range h.sites.list {
		c := &h.sites.list[i]
		if c.Alloc.Objects+c.Inuse.Objects == 0 { // all of it became segments, or is known only from the allocator state
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

// Blocks yields the live allocations of all layers, in an order that depends only on the events. The heap must not change meanwhile.
func (h *Heap) Blocks() iter.Seq[Block] {
	return func(yield func(Block) bool) {
		for _, a := range h.sortedAccounts() {
			for _, i := range slices.Sorted(a.live.All()) { // the index's own order differs each time
				if !yield(h.torchBlock(i)) {
					return
				}
			}
		}
		for _, p := range h.sortedProcesses() {
			for o := range p.objects {
				if !yield(h.driverBlock(o)) {
					return
				}
			}
		}
	}
}

func (h *Heap) torchBlock(i uint32) Block {
	b := h.blocks.At(i)
	out := h.siteBlock(b.Site)
	out.Number = i + 1
	out.Addr, out.Size, out.Requested, out.Stream, out.Time = b.Addr, b.Size, b.Requested, b.Stream, b.Time
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
	if !a.hasTotal {
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
