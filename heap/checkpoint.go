// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
	"github.com/gputrace/gputrace/heap/internal/codec"
)

// The same methods write and read a checkpoint: see package codec. Objects, mappings and segments that have several
// pointers to them are in tables at the beginning. check validates what was read.

// stateVersion is the version of State's format: the order and meaning of its fields. It is written to files.
const (
	stateVersion        = 4
	stateWithoutRegions = 3
	stateWithoutAsleep  = 2
	stateWithoutLosses  = 1
)

// ErrState means that the bytes are not a state of this version.
var ErrState = errors.New("not the state of a live set")

// State encodes everything that the heap knows, except what Watch logs. A heap that SetState filled from it continues
// exactly as this one. A checkpoint contains these bytes.
func (h *Heap) State() []byte {
	s := &checkpoint{Codec: &codec.Codec{}, heap: h}
	s.collect()
	s.all()
	return s.Data
}

// SetState fills an empty heap from the bytes that State returned. On an error, which wraps ErrState, the heap must not be used.
func (h *Heap) SetState(data []byte) error {
	s := &checkpoint{Codec: &codec.Codec{Data: data, Load: true}, heap: h}
	s.all()
	if s.Err == nil && len(s.Data) > 0 {
		s.Fail("%d bytes too many", len(s.Data))
	}
	if s.Err != nil {
		return fmt.Errorf("%w: %w", ErrState, s.Err)
	}
	h.notifyAll()
	return nil
}

// Stacks lists the stacks of all sites, each once.
func (h *Heap) Stacks() []event.StackID {
	seen := map[event.StackID]struct{}{0: {}}
	var out []event.StackID
	for i := range h.sites.list {
		id := h.sites.list[i].key.stack
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			out = append(out, id)
		}
	}
	return out
}

// checkpoint writes or reads a heap.
type checkpoint struct {
	*codec.Codec
	heap       *Heap
	hasRegions bool // of this version
	objects    codec.Table[object]
	mappings   codec.Table[mapping]
	roots      codec.Table[pieceSegment]
}

func (s *checkpoint) object(o **object, needed bool)     { codec.Pointer(s.Codec, o, &s.objects, needed) }
func (s *checkpoint) mapping(m **mapping)                { codec.Pointer(s.Codec, m, &s.mappings, true) }
func (s *checkpoint) root(r **pieceSegment, needed bool) { codec.Pointer(s.Codec, r, &s.roots, needed) }

// collect fills the tables before writing.
func (s *checkpoint) collect() {
	for _, p := range s.heap.sortedProcesses() {
		for o := range p.objects {
			s.addObject(o)
		}
		for _, m := range p.mappings {
			s.addMapping(m)
		}
		for _, l := range p.unclaimed {
			s.addObject(l.object)
		}
	}
	for i := range s.heap.undo.ring {
		u := &s.heap.undo.ring[i]
		s.addObject(u.object)
		for _, m := range u.mappings {
			s.addMapping(m)
		}
		for _, c := range u.ranges {
			s.roots.Add(c.segmentOf)
		}
		if u.resetEffect != nil {
			for _, o := range slices.Concat(u.freed, u.pending, u.uncertain) {
				s.addObject(o)
			}
		}
	}
}

func (s *checkpoint) addObject(o *object) {
	if s.objects.Add(o) {
		s.roots.Add(o.segmentOf)
	}
}

func (s *checkpoint) addMapping(m *mapping) {
	if s.mappings.Add(m) {
		s.addObject(m.behind)
	}
}

func (s *checkpoint) all() {
	h := s.heap
	version := h.stateVersion()
	if codec.Number(s.Codec, &version); version < stateWithoutLosses || version > stateVersion {
		s.Fail("version %d, want %d to %d", version, stateWithoutLosses, stateVersion)
	}
	s.Numbers(&h.events, &h.ignored, &h.failures, &h.first, &h.now, &h.gaps.Total)
	codec.List(s.Codec, &h.gaps.Kept, func(g *Gap) { s.Fixed(g) })
	s.sites(&h.sites)
	codec.List(s.Codec, &s.roots.All, s.rootFields)
	codec.List(s.Codec, &s.objects.All, s.objectFields)
	codec.List(s.Codec, &s.mappings.All, s.mappingFields)
	codec.Map(s.Codec, h.processes, s.process)
	codec.Map(s.Codec, h.drivers, s.driver)
	codec.Map(s.Codec, h.accounts, s.account)
	s.moments()
	s.undoLog(&h.undo)
	if version >= stateWithoutAsleep {
		codec.Number(s.Codec, &h.lossIntervalCount)
		codec.List(s.Codec, &h.lossIntervals, func(x *LossInterval) { s.Fixed(x) })
	}
	if s.hasRegions = version >= stateVersion; version >= stateWithoutRegions {
		codec.Map(s.Codec, h.processes, s.asleep)
	}
	s.check()
}

// stateVersion returns the oldest version that has all of a heap, so that older versions of gputrace can read the state.
func (h *Heap) stateVersion() (version int) {
	version = stateWithoutLosses
	if h.lossIntervalCount > 0 {
		version = stateWithoutAsleep
	}
	for _, p := range h.processes {
		switch {
		case len(p.regions) > 0:
			return stateVersion
		case len(p.asleep)+len(p.slept) > 0:
			version = stateWithoutRegions
		}
	}
	return version
}

// asleep writes or reads the segments of a process that have no memory, and the regions of its allocators without totals.
func (s *checkpoint) asleep(pid *uint32, v **process) {
	codec.Number(s.Codec, pid)
	if s.Load {
		*v = s.heap.process(*pid)
	}
	(*v).asleep.Code(s.Codec)
	(*v).slept.Code(s.Codec)
	if s.hasRegions {
		(*v).regions.Code(s.Codec)
	}
}

// moments restores which sites changed since their peak. It runs after the accounts, which own the peaks.
func (s *checkpoint) moments() {
	if !s.Load {
		return
	}
	for i := range s.heap.sites.list {
		if c := &s.heap.sites.list[i]; c.changed {
			c.peakState = s.heap.peakStateOf(&c.key)
			c.peakState.changedSites = append(c.peakState.changedSites, uint32(i))
		}
	}
}

// check rejects references that point outside a table.
func (s *checkpoint) check() {
	if !s.Load || s.Err != nil {
		return
	}
	sites := uint32(len(s.heap.sites.list))
	for _, o := range s.objects.All {
		if o.site >= sites || o.sort > event.ObjectExternal {
			s.Fail("an object of site %d of %d, sort %d", o.site, sites, o.sort)
			return
		}
	}
	for _, r := range s.roots.All {
		if r.site >= sites {
			s.Fail("a segment of site %d of %d", r.site, sites)
			return
		}
	}
	if n := len(s.heap.lossIntervals); n > maxLossIntervals || uint64(n) > s.heap.lossIntervalCount {
		s.Fail("%d of %d loss intervals", n, s.heap.lossIntervalCount)
	}
	if g := &s.heap.gaps; len(g.Kept) > maxGaps || g.Total < uint64(len(g.Kept)) || len(g.Kept) < maxGaps && g.Total > uint64(len(g.Kept)) {
		s.Fail("%d of %d gaps", len(g.Kept), g.Total)
	}
}

func (s *checkpoint) sites(t *sites) {
	codec.List(s.Codec, &t.calls, s.Text)
	codec.List(s.Codec, &t.list, func(c *siteCounts) {
		k := &c.key
		codec.Number(s.Codec, &k.stack)
		codec.Number(s.Codec, &k.pid)
		codec.Number(s.Codec, &k.call)
		s.Fixed(&k.device)
		codec.Number(s.Codec, &k.layer)
		s.Flags(&k.segment)
		codec.Number(s.Codec, &k.origin)
		s.Flags(&c.changed)
		counts := []*Count{&c.Alloc, &c.Inuse, &c.atPeak}
		if !c.changed {
			counts = counts[:2]
		}
		for _, n := range counts {
			s.Numbers(&n.Objects, &n.Bytes, &n.Unsized, &n.Requested, &n.RequestedObjects)
		}
	})
	if !s.Load {
		return
	}
	if len(t.calls) == 0 || len(t.calls) > maxCalls || t.calls[0] != "" {
		s.Fail("%d calls, of which the first has a name", len(t.calls))
		return
	}
	for i := range t.calls {
		t.call[t.calls[i]] = uint16(i)
	}
	for i := range t.list {
		k := t.list[i].key
		if _, fresh := t.index.Number(uint64(k.stack), &k); !fresh || int(k.call) >= len(t.calls) {
			s.Fail("site %d is there twice, or has call %d of %d", i, k.call, len(t.calls))
		}
	}
}

func (s *checkpoint) rootFields(r **pieceSegment) {
	if s.Load {
		*r = &pieceSegment{}
	}
	codec.Number(s.Codec, &(*r).site)
	s.Flags(&(*r).expandable)
}

func (s *checkpoint) objectFields(v **object) {
	if s.Load {
		*v = &object{}
	}
	o := *v
	s.Numbers(&o.addr, &o.size, &o.time, &o.touched, &o.listed, &o.context)
	codec.Number(s.Codec, &o.site)
	for _, n := range []*int32{&o.refs, &o.maps, &o.uncertainResets} {
		s.Fixed(n)
	}
	codec.Number(s.Codec, &o.sort)
	s.Flags(&o.segment, &o.live, &o.ordered, &o.primary, &o.dead, &o.uncertain)
	s.root(&o.segmentOf, false)
}

func (s *checkpoint) mappingFields(v **mapping) {
	if s.Load {
		*v = &mapping{}
	}
	m := *v
	s.Numbers(&m.addr, &m.size)
	codec.Number(s.Codec, &m.unmaps)
	s.Flags(&m.device)
	s.object(&m.behind, false)
}

func (s *checkpoint) process(pid *uint32, v **process) {
	codec.Number(s.Codec, pid)
	if s.Load {
		*v = s.heap.process(*pid)
	}
	p := *v
	codec.Map(s.Codec, p.spaces, s.space)
	codec.List(s.Codec, &p.mappings, s.mapping)
	orphans := slices.Collect(maps.Keys(p.orphans))
	codec.List(s.Codec, &orphans, func(o **object) { s.object(o, true) })
	codec.List(s.Codec, &p.pieces, func(o **object) { s.object(o, true) })
	codec.List(s.Codec, &p.unclaimed, func(l *span) {
		s.Numbers(&l.start, &l.end)
		s.object(&l.object, true)
	})
	codec.Map(s.Codec, p.contexts, func(k *uint64, d *event.Device) {
		codec.Number(s.Codec, k)
		s.Fixed(d)
	})
	codec.Map(s.Codec, p.primaries, func(k *int8, c *uint64) {
		s.Fixed(k)
		codec.Number(s.Codec, c)
	})
	codec.Map(s.Codec, p.devices, func(k *int8, _ *struct{}) { s.Fixed(k) })
	s.Flags(&p.torch, &p.fromStart)
	codec.Number(s.Codec, &p.lastDriverEvent)
	codec.Map(s.Codec, p.blocksObserved, func(d *event.Device, n *uint64) {
		s.Fixed(d)
		codec.Number(s.Codec, n)
	})
	codec.Map(s.Codec, p.segmentsObserved, func(d *event.Device, yes *bool) {
		s.Fixed(d)
		s.Flags(yes)
	})
	if !s.Load || s.Err != nil {
		return
	}
	for _, o := range orphans {
		p.orphans[o] = struct{}{}
	}
	for _, o := range p.pieces {
		if o.segmentOf == nil {
			s.Fail("a piece of no segment")
		}
	}
}

func (s *checkpoint) space(k *spaceKey, v *map[uint64]*object) {
	codec.Number(s.Codec, &k.layer)
	codec.Number(s.Codec, &k.sort)
	objects := slices.Collect(maps.Values(*v))
	codec.List(s.Codec, &objects, func(o **object) { s.object(o, true) })
	if s.Load && s.Err == nil {
		*v = map[uint64]*object{}
		for _, o := range objects {
			(*v)[o.addr] = o
		}
	}
}

func (s *checkpoint) driver(k *driverKey, v **DriverAccount) {
	if s.Load {
		*v = &DriverAccount{}
	}
	s.Fixed(*v)
	*k = driverKey{(*v).PID, (*v).Layer, (*v).Device}
}

func (s *checkpoint) account(k *accountKey, v **account) {
	if s.Load {
		*v = &account{live: blocks.NewIndex()}
	}
	a := *v
	s.Fixed(&a.Account)
	s.Flags(&a.hasTotal, &a.complete)
	s.Numbers(&a.lastEvent, &a.lastGap)
	s.blocks(a)
	if s.Load {
		*k = accountKey{a.PID, a.Device}
		a.process = s.heap.process(a.PID)
		a.process.accounts = append(a.process.accounts, a)
		a.driver = s.heap.drivers[driverKey{a.PID, event.LayerDevice, a.Device.Physical()}]
	}
}

// blocks writes or reads the live blocks of a caching allocator, by address.
func (s *checkpoint) blocks(a *account) {
	held := &s.heap.blocks
	numbers := slices.SortedFunc(a.live.All(), func(i, j uint32) int { return cmp.Compare(held.At(i).Addr, held.At(j).Addr) })
	last := uint64(0)
	codec.List(s.Codec, &numbers, func(i *uint32) {
		var b blocks.Block
		if !s.Load {
			b = *held.At(*i)
		}
		distance := b.Addr - last
		s.Numbers(&distance, &b.Size, &b.Requested, &b.Stream, &b.Time)
		codec.Number(s.Codec, &b.Site)
		if s.Load {
			if b.Addr = last + distance; b.Site >= uint32(len(s.heap.sites.list)) {
				s.Fail("a block of site %d of %d", b.Site, len(s.heap.sites.list))
				return
			}
			if _, ok := a.live.Find(b.Addr, held); ok {
				s.Fail("two blocks at %#x", b.Addr)
				return
			}
			a.live.Add(b.Addr, held.Add(b))
		}
		last = b.Addr
	})
}

func (s *checkpoint) undoLog(l *undoLog) {
	codec.Number(s.Codec, &l.next)
	codec.Number(s.Codec, &l.pushes)
	codec.List(s.Codec, &l.ring, s.undo)
	if l.last == nil {
		l.last = map[uint32]int{}
	}
	codec.Map(s.Codec, l.last, func(tid *uint32, at *int) {
		codec.Number(s.Codec, tid)
		if codec.Number(s.Codec, at); *at < 0 || *at >= len(l.ring) {
			s.Fail("free %d of %d", *at, len(l.ring))
		}
	})
	if n := len(l.ring); s.Load && (n > maxUndo || l.next < 0 || l.next > 0 && l.next >= n) {
		s.Fail("free %d of %d is next", l.next, n)
	}
}

func (s *checkpoint) undo(u *undoRecord) {
	codec.Number(s.Codec, &u.tid)
	known := u.process != nil
	if s.Flags(&known); !known {
		return
	}
	s.Numbers(&u.addr, &u.time)
	codec.Number(s.Codec, &u.pid)
	codec.Number(s.Codec, &u.layer)
	codec.Number(s.Codec, &u.sort)
	codec.Number(s.Codec, &u.kind)
	s.Flags(&u.unknown, &u.finished)
	var key driverKey
	if !s.Load {
		key = driverKey{u.account.PID, u.account.Layer, u.account.Device}
	}
	codec.Number(s.Codec, &key.pid)
	codec.Number(s.Codec, &key.layer)
	s.Fixed(&key.device)
	s.object(&u.object, false)
	codec.List(s.Codec, &u.mappings, s.mapping)
	codec.List(s.Codec, &u.ranges, func(c *pieceRange) {
		s.root(&c.segmentOf, true)
		s.Numbers(&c.lo, &c.hi)
	})
	reset := u.resetEffect != nil
	if s.Flags(&reset); s.Load {
		u.process, u.account = s.heap.process(u.pid), s.heap.driver(key.pid, key.layer, key.device)
		if reset {
			u.resetEffect = &resetEffect{}
		}
	}
	if !reset {
		return
	}
	for _, l := range []*[]*object{&u.freed, &u.pending, &u.uncertain} {
		codec.List(s.Codec, l, func(o **object) { s.object(o, true) })
	}
	codec.Number(s.Codec, &u.context)
	s.Fixed(&u.resetEffect.device)
}
