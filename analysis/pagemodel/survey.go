// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// fewestPoints is how many points a curve has at least when there are many of them: about as many as a window has pixels.
const fewestPoints = 1500

// survey goes through a trace for its curves, and for the moments at which it is worth looking.
type survey struct {
	trace   *view.Trace
	options Options
	segment segmentRule

	events uint64 // in all
	first  uint64 // time of the first event that is in the input
	width  uint64 // of a stretch, nanoseconds
	number uint64 // events so far
	time   uint64
	total  uint64

	parts    []*surveyPart
	index    map[partKey]int
	last     *surveyPart // that was asked for
	all      Curve
	allPoint int64 // number of all's last point
	moments  []Moment
	ooms     []OOM
	oomCount uint64
	pins     []Moment // that were asked for
	asked    []uint64 // times that are still to come, in order
}

type surveyPart struct {
	Part
	now   [Quantities]uint64
	point int64  // number of the curve's last point
	other uint64 // device memory that is not the caching allocator's, bytes
	peak  uint64 // event of it
	found bool   // peak is known
}

func newSurvey(t *view.Trace, o Options) *survey {
	end := t.End().Snapshot
	s := &survey{trace: t, options: o, asked: slices.Sorted(slices.Values(o.Asked)), segment: newSegmentRule(t), events: end.Events,
		index: map[partKey]int{}, allPoint: -1}
	for i := range end.Accounts {
		s.part(end.Accounts[i].PID, end.Accounts[i].Device).Torch = true
	}
	for i := range end.Drivers {
		if d := &end.Drivers[i]; d.Layer == event.LayerDevice {
			s.part(d.PID, d.Device)
		}
	}
	return s
}

func (s *survey) part(pid uint32, device event.Device) *surveyPart {
	if p := s.last; p != nil && p.PID == pid && p.Device == device {
		return p
	}
	key := partKey{pid, device}
	i, ok := s.index[key]
	if !ok {
		i = len(s.parts)
		s.index[key] = i
		p := &surveyPart{Part: Part{PID: pid, Device: device, PeakMoment: -1}, point: -1}
		p.now[QuantityAllocated], p.now[QuantityReserved], p.now[QuantityDriver] = event.Unknown, event.Unknown, event.Unknown
		s.parts = append(s.parts, p)
	}
	s.last = s.parts[i]
	return s.last
}

// before records what there is before the first event.
func (s *survey) before(e *event.Event, h *heap.Heap) {
	for len(s.asked) > 0 && s.asked[0] < e.Time {
		if s.asked = s.asked[1:]; s.number > 0 { // before the first event is the first moment
			s.pins = append(s.pins, Moment{Event: s.number, Time: s.time, Kind: MomentAsked})
		}
	}
	if s.number > 0 {
		return
	}
	s.first, s.time = e.Time, e.Time
	s.width = (s.trace.Last()-min(s.first, s.trace.Last()))/uint64(max(1, s.options.Moments/2)) + 1
	for i := range s.trace.End().Snapshot.Accounts {
		end := &s.trace.End().Snapshot.Accounts[i]
		p := s.part(end.PID, end.Device)
		if a, ok := h.Account(end.PID, end.Device); ok {
			p.torch(a)
			p.Peak, p.PeakTime, p.found = a.Peak, a.PeakTime, a.Allocated == a.Peak
		} else if end.Baseline != event.Unknown {
			p.now[QuantityAllocated], p.Peak, p.found = end.Baseline, end.Baseline, true
		}
	}
	for _, p := range s.parts {
		if d, ok := h.Driver(p.PID, event.LayerDevice, p.Device); ok && !p.Torch {
			p.Peak, p.PeakTime, p.found = d.Peak, d.PeakTime, d.Live.Bytes == d.Peak
		}
		p.driver(h)
		s.update(p)
	}
	s.moments = append(s.moments, Moment{Time: e.Time, Kind: MomentStart})
}

// torch takes over the totals of the caching allocator.
func (p *surveyPart) torch(a *heap.Account) {
	p.now[QuantityAllocated], p.now[QuantityReserved] = a.Allocated, a.Reserved
	if a.Allocated == event.Unknown {
		p.now[QuantityAllocated] = a.Live.Bytes
	}
}

func (p *surveyPart) driver(h *heap.Heap) {
	p.now[QuantityDriver] = view.TotalsOf(h, p.PID, p.Device).Used
}

func (s *survey) event(e *event.Event, h *heap.Heap) {
	s.number++
	s.time = max(s.time, e.Time)
	if e.Kind == event.KindOutOfMemory {
		s.oom(e)
	}
	if e.Layer == event.LayerAllocator {
		s.torchEvent(e, h)
	} else {
		for _, p := range s.parts {
			p.driver(h)
			s.driverPeak(p, h)
			s.update(p)
		}
	}
	s.look()
}

func (s *survey) torchEvent(e *event.Event, h *heap.Heap) {
	a, ok := h.Account(e.PID, e.Device)
	if !ok { // the event was not believed
		return
	}
	p := s.part(e.PID, e.Device)
	p.torch(a)
	p.driver(h)
	if a.Peak != p.Peak || a.PeakTime != p.PeakTime {
		p.Peak, p.PeakTime, p.peak, p.found = a.Peak, a.PeakTime, s.number, true
		if p.now[QuantityAllocated] != a.Peak { // it was before this event, which showed it
			p.peak--
		}
	}
	s.update(p)
}

func (s *survey) driverPeak(p *surveyPart, h *heap.Heap) {
	if p.Torch {
		return
	}
	if d, ok := h.Driver(p.PID, event.LayerDevice, p.Device); ok && d.Peak != p.Peak {
		p.Peak, p.PeakTime, p.peak, p.found = d.Peak, d.PeakTime, s.number, true
	}
}

// update adds what a part is now to the curves.
func (s *survey) update(p *surveyPart) {
	s.total -= p.now[QuantityTotal]
	p.now[QuantityTotal] = p.other
	if p.now[QuantityAllocated] != event.Unknown {
		p.now[QuantityTotal] += p.now[QuantityAllocated]
	}
	s.total += p.now[QuantityTotal]
	number := s.pointNumber()
	p.Curve = p.Curve.add(s.time, &p.now, number != p.point)
	p.point = number
	all := p.now
	if len(s.parts) > 1 {
		for q := range all {
			all[q] = 0
			for _, p := range s.parts {
				all[q] = plusKnown(all[q], p.now[q])
			}
		}
	}
	s.all = s.all.add(s.time, &all, number != s.allPoint)
	s.allPoint = number
}

// plusKnown leaves out what is not known: of a device that is not used yet.
func plusKnown(x, y uint64) uint64 {
	if y == event.Unknown {
		return x
	}
	return x + y
}

// pointNumber is that of the point in which this event is.
func (s *survey) pointNumber() int64 {
	if s.events <= uint64(s.options.Points) {
		return int64(s.number)
	}
	points := s.options.Points
	if n := len(s.parts); n > 1 { // each has a curve of its own
		points = min(points, max(fewestPoints, 2*points/(n+1)))
	}
	return int64(float64(s.time-s.first) / float64(s.trace.Last()-s.first+1) * float64(points))
}

func (c Curve) add(time uint64, now *[Quantities]uint64, fresh bool) Curve {
	if fresh {
		return append(c, Point{time, *now, *now, *now})
	}
	p := &c[len(c)-1]
	p.Time, p.Last = time, *now
	for q, v := range now {
		p.Low[q] = min(p.Low[q], v)
		if v != event.Unknown && (p.High[q] == event.Unknown || v > p.High[q]) {
			p.High[q] = v
		}
	}
	return c
}

// look decides whether now is a moment.
func (s *survey) look() {
	m := Moment{Event: s.number, Time: s.time, stretch: int((s.time - s.first) / s.width), total: s.total}
	if s.events <= uint64(s.options.Moments) {
		m.Kind = MomentHigh
		s.moments = append(s.moments, m)
		return
	}
	s.moments = addExtremes(s.moments, m)
}

// addExtremes keeps the highest and the lowest of each stretch, as the last two of a list: the later of equal ones.
func addExtremes(list []Moment, m Moment) []Moment {
	high, low := -1, -1
	for i := max(0, len(list)-2); i < len(list); i++ {
		if list[i].Kind&pinned != 0 || list[i].stretch != m.stretch {
			continue
		}
		if list[i].Kind&MomentHigh != 0 {
			high = i
		}
		if list[i].Kind&MomentLow != 0 {
			low = i
		}
	}
	if high < 0 {
		m.Kind = MomentHigh | MomentLow
		return append(list, m)
	}
	if m.total >= list[high].total {
		m.Kind |= MomentHigh
		list[high].Kind &^= MomentHigh
	}
	if m.total <= list[low].total {
		m.Kind |= MomentLow
		list[low].Kind &^= MomentLow
	}
	if m.Kind == 0 {
		return list
	}
	tail := max(0, len(list)-2)
	kept := slices.DeleteFunc(list[tail:], func(m Moment) bool { return m.Kind == 0 })
	return append(list[:tail+len(kept)], m)
}

func (s *survey) oom(e *event.Event) {
	p := s.part(e.PID, e.Device)
	if p.Torch != (e.Layer == event.LayerAllocator) { // what the driver refuses its caching allocator is not yet the end
		return
	}
	s.oomCount++
	if len(s.ooms) < keptOOMs {
		s.ooms = append(s.ooms, OOM{
			Time: e.Time, Part: s.index[partKey{e.PID, e.Device}], Bytes: e.Size, TID: e.TID, Moment: -1, number: s.number, stack: e.Stack,
		})
	}
}

func (s *survey) allocated(b *heap.Block, _ *event.Event)       { s.addDriver(b, 1) }
func (s *survey) freed(b *heap.Block, _ *event.Event, _ uint64) { s.addDriver(b, -1) }

func (s *survey) moved(from, to *heap.Block) {
	s.addDriver(from, -1)
	s.addDriver(to, 1)
}

// addDriver adds up the device memory that is not the caching allocator's.
func (s *survey) addDriver(b *heap.Block, sign int64) {
	if b.Layer == event.LayerAllocator {
		return
	}
	p := s.part(b.PID, b.Device)
	if b.Layer != event.LayerDevice || b.Size == event.Unknown || s.segment.holds(b) {
		return
	}
	p.other += uint64(sign * int64(b.Size)) // a sign that wraps around takes away
}

// done records the end, which annotations may have changed.
func (s *survey) done(h *heap.Heap) {
	for _, p := range s.parts {
		if a, ok := h.Account(p.PID, p.Device); ok {
			p.torch(a)
		}
		p.driver(h)
		s.update(p)
	}
}

// model is what was found, without the lifetimes.
func (s *survey) model() *Model {
	b := &Model{
		First: s.first, Last: s.trace.Last(), Events: s.number, All: s.all, OOMs: s.ooms, OOMCount: s.oomCount,
		Exact: s.events <= uint64(s.options.Moments),
	}
	pins := append(s.pins, Moment{Event: s.number, Time: s.time, Kind: MomentEnd})
	for _, p := range s.parts {
		if p.found {
			pins = append(pins, Moment{Event: p.peak, Time: max(p.PeakTime, s.first), Kind: MomentPeak})
		}
	}
	for _, r := range s.ooms[:min(pinnedOOMs, len(s.ooms))] {
		pins = append(pins, Moment{Event: r.number, Time: r.Time, Kind: MomentOOM})
	}
	if len(s.moments) == 0 { // no event at all
		pins = append(pins, Moment{Kind: MomentStart})
	}
	b.Moments = mergeMoments(append(s.moments, pins...), s.first, max(1, s.width))
	s.sortParts(b)
	for i, p := range s.parts {
		if p.found {
			b.Parts[i].PeakMoment = momentOf(b.Moments, p.peak)
		}
	}
	for i := range b.OOMs {
		b.OOMs[i].Moment = momentOf(b.Moments, b.OOMs[i].number)
	}
	return b
}

// sortParts puts them in the order of PIDs and devices.
func (s *survey) sortParts(b *Model) {
	before := slices.Clone(s.parts)
	sorts.Func(s.parts, func(x, y *surveyPart) int {
		return cmp.Or(cmp.Compare(x.PID, y.PID), cmp.Compare(x.Device.Type, y.Device.Type), cmp.Compare(x.Device.Index, y.Device.Index))
	})
	for _, p := range s.parts {
		b.Parts = append(b.Parts, p.Part)
	}
	for i := range b.OOMs {
		b.OOMs[i].Part = slices.Index(s.parts, before[b.OOMs[i].Part])
	}
}

// mergeMoments sorts moments, and makes one of those at the same event.
func mergeMoments(list []Moment, first, width uint64) []Moment {
	slices.SortStableFunc(list, func(x, y Moment) int { return cmp.Compare(x.Event, y.Event) })
	out := list[:0]
	for _, m := range list {
		if n := len(out); n > 0 && out[n-1].Event == m.Event {
			out[n-1].Kind |= m.Kind
			continue
		}
		m.stretch = int((max(m.Time, first) - first) / width)
		out = append(out, m)
	}
	return out
}

// momentOf returns the index of the moment after n events; -1 if no moment is there.
func momentOf(list []Moment, event uint64) int {
	i, ok := slices.BinarySearchFunc(list, event, func(m Moment, e uint64) int { return cmp.Compare(m.Event, e) })
	if !ok {
		return -1
	}
	return i
}
