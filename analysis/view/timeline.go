// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// TimelineOptions says what a timeline is to show.
type TimelineOptions struct {
	From, To uint64 // CLOCK_BOOTTIME nanoseconds, both in it; 0: from the first event, to the last
	MinSize  uint64 // bytes; smaller allocations are left out
	// MaxEvents is how many allocations and changes of totals are shown at most; 0: all. See Timeline.MinSize and Until.
	MaxEvents uint64
	Lifetimes int // how many of the largest blocks of each layer are shown from birth to end
	// Moments is at how many evenly spaced times the live set is shown, beside the end and the peaks.
	Moments int
	Phases  int // how many times of phases are listed at most; 0: none
}

// Timeline is what of a trace is shown over time.
type Timeline struct {
	From, To uint64 // CLOCK_BOOTTIME nanoseconds
	// MinSize is TimelineOptions.MinSize, or the power of two to which it was raised so that MaxEvents suffices. Totals are
	// shown when one of them has changed by that much since it was last shown, and at its peak.
	MinSize uint64
	// Until is the last time of which allocations and totals are shown; To, unless MaxEvents ended it. Known after Visit.
	Until       uint64
	Shown, Left heap.Count // allocations in the range, by whether they are shown; known after Visit
	Lifetimes   []Lifetime // by layer, the largest first
	// Phases are those of all threads in the range, by process, thread and time: the first TimelineOptions.Phases. MorePhases reports
	// whether there are others. Allocations without a stack are in none.
	Phases     []PhaseSpan
	MorePhases bool

	trace   *Trace
	options TimelineOptions
	moments []uint64 // ascending
	peaks   map[accountID]uint64
}

// Totals is what one process has of one device at one time, bytes; event.Unknown when not known.
type Totals struct {
	PID    uint32
	Device event.Device
	// Allocated and Reserved are the caching allocator's own totals. Where it says none, as PyTorch up to 1.9, Allocated is
	// what was seen to be allocated.
	Allocated, Reserved uint64
	// Used is the segments of the caching allocator and all other device memory that was seen to be obtained.
	Used uint64
}

// TimelineVisitor's methods are called with what a timeline shows, in order of the times, which are CLOCK_BOOTTIME
// nanoseconds and within the range. Only Moment may be nil; what is pointed to is valid during the call only.
type TimelineVisitor struct {
	Totals func(time uint64, t *Totals)
	// Alloc: b was allocated by e. Torch blocks, device memory (segments among it) and pinned host memory are reported.
	Alloc       func(time uint64, b *heap.Block, e *event.Event)
	OutOfMemory func(time uint64, e *event.Event)
	// Moment is the live set after the last event up to a time.
	Moment func(time uint64, v *View)
}

// ErrEmptyRange says that a range of time has nothing of the trace in it.
var ErrEmptyRange = errors.New("the recording has nothing in this range of time")

// Timeline chooses what is shown; the trace is replayed once for that. o may be nil.
func (t *Trace) Timeline(o *TimelineOptions) (*Timeline, error) {
	tl := &Timeline{trace: t, From: t.First(), To: t.Last(), peaks: map[accountID]uint64{}}
	if o != nil {
		tl.options = *o
		tl.From = max(tl.From, o.From)
		if o.To != 0 {
			tl.To = min(tl.To, o.To)
		}
	}
	if tl.From > tl.To {
		return nil, ErrEmptyRange
	}
	tl.setMoments()
	sizes := sizeCounts{}
	largest := newLargest(tl.options.Lifetimes)
	seePhase, spans := t.phaseSpans(tl.From, tl.To, tl.options.Phases)
	now := uint64(0)
	v := &Visitor{
		Before: func(e *event.Event, h *heap.Heap) {
			if tl.options.Phases > 0 {
				seePhase(e)
			}
			if now = max(now, e.Time); now >= tl.From {
				largest.begin(h)
			}
		},
		Allocated: func(b *heap.Block, e *event.Event) {
			if e != nil && tl.in(now) {
				sizes.add(b)
			}
			if now <= tl.To {
				largest.allocated(b, e)
			}
		},
		Freed: func(b *heap.Block, e *event.Event, time uint64) {
			if e != nil && tl.in(now) {
				sizes.add(b)
			}
			if now <= tl.To {
				largest.freed(b, time)
			}
		},
		Moved: func(_, to *heap.Block) { largest.moved(to) },
		Done:  largest.begin,
	}
	if err := t.Replay(v); err != nil {
		return nil, err
	}
	tl.MinSize = sizes.raise(tl.options.MinSize, tl.options.MaxEvents)
	tl.Lifetimes = largest.list()
	tl.Phases, tl.MorePhases = spans()
	return tl, nil
}

func (tl *Timeline) in(time uint64) bool { return time >= tl.From && time <= tl.To }

// setMoments takes the times at which the live set is shown: even ones, the peaks and the end.
func (tl *Timeline) setMoments() {
	n := uint64(max(0, tl.options.Moments))
	for i := range n {
		high, low := bits.Mul64(tl.To-tl.From, i)
		part, _ := bits.Div64(high, low, n)
		tl.moments = append(tl.moments, tl.From+part)
	}
	accounts := tl.trace.end.Snapshot.Accounts
	for i := range accounts {
		a := &accounts[i]
		tl.peaks[accountID{a.PID, a.Device}] = a.PeakTime
		if tl.in(a.PeakTime) {
			tl.moments = append(tl.moments, a.PeakTime)
		}
	}
	tl.moments = append(tl.moments, tl.To)
	slices.Sort(tl.moments)
	tl.moments = slices.Compact(tl.moments)
}

// sizeCounts is how many allocations and frees there were, by the number of bits of their size.
type sizeCounts [65]uint64

// add counts one: it is shown itself, or changes a total; an allocation does both.
func (c *sizeCounts) add(b *heap.Block) {
	if b.Size != event.Unknown {
		c[bits.Len64(b.Size)]++
	}
}

// raise is the least size, or a power of two beyond it, of which not more than the limit are left.
func (c *sizeCounts) raise(size, limit uint64) uint64 {
	if limit == 0 {
		return size
	}
	shown, largest := uint64(0), 0
	for k := len(c) - 1; k >= 0; k-- {
		// An allocation comes with a change of a total, and so does its free.
		shown += c[k] + c[k]/2
		if c[k] > 0 && largest == 0 {
			largest = k
		}
		if shown > limit && k > 0 {
			// All of this class do not fit. The largest class is shown as far as it does.
			return max(size, uint64(1)<<min(k, max(0, largest-1), 62))
		}
	}
	return size
}

// Visit replays what the timeline shows. Until, Shown and Left are those of this visit.
func (tl *Timeline) Visit(v *TimelineVisitor) error {
	tl.Until, tl.Shown, tl.Left = tl.To, heap.Count{}, heap.Count{}
	p := &playback{TimelineVisitor: v, tl: tl, now: tl.From, moments: tl.moments, shown: map[accountID]Totals{}}
	return tl.trace.Replay(&Visitor{
		Before:    p.before,
		Event:     p.event,
		Allocated: p.allocated,
		Moved:     p.moved,
		Done:      p.done,
	})
}

// playback is one visit.
type playback struct {
	*TimelineVisitor
	tl *Timeline
	// clock is the latest time of an event so far: those of two threads can come in another order than that of their times.
	clock   uint64
	now     uint64 // clock within the range
	begun   bool
	stopped bool // MaxEvents was reached
	events  uint64
	moments []uint64
	shown   map[accountID]Totals
	touched []accountID // of which memory moved to another device
}

func (p *playback) before(e *event.Event, h *heap.Heap) {
	p.clock = max(p.clock, e.Time)
	if !p.begun && p.clock >= p.tl.From {
		p.begin(h)
	}
	for len(p.moments) > 0 && p.moments[0] < p.clock {
		p.moment(h)
	}
	p.now = min(max(p.now, p.clock), p.tl.To)
}

// begin shows what there is at the beginning of the range.
func (p *playback) begin(h *heap.Heap) {
	p.begun = true
	totals := h.Totals()
	for i := range totals.Accounts {
		p.totals(h, accountID{totals.Accounts[i].PID, totals.Accounts[i].Device}, p.tl.From, true)
	}
	for i := range totals.Drivers {
		p.totals(h, accountID{totals.Drivers[i].PID, totals.Drivers[i].Device}, p.tl.From, true)
	}
}

func (p *playback) moment(h *heap.Heap) {
	p.now = max(p.now, p.moments[0])
	if p.Moment != nil {
		p.Moment(p.moments[0], p.tl.trace.view(h.Snapshot()))
	}
	p.moments = p.moments[1:]
}

func (p *playback) done(h *heap.Heap) {
	for len(p.moments) > 0 {
		p.moment(h)
	}
}

func (p *playback) event(e *event.Event, h *heap.Heap) {
	id := accountID{e.PID, e.Device}
	if !p.tl.in(p.clock) {
		p.touched = p.touched[:0]
		return
	}
	if e.Kind == event.KindOutOfMemory {
		p.OutOfMemory(p.now, e)
	}
	peak := e.Time == p.tl.peaks[id]
	p.totals(h, id, p.now, peak)
	for _, id := range p.touched {
		p.totals(h, id, p.now, false)
	}
	p.touched = p.touched[:0]
}

// accountID names what a process has on a device.
type accountID struct {
	pid    uint32
	device event.Device
}

// shownLayers are those whose allocations are memory.
var shownLayers = map[event.Layer]bool{event.LayerAllocator: true, event.LayerDevice: true, event.LayerHost: true}

func (p *playback) allocated(b *heap.Block, e *event.Event) {
	if e == nil || e.Kind != event.KindAlloc || !shownLayers[b.Layer] || !p.tl.in(p.clock) {
		return
	}
	count := &p.tl.Left
	if b.Size >= p.tl.MinSize && p.spend() { // what has no size is shown
		count = &p.tl.Shown
		p.Alloc(p.now, b, e)
	}
	count.Objects++
	if b.Size == event.Unknown {
		count.Unsized++
		return
	}
	count.Bytes += b.Size
}

func (p *playback) moved(from, to *heap.Block) {
	if from.Device != to.Device {
		p.touched = append(p.touched, accountID{from.PID, from.Device})
	}
}

// spend takes one event from the limit; false: there is none left.
func (p *playback) spend() bool {
	if limit := p.tl.options.MaxEvents; limit != 0 && p.events >= limit {
		if !p.stopped {
			p.stopped, p.tl.Until = true, p.now
		}
		return false
	}
	p.events++
	return true
}

// totals shows what a device has now, when that is worth it; always: when it is other than what was shown.
func (p *playback) totals(h *heap.Heap, id accountID, time uint64, always bool) {
	t := TotalsOf(h, id.pid, id.device)
	last, known := p.shown[id]
	if t == last || t == (Totals{PID: id.pid, Device: id.device, Allocated: event.Unknown, Reserved: event.Unknown, Used: event.Unknown}) {
		return
	}
	by := max(distance(t.Allocated, last.Allocated), distance(t.Reserved, last.Reserved), distance(t.Used, last.Used))
	if known && !always && by < p.tl.MinSize || !p.spend() {
		return
	}
	p.shown[id] = t
	p.Totals(time, &t)
}

// distance is how far two sizes are apart; from what is not known, as far as can be.
func distance(x, y uint64) uint64 {
	if x == event.Unknown != (y == event.Unknown) {
		return event.Unknown
	}
	return max(x, y) - min(x, y)
}

// TotalsOf is what a process has of a device now.
func TotalsOf(h *heap.Heap, pid uint32, device event.Device) Totals {
	t := Totals{PID: pid, Device: device, Allocated: event.Unknown, Reserved: event.Unknown, Used: event.Unknown}
	a, torch := h.Account(pid, device)
	if torch {
		t.Allocated, t.Reserved = a.Allocated, a.Reserved
		if t.Allocated == event.Unknown {
			t.Allocated = a.Live.Bytes
		}
	}
	d, driver := h.Driver(pid, event.LayerDevice, device)
	if driver {
		t.Used = d.Live.Bytes
	}
	// Segments from before the first event are known only to the allocator's total.
	if torch && a.Reserved != event.Unknown && a.SegmentBytes == event.Unknown {
		t.Used = a.Reserved
		if driver {
			t.Used += d.Live.Bytes - d.Segments.Bytes
		}
	}
	return t
}
