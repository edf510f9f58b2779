// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

type accountKey struct {
	pid    uint32
	device event.Device
}

// account is the torch layer of one process and device. Once hasTotal is true, at any time
//
//	live bytes + before + lost == allocated
//
// where live is the blocks whose allocation was seen or that were found in the allocator state later, before is the
// memory allocated before the attach and not freed since, and lost is the net bytes of lost events.
type account struct {
	Account
	hasTotal bool // a total was seen: Allocated, Before and Lost are valid
	live     blocks.Index
	process  *process
	peak     peakState // state of Peak

	driver   *DriverAccount // account of the same device, which counts the segments; nil until there is one
	complete bool           // all segments are known: SegmentBytes is valid

	lastEvent uint64 // time of the last event
	lastGap   uint64 // time of the last gap
}

func (h *Heap) account(pid uint32, device event.Device) *account {
	key := accountKey{pid, device}
	if h.last != nil && h.lastKey == key {
		return h.last
	}
	a := h.accounts[key]
	if a == nil {
		a = &account{live: blocks.NewIndex(), process: h.process(pid)}
		a.PID, a.Device = pid, device
		a.Allocated, a.Reserved, a.SegmentBytes = event.Unknown, event.Unknown, event.Unknown
		a.driver = h.drivers[driverKey{pid, event.LayerDevice, device.Physical()}]
		a.process.accounts = append(a.process.accounts, a)
		a.process.hasTorch(device)
		h.accounts[key] = a
		h.adoptSites(a)
		if a.process.blocksObserved[device] > 0 { // observed to be empty
			a.Reserved = 0
			h.startTotals(a, 0, 0)
		}
	}
	h.lastKey, h.last = key, a
	return a
}

// SetBaseline sets the allocator's totals before the first event, in bytes, as read from the allocator state. The first
// event is then checked against them. It has no effect once the account's total is known.
func (h *Heap) SetBaseline(pid uint32, device event.Device, allocated, reserved uint64) {
	a := h.account(pid, device)
	if a.hasTotal || allocated >= blocks.MaxBytes {
		return
	}
	if reserved < blocks.MaxBytes {
		a.Reserved = reserved
	}
	h.startTotals(a, int64(allocated), 0)
	a.compareSegments()
}

func (h *Heap) applyTorch(e *event.Event) {
	a := h.account(e.PID, e.Device)
	a.lastEvent = e.Time
	h.checkTotal(a, e)
	if w := a.process.watch; w != nil && !w.logs.At(e.Device).Note(e) {
		w.full = true
	}
	switch e.Kind {
	case event.KindAlloc:
		h.allocTorch(a, e)
	case event.KindFree:
		h.freeTorch(a, e)
	case event.KindOutOfMemory:
		a.OOMs++
	}
	a.compareSegments()
	total := a.Allocated
	if !a.hasTotal {
		total = a.Live.Bytes
	}
	if isPeak(total, e.Time, a.Peak, a.PeakTime) {
		h.recordPeak(a, total, e.Time)
	}
}

// checkTotal compares the total in an event with the total that the event should lead to.
func (h *Heap) checkTotal(a *account, e *event.Event) {
	if e.Reserved != event.Unknown {
		a.Reserved = e.Reserved
	}
	var change int64
	switch e.Kind {
	case event.KindAlloc:
		change = int64(e.Size)
	case event.KindFree:
		change = -int64(e.Size)
	}
	now := int64(e.Allocated)
	switch {
	case e.Allocated == event.Unknown && !a.hasTotal:
		return // PyTorch up to 1.9 reports no totals
	case e.Allocated == event.Unknown:
		now = max(0, int64(a.Allocated)+change)
	case !a.hasTotal:
		h.startTotals(a, now-change, e.Time)
	}
	if gap := now - change - int64(a.Allocated); gap != 0 {
		h.gap(a, gap, e.Time)
	}
	a.Allocated = uint64(now)
}

// startTotals starts an account at the total before the current event; bytes of it that are in no known block become Before.
func (h *Heap) startTotals(a *account, total int64, time uint64) {
	total = max(0, total) // a total below 0 becomes a gap: the event's step from 0
	before := total - int64(a.Live.Bytes)
	a.hasTotal = true
	a.Allocated = uint64(total)
	a.Before = uint64(max(0, before))
	a.Baseline = a.Before
	a.Lost = min(0, before)
	if a.Allocated > a.Peak {
		h.recordPeak(a, a.Allocated, time)
	}
}

func (h *Heap) gap(a *account, bytes int64, time uint64) {
	a.Lost += bytes
	a.Gaps++
	a.GapBytes += uint64(max(bytes, -bytes))
	a.lastGap = time
	h.gaps.Add(Gap{Time: time, PID: a.PID, Device: a.Device, Bytes: bytes}, maxGaps)
}

func (h *Heap) allocTorch(a *account, e *event.Event) {
	if i, ok := a.live.Find(e.Addr, &h.blocks); ok { // its free was lost
		a.LostFrees++
		a.Lost += int64(h.blocks.At(i).Size)
		h.retireTorch(a, i)
	}
	a.Allocs++
	site := h.sites.at(e)
	h.sites.list[site].Alloc.Add(e.Size, e.Requested)
	h.enterTorch(a, blocks.Block{Addr: e.Addr, Size: e.Size, Requested: e.Requested, Stream: e.Stream, Time: e.Time, Site: site})
	if len(a.process.unclaimed) > 0 && !a.Device.Allocator().Sampled() { // samples do not account for all of a segment
		h.markSegments(a.process, e.Addr, e.Addr+e.Size, e.Device)
	}
}

func (h *Heap) freeTorch(a *account, e *event.Event) {
	a.Frees++
	i, ok := a.live.Find(e.Addr, &h.blocks)
	size := e.Size
	switch {
	case size == event.Unknown && ok: // this allocator's frees do not carry it
		size = h.blocks.At(i).Size
	case size == event.Unknown:
		size = 0
	}
	if !ok {
		a.UnknownFrees++
		taken := min(a.Before-a.BeforeBlocks.Bytes, size)
		a.Before -= taken
		a.Lost -= int64(size - taken)
		return
	}
	// Another size: a free and an allocation at this address were lost.
	a.Lost += int64(h.blocks.At(i).Size) - int64(size)
	h.retireTorch(a, i)
}

// enterTorch adds a block to the live set.
func (h *Heap) enterTorch(a *account, b blocks.Block) {
	i := h.blocks.Add(b)
	a.live.Add(b.Addr, i)
	h.notifyTorchAlloc(i)
	site := h.siteForChange(b.Site)
	site.Inuse.Add(b.Size, b.Requested)
	switch site.key.origin {
	case OriginBefore:
		a.Before += b.Size
		a.BeforeBlocks.Add(b.Size, b.Requested)
		return
	case OriginRecovered:
		a.Recovered.Add(b.Size, b.Requested)
	}
	a.Live.Add(b.Size, b.Requested)
}

// retireTorch is the inverse of enterTorch.
func (h *Heap) retireTorch(a *account, i uint32) {
	h.notifyTorchFree(i)
	b := h.blocks.At(i)
	a.live.Remove(b.Addr, i)
	site := h.siteForChange(b.Site)
	site.Inuse.Remove(b.Size, b.Requested)
	h.blocks.Drop(i)
	switch site.key.origin {
	case OriginBefore:
		a.Before -= b.Size
		a.BeforeBlocks.Remove(b.Size, b.Requested)
		return
	case OriginRecovered:
		a.Recovered.Remove(b.Size, b.Requested)
	}
	a.Live.Remove(b.Size, b.Requested)
}
