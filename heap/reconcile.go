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
	// ErrUnproved: the allocator state and the events together do not add up to the allocator's total: events were lost
	// during the reading, or it is torn. Nothing was changed; read again.
	ErrUnproved = errors.New("allocator state and events do not add up")
	// ErrNotWatched: the frees during the observation are not known, because Watch was not called before it, or there were
	// too many. Nothing was changed; watch, and read again.
	ErrNotWatched = errors.New("not watched since the observation began")
)

// maxFreed is how many frees of one device are kept while it is watched: 64 MiB.
const maxFreed = 1 << 22

// Result is what Reconcile did. After the first time, without losses, nothing is added and nothing retired.
type Result struct {
	First   bool   // no observation of this device came before
	Kept    uint64 // blocks that events and observation agree on
	Dirty   uint64 // blocks that events changed since the observation began: the events decided
	Added   Count  // blocks that only the observation had
	Retired Count  // blocks that only the events had
	// Missing is bytes by which the total moved without an event after the last one; it is 0 when there were events.
	Missing int64

	// SegmentsProved: the segments were compared too. Else they are as they were, to be tried again.
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

// watch is what is kept of a process between Watch and Unwatch.
type watch struct {
	since  uint64 // time of the last event before
	pushed uint64 // undoLog.pushes at that time
	full   bool
}

// note keeps a free.
func (w *watch) note(a *account, e *event.Event) {
	if len(a.frees) >= maxFreed {
		w.full = true
		return
	}
	a.frees = append(a.frees, freeRecord{e.Addr, e.Time})
}

// freeRecord is when an address was freed.
type freeRecord struct{ addr, time uint64 }

// Watch begins, or begins anew, to remember what events change in a process, so that an observation that is made from now
// on can be joined with them. It costs memory until Unwatch.
func (h *Heap) Watch(pid uint32) {
	h.process(pid).watch = &watch{since: h.now, pushed: h.undo.pushes}
	for key, a := range h.accounts {
		if key.pid == pid {
			a.frees = a.frees[:0]
		}
	}
}

// Unwatch ends Watch.
func (h *Heap) Unwatch(pid uint32) {
	h.process(pid).watch = nil
	for key, a := range h.accounts {
		if key.pid == pid {
			a.frees = nil
		}
	}
}

// Reconcile joins what events say with an observation of the allocator state, so that the live set is that of the
// allocator, block for block, whatever was lost before the observation began. It must be called when all events up to
// Observation.To are applied; later ones do no harm. Each address that events touched since Observation.From is decided by
// the events, all others by the observation: a block that only the heap has is retired, one that only the observation has is
// added, without a stack. The result is proved: its blocks do not overlap, and add up to the allocator's total. When they do
// not, nothing is changed and the error wraps ErrUnproved. ErrNotWatched: see there.
//
// Segments are treated likewise, against the allocator's reserved bytes, but for themselves: see Result.SegmentsProved.
func (h *Heap) Reconcile(o event.Observation) (Result, error) {
	p := h.process(o.PID)
	if p.watch == nil || p.watch.full || o.From < p.watch.since || o.To < o.From {
		return Result{}, fmt.Errorf("reconcile pid %d %s: %w", o.PID, o.Device, ErrNotWatched)
	}
	r := Result{First: !p.blocksObserved[o.Device]}
	a := h.accounts[accountKey{o.PID, o.Device}]
	if a == nil && len(o.Blocks)+len(o.Segments) == 0 && o.Allocated == 0 && o.Reserved == 0 {
		r.SegmentsProved, r.SegmentsFirst = true, !p.segmentsObserved[o.Device]
		p.blocksObserved[o.Device], p.segmentsObserved[o.Device] = true, true // a device that is not used
		return r, nil
	}
	j := &reconciliation{heap: h, account: a, observation: &o, result: &r}
	if a == nil {
		j.account = &account{}
	}
	if err := j.decideBlocks(); err != nil {
		return Result{}, fmt.Errorf("reconcile pid %d %s: %w", o.PID, o.Device, err)
	}
	j.account = h.account(o.PID, o.Device)
	j.apply()
	j.reconcileSegments()
	p.blocksObserved[o.Device] = true
	return r, nil
}

// reconciliation is one call of Reconcile.
type reconciliation struct {
	heap        *Heap
	account     *account
	observation *event.Observation
	result      *Result

	total uint64 // that the blocks must add up to, bytes
	plan  *reconcile.Plan
}

// decideBlocks finds out which blocks to add and to retire, and proves the outcome. Nothing is changed before that.
func (j *reconciliation) decideBlocks() error {
	if err := j.findTotal(); err != nil {
		return err
	}
	in := &reconcile.Input{Total: j.total, From: j.observation.From, Seen: j.observation.Blocks, Freed: j.freed()}
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

// findTotal decides which total is that of the joined blocks: that of the last event, or, when there was none since the
// observation began, the observation's.
func (j *reconciliation) findTotal() error {
	a, o := j.account, j.observation
	switch {
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

// freed is the addresses that events freed since the observation began.
func (j *reconciliation) freed() map[uint64]struct{} {
	out := map[uint64]struct{}{}
	for _, s := range j.account.frees {
		if s.time >= j.observation.From {
			out[s.addr] = struct{}{}
		}
	}
	return out
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
		site := h.sites.find(siteKey{pid: a.PID, device: a.Device, layer: event.LayerTorch, origin: origin(j.result.First)})
		h.enterTorch(a, blocks.Block{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream, Site: site})
	}
	for _, l := range j.plan.Refine {
		h.refineBlock(a, l)
	}
	j.finish()
}

// origin is how something is known that only an observation has, the first one or a later one.
func origin(first bool) Origin {
	if first {
		return OriginBefore
	}
	return OriginRecovered
}

// refineBlock takes over what the event of a block did not tell.
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

// finish brings the sums up to date: nothing is unknown any more.
func (j *reconciliation) finish() {
	a := j.account
	if j.result.Missing != 0 {
		j.heap.gap(a, j.result.Missing, j.observation.To)
	}
	a.Allocated, a.Before, a.Lost = j.total, a.BeforeBlocks.Bytes, 0
	if !a.hasTotal {
		a.hasTotal, a.Baseline = true, a.Before
	}
	a.Baseline = max(a.Baseline, a.Before)
	if a.Allocated > a.Peak {
		j.heap.recordPeak(a, a.Allocated, j.peakTime())
	}
	a.Checks++
}

// peakTime is the time of a total that is in no event: before the first, or when it was read.
func (j *reconciliation) peakTime() uint64 {
	if j.result.First {
		return 0
	}
	return j.observation.To
}
