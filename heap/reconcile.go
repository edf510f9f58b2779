// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"errors"
	"fmt"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
	"github.com/gputrace/gputrace/heap/internal/reconcile"
)

// Errors on which callers branch.
var (
	// ErrUnproved means that the allocator state and the events together do not add up to the allocator's total: events
	// were lost during the reading, or the reading is inconsistent. Nothing was changed; read again.
	ErrUnproved = errors.New("allocator state and events do not add up")
	// ErrNotWatched means that the frees during the observation are not known, because Watch was not called before it,
	// or there were too many. Nothing was changed; call Watch, and read again.
	ErrNotWatched = errors.New("not watched since the observation began")
)

// Result reports what Reconcile did. After the first check, without losses, it adds and retires nothing.
type Result struct {
	First   bool   // this is the first observation of the device, or of one of its allocators
	Kept    uint64 // blocks that events and observation agree on
	Dirty   uint64 // blocks with an event after the observation began: the events decided
	Added   Count  // blocks that only the observation had
	Retired Count  // blocks that only the events had
	// Missing is the number of bytes by which the total moved after the last event; it is 0 when there were events.
	Missing int64

	// SegmentsProved: the segments were compared too. If false, they are unchanged and can be compared again.
	SegmentsProved  bool
	SegmentsFirst   bool  // for the first time
	SegmentsAdded   Count // that only the observation had
	SegmentsRetired Count // that only the driver's events had
}

// Agreed reports whether allocator state and events were the same. Blocks that the first check adds are from before the first event.
func (r *Result) Agreed() bool {
	return r.Retired.Objects+r.SegmentsRetired.Objects == 0 && r.Missing == 0 &&
		(r.First || r.Added.Objects == 0) && (r.SegmentsFirst || r.SegmentsAdded.Objects == 0)
}

// watch is the log of a process between Watch and Unwatch.
type watch struct {
	since  uint64 // time of the last event before Watch
	pushed uint64 // undoLog.pushes at that time
	logs   reconcile.Logs
	full   bool
}

// Watch starts, or restarts, a log of the changes that events make in a process, so that Reconcile can use an
// observation that is made from now on. The log takes memory until Unwatch.
func (h *Heap) Watch(pid uint32) {
	h.process(pid).watch = &watch{since: h.now, pushed: h.undo.pushes, logs: reconcile.Logs{}}
}

// Unwatch ends Watch and frees its log.
func (h *Heap) Unwatch(pid uint32) { h.process(pid).watch = nil }

// Reconcile joins the events with an observation of the allocator state, so that the live set equals the allocator's
// blocks whatever was lost before the observation began. Call it after applying all events up to Observation.To; having
// applied later ones does no harm. Events decide about each address that they touched since Observation.From; the
// observation decides about all others: Reconcile retires a block that only the heap has, and adds, without a stack, a
// block that only the observation has. The result is proved: its blocks do not overlap and add up to the allocator's
// total. Otherwise nothing is changed and the error wraps ErrUnproved, or ErrNotWatched when the log is missing.
//
// Segments are reconciled in the same way against the allocator's reserved bytes, independently of the blocks: see
// Result.SegmentsProved.
func (h *Heap) Reconcile(o event.Observation) (Result, error) {
	p := h.process(o.PID)
	if p.watch == nil || p.watch.full || o.From < p.watch.since || o.To < o.From {
		return Result{}, fmt.Errorf("reconcile pid %d %s: %w", o.PID, o.Device, ErrNotWatched)
	}
	read := max(o.Allocators, 1)
	r := Result{First: p.blocksObserved[o.Device] < read}
	a := h.accounts[accountKey{o.PID, o.Device}]
	if a == nil && len(o.Blocks)+len(o.Segments) == 0 && o.Allocated == 0 && o.Reserved == 0 {
		r.SegmentsProved, r.SegmentsFirst = true, !p.segmentsObserved[o.Device]
		p.blocksObserved[o.Device], p.segmentsObserved[o.Device] = read, true // an unused device
		return r, nil
	}
	j := &reconciliation{heap: h, account: a, observation: &o, result: &r, log: p.watch.logs.At(o.Device)}
	if a == nil {
		j.account = &account{}
	}
	if err := j.decideBlocks(); err != nil {
		return Result{}, fmt.Errorf("reconcile pid %d %s: %w", o.PID, o.Device, err)
	}
	j.account = h.account(o.PID, o.Device)
	j.apply()
	j.reconcileSegments()
	p.blocksObserved[o.Device] = read
	return r, nil
}

// reconciliation is one call of Reconcile.
type reconciliation struct {
	heap        *Heap
	account     *account
	observation *event.Observation
	result      *Result
	log         *reconcile.Log

	total uint64 // sum that the blocks must add up to, bytes
	plan  *reconcile.Plan
}

// decideBlocks computes which blocks to add and to retire, and proves the outcome before anything is changed.
func (j *reconciliation) decideBlocks() error {
	if err := j.findTotal(); err != nil {
		return err
	}
	in := &reconcile.Input{Total: j.total, From: j.observation.From, Seen: j.observation.Blocks, Freed: j.log.Freed(j.observation.From)}
	for i := range j.account.live.All() {
		in.Live = append(in.Live, reconcile.Live{Block: *j.heap.blocks.At(i), Number: i})
	}
	plan, err := reconcile.Blocks(in)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnproved, err)
	}
	j.plan, j.result.Kept, j.result.Dirty = plan, plan.Kept, plan.Dirty
	return nil
}

// findTotal returns the total of the joined blocks: the last event's or, if there was no event since the observation
// began, the observation's. If the allocator's events have no totals, the total follows from the observation and the events after it.
func (j *reconciliation) findTotal() error {
	a, o := j.account, j.observation
	switch {
	case !o.Device.Allocator().Totals():
		return j.countTotal()
	case a.lastEvent >= o.From && a.lastGap >= o.From:
		return fmt.Errorf("%w: events were lost meanwhile", ErrUnproved)
	case a.lastEvent >= o.From && a.hasTotal:
		j.total = a.Allocated
	case a.lastEvent >= o.From:
		return fmt.Errorf("%w: the events carry no totals", ErrUnproved)
	case o.Allocated == event.Unknown:
		return fmt.Errorf("%w: the allocator's total moved, and no event came", ErrUnproved)
	default:
		j.total = o.Allocated
		if a.hasTotal {
			j.result.Missing = int64(o.Allocated) - int64(a.Allocated)
		}
	}
	return nil
}

// countTotal computes the total of an allocator whose events have none.
func (j *reconciliation) countTotal() (err error) {
	if j.total, err = j.log.Total(j.observation); err != nil {
		return fmt.Errorf("%w: %w", ErrUnproved, err)
	}
	if j.account.hasTotal && !j.result.First { // else the blocks of an allocator are in the total for the first time
		j.result.Missing = int64(j.total) - int64(j.account.Allocated)
	}
	return nil
}

// apply changes the blocks.
func (j *reconciliation) apply() {
	h, a := j.heap, j.account
	for _, i := range j.plan.Retire {
		b := *h.blocks.At(i)
		j.result.Retired.Add(b.Size, b.Requested)
		a.LostFrees++
		h.retireTorch(a, i)
	}
	for _, b := range j.plan.Added {
		j.result.Added.Add(b.Size, b.Requested)
		site := h.sites.find(siteKey{pid: a.PID, device: a.Device, layer: event.LayerAllocator, origin: origin(j.result.First)})
		h.enterTorch(a, blocks.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream, Site: site})
	}
	for _, l := range j.plan.Refine {
		h.refineBlock(a, l)
	}
	j.finish()
}

// origin returns the origin of memory that only an observation has, the first one or a later one.
func origin(first bool) Origin {
	if first {
		return OriginBefore
	}
	return OriginRecovered
}

// refineBlock fills in fields that the event of a block did not have.
func (h *Heap) refineBlock(a *account, l reconcile.Refinement) {
	b := h.blocks.At(l.Number)
	if b.Stream == event.Unknown {
		b.Stream = l.Stream
	}
	if b.Requested != event.Unknown || l.Requested == event.Unknown {
		return
	}
	b.Requested = l.Requested
	site := h.siteForChange(b.Site)
	counts := []*Count{&site.Inuse}
	switch site.key.origin {
	case OriginEvent:
		counts = append(counts, &site.Alloc, &a.Live)
	case OriginBefore:
		counts = append(counts, &a.BeforeBlocks)
	case OriginRecovered:
		counts = append(counts, &a.Recovered, &a.Live)
	}
	for _, c := range counts {
		c.Requested += b.Requested
		c.RequestedObjects++
	}
}

// finish updates the sums: nothing is unknown any more.
func (j *reconciliation) finish() {
	a := j.account
	if j.result.Missing != 0 {
		j.heap.gap(a, j.result.Missing, j.observation.To)
	}
	freed := uint64(max(0, -a.Lost)) // from before, and freed before the total was known
	a.Allocated, a.Before, a.Lost = j.total, a.BeforeBlocks.Bytes, 0
	if !a.hasTotal {
		a.hasTotal, a.Baseline = true, a.Before+freed
	}
	a.Baseline = max(a.Baseline, a.Before)
	if a.Allocated > a.Peak {
		j.heap.recordPeak(a, a.Allocated, j.peakTime())
	}
	a.Checks++
}

// peakTime returns the time of a total that is in no event: before the first one, or when it was read.
func (j *reconciliation) peakTime() uint64 {
	if j.result.First && j.observation.Device.Allocator().Totals() { // others are read after their first event
		return 0
	}
	return j.observation.To
}
