// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"cmp"
	"math"
	"math/bits"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/samples"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/heap/values"
	"github.com/gputrace/gputrace/internal/index"
	"github.com/gputrace/gputrace/internal/sorts"
)

// fewestStretches is where a model stops to give up moments.
const fewestStretches = 16

// lifetimes goes through a trace for what was in use between which moments.
type lifetimes struct {
	trace   *view.Trace
	model   *Model
	options Options
	segment segmentRule
	tree    *stackTree
	purpose *view.Purposes
	before  map[beforeKey]lifetimeCount // of blocks of before the first event that are in use: what is known of their holders

	number  uint64 // events so far
	at      int    // the moment to come
	parts   map[partKey]int
	groups  index.Index[Group]
	bases   index.Index[baseKey]
	base    []uint32     // groups of bases
	freedAs []freedGroup // of groups: those in which their blocks were counted last when they were freed
	open    values.PerBlock[openLifetime]
	closed  map[heap.BlockKey]openLifetime // of the driver's memory, since the moment before
	counts  map[lifetimeKey]lifetimeCount
	allowed int // counts
	places  *placer
	phases  phases.Spans
}

// maxBeforeFor is of how many holders the memory from before the first event is kept apart, of each part.
const maxBeforeFor = 256

// openLifetime is a block of which the end is not counted. base is its group while its category is not known.
type openLifetime struct {
	group, base uint32
	alloc       uint16
	torch       bool   // it is a caching allocator's
	addr        uint64 // or handle
	size        uint64 // bytes
	requested   uint64 // bytes, of those in use at the end; else, and where it is not known, event.Unknown
}

// baseKey is what the group of a block is found by, while its category is not known.
type baseKey struct {
	pid     uint32
	device  event.Device
	layer   event.Layer
	origin  heap.Origin
	class   uint8
	segment bool
	again   bool
	tid     uint32
	stack   event.StackID
}

// freedGroup is the group of the blocks of a base that were freed and turned out to be for something.
type freedGroup struct {
	category phases.Category // empty: none was asked for
	group    uint32
}

type lifetimeKey struct {
	group       uint32
	alloc, free uint16
}

type lifetimeCount struct{ blocks, bytes uint64 }

// beforeKey is blocks of before the first event whose holder is known.
type beforeKey struct {
	part     int
	holder   string
	category phases.Category
}

func newLifetimes(t *view.Trace, b *Model, o Options) *lifetimes {
	l := &lifetimes{
		trace: t, model: b, options: o, segment: newSegmentRule(t), tree: newStackTree(t, o.Nodes), purpose: t.Purposes(),
		before: map[beforeKey]lifetimeCount{}, parts: map[partKey]int{},
		closed: map[heap.BlockKey]openLifetime{},
		counts: map[lifetimeKey]lifetimeCount{}, allowed: 2 * o.Lifetimes, places: newPlacer(o.Placed),
	}
	for i := range b.Parts {
		p := &b.Parts[i]
		l.parts[partKey{p.PID, p.Device}] = i
		n := len(b.Moments)
		p.Before, p.Known, p.Lost = make([]uint64, n), make([]uint64, n), make([]int64, n)
		p.Allocated, p.Reserved, p.Driver = make([]uint64, n), make([]uint64, n), make([]uint64, n)
	}
	return l
}

// see passes the moment that the events and marks so far come to.
func (l *lifetimes) see(e *event.Event, h *heap.Heap) {
	l.purpose.Before(e)
	if l.at < len(l.model.Moments)-1 && l.model.Moments[l.at].Event == l.number {
		l.sample(h)
		l.at++
		clear(l.closed)
	}
}

func (l *lifetimes) event(_ *event.Event, _ *heap.Heap) { l.number++ }

func (l *lifetimes) done(h *heap.Heap) {
	l.at = len(l.model.Moments) - 1
	l.sample(h)
	newer := l.newer(h)
	for b := range h.Blocks() {
		if o := l.open.At(&b); o != nil {
			category, held := l.purpose.InUse(&b)
			holder := held.Holder
			if _, read := l.trace.Holder(&b); !read && holder == "" && b.Layer == event.LayerAllocator {
				if holder = newer[l.lineOf(o.base)]; holder != "" {
					l.model.Inferred += b.Size
				}
			}
			o.group = l.known(o.base, category, cmp.Or(holder, view.NoHolder))
			o.requested = b.Requested
		}
	}
}

// heldLine is blocks of one line and size class, of one part, and of segments or not. A line can keep small blocks and replace large ones.
type heldLine struct {
	part    int
	own     int32
	segment bool
	class   uint8
}

func (l *lifetimes) lineOf(group uint32) heldLine {
	g := &l.model.Groups[group]
	return heldLine{g.Part, g.Own, g.Segment, g.Class}
}

// newer is what holds the blocks of a line that were allocated after holders were read: what held most of those that were read. Lines of
// which no one thing held most are left out.
func (l *lifetimes) newer(h *heap.Heap) map[heldLine]string {
	type holding struct {
		line   heldLine
		holder string
	}
	sums, parts := map[heldLine]uint64{}, map[holding]uint64{}
	for b := range h.Blocks() {
		held, read := l.trace.Holder(&b)
		o := l.open.At(&b)
		if o == nil || !read || b.Layer != event.LayerAllocator {
			continue
		}
		line := l.lineOf(o.base)
		sums[line] += b.Size
		parts[holding{line, held.Holder}] += b.Size
	}
	out := map[heldLine]string{}
	for k, bytes := range parts {
		if k.holder != "" && k.holder != view.NoHolder && bytes > sums[k.line]-sums[k.line]/mostOf {
			out[k.line] = k.holder
		}
	}
	return out
}

// mostOf: a line is described by a property of its blocks if fewer than 1/mostOf of them lack it.
const mostOf = 4

// known is the number of a group of which category and holder are known.
func (l *lifetimes) known(base uint32, c phases.Category, holder string) uint32 {
	g := l.model.Groups[base]
	g.Category, g.Holder = c, holder
	return l.number32(g)
}

// freedGroup is known of blocks that were freed: most of a base are for the same.
func (l *lifetimes) freedGroup(base uint32, c phases.Category) uint32 {
	for int(base) >= len(l.freedAs) {
		l.freedAs = append(l.freedAs, freedGroup{})
	}
	if at := l.freedAs[base]; at.category == c {
		return at.group
	}
	at := freedGroup{c, l.known(base, c, view.HolderFreed)}
	l.freedAs[base] = at
	return at.group
}

// sample records the totals at a moment.
func (l *lifetimes) sample(h *heap.Heap) {
	for i := range l.model.Parts {
		p := &l.model.Parts[i]
		p.Before[l.at], p.Allocated[l.at], p.Reserved[l.at] = event.Unknown, event.Unknown, event.Unknown
		a, ok := h.Account(p.PID, p.Device)
		switch {
		case ok:
			p.Before[l.at], p.Known[l.at], p.Lost[l.at] = a.Before, a.BeforeBlocks.Objects, a.Lost
			p.Allocated[l.at], p.Reserved[l.at] = a.Allocated, a.Reserved
		case p.Torch: // what its first event will tell of
			p.Before[l.at], p.Allocated[l.at] = l.baseline(p), l.baseline(p)
		}
		p.Driver[l.at] = view.TotalsOf(h, p.PID, p.Device).Used
		for k := range p.BeforeFor {
			b := &p.BeforeFor[k]
			c := l.before[beforeKey{i, b.Holder, b.Category}]
			b.Blocks[l.at], b.Bytes[l.at] = c.blocks, c.bytes
		}
		l.places.sample(i, l.at, h.Segments(p.PID, p.Device))
	}
}

// countBefore counts a block of before the first event, in use or no longer. What is not known of it is in Part.Before alone.
func (l *lifetimes) countBefore(b *heap.Block, sign int64) {
	held, ok := l.trace.Holder(b)
	if !ok || b.Size == event.Unknown {
		return
	}
	k := beforeKey{l.parts[partKey{b.PID, b.Device}], held.Holder, cmp.Or(held.Category, phases.NoCategory)}
	p := &l.model.Parts[k.part]
	if _, ok := l.before[k]; !ok && len(p.BeforeFor) >= maxBeforeFor {
		k.holder = view.NoHolder // and is once more than others, at most once for each category
	}
	c, ok := l.before[k]
	if !ok {
		n := len(l.model.Moments)
		p.BeforeFor = append(p.BeforeFor, BeforeFor{k.holder, k.category, make([]uint64, n), make([]uint64, n)})
	}
	c.blocks, c.bytes = c.blocks+uint64(sign), c.bytes+uint64(sign*int64(b.Size))
	l.before[k] = c
}

func (l *lifetimes) baseline(p *Part) uint64 {
	for i := range l.trace.End().Snapshot.Accounts {
		if a := &l.trace.End().Snapshot.Accounts[i]; a.PID == p.PID && a.Device == p.Device {
			return a.Baseline
		}
	}
	return event.Unknown
}

func (l *lifetimes) allocated(b *heap.Block, e *event.Event) {
	if skipped(b) {
		l.countBefore(b, 1)
		l.places.before(l, b)
		return
	}
	l.purpose.Allocated(b, e)
	if e != nil && b.Layer == event.LayerAllocator && l.phases.Len() <= maxPhaseSpans {
		l.phases.See(e.Time, e.TID, l.trace.Classifier().Shown(b.Stack))
	}
	again := e == nil && l.number > 0 || e != nil && e.Kind != event.KindAlloc
	if again && len(l.closed) > 0 {
		if was, ok := l.closed[b.Key()]; ok { // it was not given back after all, and no moment thought so
			counted := was
			was.group = was.base
			l.open.Set(b, was)
			l.count(counted, l.at, -1) // last: it can renumber the moments
			return
		}
	}
	tid := uint32(0)
	if e != nil {
		tid = e.TID
	}
	group := l.group(b, tid, again)
	l.open.Set(b, l.opened(b, group, b.Size))
}

// skipped says whether a block is in the allocator's totals already: those from before the first event are in Part.Before.
func skipped(b *heap.Block) bool {
	return b.Layer == event.LayerAllocator && b.Origin == heap.OriginBefore
}

func (l *lifetimes) freed(b *heap.Block, e *event.Event, time uint64) {
	if skipped(b) {
		l.countBefore(b, -1)
		l.places.beforeFreed(l.model, b, l.at)
		return
	}
	was := l.open.At(b)
	if was == nil {
		return
	}
	o := *was
	l.open.Delete(b)
	category := l.purpose.Freed(b, e)
	if holder := l.trace.HeldAtExit(b, time); holder != "" {
		o.group = l.known(o.base, category, holder)
	} else {
		o.group = l.freedGroup(o.base, category)
	}
	l.places.freed(l.model, b, &o, l.at)
	if b.Layer != event.LayerAllocator {
		l.closed[b.Key()] = o
	}
	l.count(o, l.at, 1) // last: it can renumber the moments
}

// moved counts a block elsewhere. A stack that shows a segment has done so before.
func (l *lifetimes) moved(from, to *heap.Block) {
	l.purpose.Moved(from, to)
	at := l.open.At(from)
	if at == nil || l.segment.holds(from) == l.segment.holds(to) && from.Device == to.Device {
		return
	}
	o := *at
	was := l.model.Groups[o.group]
	l.open.Delete(from)
	if int(o.alloc) != l.at {
		l.count(o, l.at, 1)
		was.Again = true
	}
	was.Part, was.Segment = l.parts[partKey{to.PID, to.Device}], l.segment.holds(to)
	group := l.number32(was)
	l.open.Set(to, l.opened(to, group, o.size))
}

// opened is the beginning of a block's lifetime.
func (l *lifetimes) opened(b *heap.Block, group uint32, size uint64) openLifetime {
	return openLifetime{group, group, uint16(l.at), b.Layer == event.LayerAllocator, b.Addr, size, event.Unknown}
}

func (l *lifetimes) count(o openLifetime, died int, sign int64) {
	key := lifetimeKey{o.group, o.alloc, uint16(died)}
	c := l.counts[key]
	c.blocks += uint64(sign)
	if o.size != event.Unknown {
		c.bytes += uint64(sign * int64(o.size))
	}
	l.counts[key] = c
	if c.blocks == 0 {
		delete(l.counts, key)
	}
	if len(l.counts) > l.allowed && !l.coarsen() {
		l.allowed *= 2
	}
}

func (l *lifetimes) group(b *heap.Block, tid uint32, again bool) uint32 {
	key := baseKey{b.PID, b.Device, b.Layer, b.Origin, sizeClass(b.Size), l.segment.holds(b), again, tid, b.Stack}
	i, fresh := l.bases.Number(uint64(b.Stack)+uint64(key.class), &key)
	if fresh {
		node, own := l.tree.site(b)
		l.base = append(l.base, l.number32(Group{
			Part: l.parts[partKey{b.PID, b.Device}], Layer: b.Layer, Segment: key.segment, Origin: b.Origin, Node: node, Own: own, TID: tid,
			Phase: l.trace.Classifier().Shown(b.Stack), Category: phases.NoCategory, Class: key.class, Again: again,
			Aside: b.Device.Allocator().Sampled() && samples.Aside(&l.trace.End().Snapshot.Totals),
		}))
	}
	return l.base[i]
}

// number32 is the group's number.
func (l *lifetimes) number32(g Group) uint32 {
	i, fresh := l.groups.Number(uint64(g.Node)<<32^uint64(g.TID)^uint64(len(g.Category))<<16^uint64(g.Class)<<24, &g)
	if fresh {
		l.model.Groups = append(l.model.Groups, g)
	}
	return i
}

func sizeClass(size uint64) uint8 {
	if size == event.Unknown {
		return 0
	}
	return uint8(bits.Len64(max(1, size)-1)) + 1
}

// coarsen drops about half of the moments. It reports false when there are too few.
func (l *lifetimes) coarsen() bool {
	b := l.model
	kept, ok := halve(b.Moments)
	if !ok {
		return false
	}
	to, n := make([]uint16, len(b.Moments)+1), 0
	for i := range b.Moments {
		to[i] = uint16(n)
		if kept[i] {
			n++
		}
	}
	to[len(b.Moments)] = uint16(n)
	counts := make(map[lifetimeKey]lifetimeCount, len(l.counts))
	for k, c := range l.counts {
		k.alloc, k.free = to[k.alloc], to[k.free]
		had := counts[k]
		counts[k] = lifetimeCount{had.blocks + c.blocks, had.bytes + c.bytes}
	}
	l.counts = counts
	for o := range l.open.All() {
		o.alloc = to[o.alloc]
	}
	for k, o := range l.closed {
		o.alloc = to[o.alloc]
		l.closed[k] = o
	}
	l.at = int(to[l.at])
	l.places.coarsen(to)
	b.keep(kept)
	for i := range b.Parts {
		if p := &b.Parts[i]; p.PeakMoment >= 0 {
			p.PeakMoment = int(to[p.PeakMoment])
		}
	}
	for i := range b.OOMs {
		r := &b.OOMs[i]
		if r.Moment >= 0 && !kept[r.Moment] {
			r.Moment = -1
		} else if r.Moment >= 0 {
			r.Moment = int(to[r.Moment])
		}
	}
	b.Exact = false
	return true
}

// halve joins every two stretches of time, and says which moments are kept: of each stretch the highest and the lowest.
func halve(moments []Moment) ([]bool, bool) {
	kept := make([]bool, len(moments))
	high, low, stretches := -1, -1, 0
	for i := range moments {
		m := &moments[i]
		if i == 0 || moments[i-1].stretch != m.stretch/2 {
			high, low = -1, -1
			stretches++
		}
		m.stretch /= 2
		kept[i] = m.Kind&pinned != 0
		if kept[i] {
			continue
		}
		if high < 0 || m.total >= moments[high].total {
			unkeep(moments, kept, high, low)
			high = i
		}
		if low < 0 || m.total <= moments[low].total {
			unkeep(moments, kept, low, high)
			low = i
		}
		kept[i] = high == i || low == i
	}
	return kept, stretches >= fewestStretches
}

// unkeep drops a moment that is not the highest or lowest any more, unless it is the other of the two.
func unkeep(moments []Moment, kept []bool, i, other int) {
	if i >= 0 && i != other && moments[i].Kind&pinned == 0 {
		kept[i] = false
	}
}

// keep leaves out the other moments.
func (b *Model) keep(kept []bool) {
	b.Moments = filter(b.Moments, kept)
	for i := range b.Parts {
		p := &b.Parts[i]
		for _, list := range []*[]uint64{&p.Before, &p.Known, &p.Allocated, &p.Reserved, &p.Driver} {
			*list = filter(*list, kept)
		}
		p.Lost = filter(p.Lost, kept)
		for k := range p.BeforeFor {
			p.BeforeFor[k].Blocks, p.BeforeFor[k].Bytes = filter(p.BeforeFor[k].Blocks, kept), filter(p.BeforeFor[k].Bytes, kept)
		}
	}
}

func filter[T any](list []T, kept []bool) []T {
	out := list[:0]
	for i, v := range list {
		if kept[i] {
			out = append(out, v)
		}
	}
	return out
}

// finish makes the lifetimes of the counts.
func (l *lifetimes) finish() {
	for len(l.counts) > l.options.Lifetimes && l.coarsen() {
	}
	b := l.model
	l.allowed = math.MaxInt // no moment is given up any more
	for o := range l.open.All() {
		l.count(*o, len(b.Moments), 1)
	}
	b.Places = l.places.finish(b, &l.open)
	if l.phases.Len() <= maxPhaseSpans {
		b.Phases = l.phases.Take(maxPhaseSpans)
	}
	for k, c := range l.counts {
		b.Lifetimes = append(b.Lifetimes, Lifetimes{k.group, k.alloc, k.free, c.blocks, c.bytes})
	}
	sorts.Func(b.Lifetimes, func(x, y Lifetimes) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Alloc, y.Alloc), cmp.Compare(x.Free, y.Free))
	})
	for i := range b.OOMs {
		r := &b.OOMs[i]
		r.Node, r.Own = l.tree.site(&heap.Block{PID: b.Parts[r.Part].PID, Stack: r.stack})
	}
	l.tree.fill(b)
}
