// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/heap/values"
	"github.com/gputrace/gputrace/internal/index"
	"github.com/gputrace/gputrace/internal/sorts"
)

// ErrPeakBefore: a selection at the peak needs the blocks that were live then, but a bounded recording begins later, or the peak was
// before the first event.
var ErrPeakBefore = errors.New("the blocks of the peak are not in the recording")

// Selection says what of a trace is looked at. The zero value is the end, with everything.
type Selection struct {
	// Moment is whose blocks are in use, with its Time. Of the peak each device has its own, as in View.AtPeak.
	Moment moment.Moment
	// From and To make it a range: what was allocated after From and up to To is selected, and is in use when it is live at To.
	// CLOCK_BOOTTIME nanoseconds; To 0: no range. Moment means nothing then.
	From, To uint64
	MinSize  uint64 // of blocks, bytes; smaller ones are left out. 0: none is
	// Detail tells the parts of sites apart by what their memory is for and by holder also. Steps does it with the step of the allocation
	// too, of what is in use; AllSteps of what was freed too, of which there can be many parts.
	Detail, Steps, AllSteps bool
}

// AtEnd reports whether it is all of the trace at its end.
func (s *Selection) AtEnd() bool {
	return s.To == 0 && s.MinSize == 0 && s.Moment.Kind <= moment.End
}

// AtPeak reports whether it is the peak of each device.
func (s *Selection) AtPeak() bool { return s.To == 0 && s.Moment.Kind == moment.Peak }

// Until is the time up to which events count, CLOCK_BOOTTIME nanoseconds; 0: to the end.
func (s *Selection) Until() uint64 {
	switch {
	case s.To != 0:
		return s.To
	case s.Moment.IsTime():
		return s.Moment.Time
	}
	return 0
}

// SitePart is the allocations of a site that have more in common.
type SitePart struct {
	TID    uint32 // thread that allocated; 0: not known
	Stream uint64 // raw handle; event.Unknown when not observed
	Size   uint64 // bytes, rounded up to a power of two; event.Unknown where a size is not known, or what has none in common
	// Age is the lower bound of the age of the blocks in use, of Ages, nanoseconds; event.Unknown for what is no longer in use.
	Age   uint64
	Alloc heap.Count
	Inuse heap.Count

	// The rest is set with Selection.Detail only.
	Category phases.Category // empty: not asked for
	Step     int             // in which it was allocated; 0: before the first, not known, or not asked for
	Holder   string          // at the end of the trace, as in HeldSite.Name; empty: it was freed by then
}

// Ages are the bounds between which blocks are counted as equally old, nanoseconds.
var Ages = []uint64{0, 1e6, 10e6, 100e6, 1e9, 10e9, 60e9, 600e9, 3600e9}

// Select is the view of a selection, with its sites in parts. Without range and least size it is that of End, Peak or At.
func (t *Trace) Select(s Selection) (*View, error) {
	p := t.Picker(s)
	var err error
	if until := s.Until(); s.Detail || until == 0 {
		err = t.Replay(p.Visitor())
	} else {
		_, err = t.ReplayWhile(func(e *event.Event) bool { return e.Time <= until }, p.Visitor())
	}
	if err != nil {
		return nil, err
	}
	return p.View()
}

// Picker is Select for a replay that others share, of a selection that needs all of the trace: with Detail, or without a time.
func (t *Trace) Picker(s Selection) *Picker {
	return &Picker{
		trace: t, s: s, threads: map[heap.BlockKey]uint32{}, inuse: map[aged]heap.Count{},
	}
}

// Visitor is what the replay calls.
func (p *Picker) Visitor() *Visitor {
	if p.s.Detail {
		return p.detail()
	}
	return &Visitor{Allocated: p.allocated, Freed: p.freed, Moved: p.moved, Event: p.look(), Done: p.pass}
}

// View is the selection, when all was replayed.
func (p *Picker) View() (*View, error) {
	p.addDated()
	s, v := p.s, p.trace.end
	switch {
	case s.Until() != 0:
		v = p.trace.view(p.then)
	case s.AtPeak():
		v = v.AtPeak()
	}
	out := *v
	out.detailed = s.Detail
	out.Sites = append([]Site(nil), v.Sites...)
	if s.To == 0 && s.MinSize == 0 {
		p.split(&out)
		return &out, nil
	}
	if s.AtPeak() && !p.peaks.Passed() {
		return nil, fmt.Errorf("%w: leave the least size out, or name another moment", ErrPeakBefore)
	}
	p.reduce(&out)
	return &out, nil
}

// sitePartKey is what the allocations of a part have in common, but for their age.
type sitePartKey struct {
	site   siteID
	tid    uint32
	stream uint64
	size   uint64
	detail detail
}

// siteID names a site.
type siteID struct {
	layer   event.Layer
	device  event.Device
	pid     uint32
	stack   event.StackID
	call    string
	segment bool
	origin  heap.Origin
}

func idOf(s *heap.Site) siteID {
	return siteID{s.Layer, s.Device, s.PID, s.Stack, s.Call, s.Segment, s.Origin}
}

// picked is a live block.
type picked struct {
	part            int // not with Selection.Detail
	size, requested uint64
	counted         bool // its allocation is counted in its part
	site            siteID
	tid             uint32
	time            uint64  // of its allocation
	chosen          *chosen // with Selection.Detail: what it was at the moment; nil: that is still to come
}

// aged is a part of which the blocks are equally old.
type aged struct {
	part int
	age  uint64
}

// Picker goes through a trace and adds up parts.
type Picker struct {
	trace *Trace
	s     Selection
	then  *heap.Snapshot // of the moment, where that is a time

	live    values.PerBlock[picked]
	parts   []sitePartKey
	alloc   []heap.Count
	index   index.Index[sitePartKey]
	threads map[heap.BlockKey]uint32 // of driver memory, also when it is freed: that can fail
	inuse   map[aged]heap.Count      // at the moment
	peaks   Peaks
	endings // with Selection.Detail
}

// pass records what is live at the moment, which the replay has come to. Peaks are recorded as they are reached.
func (p *Picker) pass(h *heap.Heap) {
	until := p.s.Until()
	if !p.s.AtPeak() {
		p.capture(cmp.Or(until, h.Totals().Time), func(*siteID) bool { return true })
	}
	if until != 0 {
		p.then = h.Snapshot()
	}
}

// powerOfTwo is bytes rounded up to a power of two.
func powerOfTwo(bytes uint64) uint64 {
	if bytes == event.Unknown || bytes <= 1 || bytes > 1<<62 {
		return bytes
	}
	return 1 << bits.Len64(bytes-1)
}

// wanted reports whether a block is selected, whether or not it is live at the moment.
func (p *Picker) wanted(b *heap.Block) bool {
	if p.s.To != 0 && (b.Time <= p.s.From || b.Origin != heap.OriginEvent) {
		return false
	}
	return b.Size >= p.s.MinSize // event.Unknown is not small
}

func (p *Picker) allocated(b *heap.Block, e *event.Event) {
	if !p.wanted(b) {
		return
	}
	made := e != nil && e.Kind == event.KindAlloc && e.Time == b.Time
	tid := uint32(0)
	if made {
		tid = e.TID
	}
	if b.Layer != event.LayerAllocator {
		if made {
			p.threads[b.Key()] = tid
		}
		tid = p.threads[b.Key()]
	}
	at := picked{size: b.Size, requested: b.Requested, counted: made, site: idOf(blockSite(b)), tid: tid, time: b.Time}
	if !p.s.Detail {
		at.part = p.part(b, tid, detail{})
		if made {
			addTo(&p.alloc[at.part], b)
		}
	}
	p.live.Set(b, at)
}

func (p *Picker) freed(b *heap.Block, _ *event.Event, _ uint64) { p.live.Delete(b) }

func (p *Picker) moved(from, to *heap.Block) {
	was := p.live.At(from)
	if was == nil {
		return
	}
	old := *was
	old.site = idOf(blockSite(to))
	if !p.s.Detail {
		part := p.part(to, old.tid, detail{})
		if old.counted {
			takeFrom(&p.alloc[old.part], from)
			addTo(&p.alloc[part], from)
		}
		old.part = part
	}
	p.live.Set(to, old)
}

// part is the number of a block's part.
func (p *Picker) part(b *heap.Block, tid uint32, d detail) int {
	return p.partOf(sitePartKey{idOf(blockSite(b)), tid, b.Stream, powerOfTwo(b.Size), d})
}

func (p *Picker) partOf(key sitePartKey) int {
	n, fresh := p.index.Number(uint64(key.site.stack)^key.size^uint64(key.tid)<<32^uint64(len(key.detail.category))<<48, &key)
	i := int(n)
	if fresh {
		p.parts = append(p.parts, key)
		p.alloc = append(p.alloc, heap.Count{})
	}
	return i
}

func addTo(c *heap.Count, b *heap.Block) {
	*c = c.Plus(heap.CountOf(b.Size, b.Requested))
}

func takeFrom(c *heap.Count, b *heap.Block) {
	*c = c.Minus(heap.CountOf(b.Size, b.Requested))
}

// capture records the live set, of the sites that are asked for.
func (p *Picker) capture(now uint64, of func(*siteID) bool) {
	for b := range p.live.All() {
		if !of(&b.site) {
			continue
		}
		age := ageClass(b.time, now)
		if p.s.Detail {
			b.chosen = &chosen{age, *b}
			continue
		}
		at := aged{b.part, age}
		p.inuse[at] = p.inuse[at].Plus(heap.CountOf(b.size, b.requested))
	}
}

// ageClass is the least age of a block, of Ages; event.Unknown when it is not known when it was allocated.
func ageClass(born, now uint64) uint64 {
	if born == 0 {
		return event.Unknown
	}
	age := uint64(0)
	for _, a := range Ages {
		if now >= born && now-born >= a {
			age = a
		}
	}
	return age
}

// look records what is live on a device that is at its peak, after an event. nil: no peak is asked for.
func (p *Picker) look() func(e *event.Event, h *heap.Heap) {
	if !p.s.AtPeak() {
		return nil
	}
	p.peaks = NewPeaks(p.trace.end.Snapshot)
	return func(e *event.Event, h *heap.Heap) {
		for k := range p.peaks.Reached(h, e) {
			p.capture(e.Time, func(s *siteID) bool {
				return s.pid == k.PID && s.device == k.Device && (k.Layer == event.LayerAllocator || k.Layer == s.layer)
			})
		}
	}
}

// bySite is the parts of each site.
func (p *Picker) bySite() map[siteID][]SitePart {
	out := map[siteID][]SitePart{}
	part := func(i int, age uint64, alloc, inuse heap.Count) {
		k := &p.parts[i]
		out[k.site] = append(out[k.site], SitePart{
			TID: k.tid, Stream: k.stream, Size: k.size, Age: age, Alloc: alloc, Inuse: inuse,
			Category: k.detail.category, Step: k.detail.step, Holder: k.detail.holder,
		})
	}
	order := slices.Collect(maps.Keys(p.inuse))
	sorts.Func(order, func(x, y aged) int { return cmp.Or(cmp.Compare(x.part, y.part), cmp.Compare(x.age, y.age)) })
	for _, at := range order {
		c, alloc := p.inuse[at], heap.Count{}
		if p.parts[at.part].site.origin == heap.OriginEvent && p.alloc[at.part].Contains(c) {
			alloc = c
			p.alloc[at.part] = p.alloc[at.part].Minus(c)
		}
		part(at.part, at.age, alloc, c)
	}
	for i, c := range p.alloc {
		if c.Objects > 0 {
			part(i, event.Unknown, c, heap.Count{})
		}
	}
	for _, parts := range out {
		sortParts(parts)
	}
	return out
}
