// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/event"
)

// The codec of a checkpoint is one set of methods for both directions, so that what is read cannot differ from what is written:
// each takes a pointer to a field. Writing appends the field; reading (codec.load) sets it. check bounds what was read.
// Objects that several others point to are in tables first; a pointer is then a number in its table, plus one.

// stateVersion is that of State's format: what a field means or where it is. It is written to files.
const (
	stateVersion       = 2
	stateWithoutLosses = 1
)

// ErrState: bytes that are no state of this version.
var ErrState = errors.New("not the state of a live set")

// State is everything that the heap knows, but for what Watch remembers: a heap that SetState gave it goes on as this one.
// It is the content of a checkpoint.
func (h *Heap) State() []byte {
	s := &codec{heap: h, objectAt: map[*object]int{}, mappingAt: map[*mapping]int{}, rootAt: map[*pieceSegment]int{}}
	s.collect()
	s.all()
	return s.data
}

// SetState makes an empty heap what another one was. The error wraps ErrState; the heap is then of no use.
func (h *Heap) SetState(data []byte) error {
	s := &codec{heap: h, data: data, load: true}
	s.all()
	if s.err == nil && len(s.data) > 0 {
		s.fail("%d bytes too many", len(s.data))
	}
	if s.err != nil {
		return fmt.Errorf("%w: %w", ErrState, s.err)
	}
	h.notifyAll()
	return nil
}

// Stacks lists the stacks that the sites name, each once.
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

// codec writes or, with load, reads a heap: each method does the same in both directions, so that they cannot differ. What
// has several pointers to it is in a table, and pointers are numbers in it, plus one; 0: nil.
type codec struct {
	heap *Heap
	data []byte
	load bool
	err  error

	objects  []*object
	mappings []*mapping
	roots    []*pieceSegment

	objectAt  map[*object]int
	mappingAt map[*mapping]int
	rootAt    map[*pieceSegment]int
}

func (s *codec) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
	s.data = nil
}

type integer interface {
	~uint8 | ~uint16 | ~uint32 | ~uint64 | ~int8 | ~int32 | ~int64 | ~int
}

// number is a varint.
func number[T integer](s *codec, v *T) {
	if !s.load {
		s.data = binary.AppendUvarint(s.data, uint64(*v))
		return
	}
	got, n := binary.Uvarint(s.data)
	*v = T(got)
	if n <= 0 || uint64(*v) != got {
		s.fail("a number ends early or is too large")
		*v = 0
		return
	}
	s.data = s.data[n:]
}

func (s *codec) flags(list ...*bool) {
	for _, v := range list {
		n := uint8(0)
		if *v {
			n = 1
		}
		number(s, &n)
		*v = n != 0
	}
}

func (s *codec) numbers(list ...*uint64) {
	for _, v := range list {
		number(s, v)
	}
}

// fixed is a struct of exported fields of fixed size.
func (s *codec) fixed(v any) {
	var err error
	if !s.load {
		s.data, err = binary.Append(s.data, binary.LittleEndian, v)
	} else {
		var n int
		if n, err = binary.Decode(s.data, binary.LittleEndian, v); err == nil {
			s.data = s.data[n:]
		}
	}
	if err != nil {
		s.fail("%T: %w", v, err)
	}
}

// list is a length and elements, each of at least one byte.
func list[T any](s *codec, v *[]T, each func(*T)) {
	n := len(*v)
	number(s, &n)
	if s.load {
		if n < 0 || n > len(s.data) {
			s.fail("%d elements in %d bytes", n, len(s.data))
			return
		}
		*v = make([]T, n)
	}
	for i := 0; i < n && s.err == nil; i++ {
		each(&(*v)[i])
	}
}

// table is a map, in any order.
func table[K comparable, V any](s *codec, m map[K]V, each func(*K, *V)) {
	keys := slices.Collect(maps.Keys(m))
	list(s, &keys, func(k *K) {
		v := m[*k]
		if each(k, &v); s.err == nil {
			m[*k] = v
		}
	})
}

// pointer is a number in a table.
func pointer[T any](s *codec, v **T, all []*T, at map[*T]int, needed bool) {
	n := 0
	if !s.load && *v != nil {
		n = at[*v] + 1
	}
	number(s, &n)
	if !s.load {
		return
	}
	if n < 0 || n > len(all) || needed && n == 0 {
		s.fail("number %d of %d", n, len(all))
		return
	}
	if n > 0 {
		*v = all[n-1]
	}
}

func (s *codec) object(o **object, needed bool)     { pointer(s, o, s.objects, s.objectAt, needed) }
func (s *codec) mapping(m **mapping)                { pointer(s, m, s.mappings, s.mappingAt, true) }
func (s *codec) root(r **pieceSegment, needed bool) { pointer(s, r, s.roots, s.rootAt, needed) }

// collect fills the tables.
func (s *codec) collect() {
	for _, p := range s.heap.processes {
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
			s.addRoot(c.segmentOf)
		}
		if u.resetEffect != nil {
			for _, o := range slices.Concat(u.freed, u.pending, u.uncertain) {
				s.addObject(o)
			}
		}
	}
}

func (s *codec) addObject(o *object) {
	if o == nil {
		return
	}
	if _, ok := s.objectAt[o]; !ok {
		s.objectAt[o] = len(s.objects)
		s.objects = append(s.objects, o)
		s.addRoot(o.segmentOf)
	}
}

func (s *codec) addMapping(m *mapping) {
	if _, ok := s.mappingAt[m]; !ok {
		s.mappingAt[m] = len(s.mappings)
		s.mappings = append(s.mappings, m)
		s.addObject(m.behind)
	}
}

func (s *codec) addRoot(r *pieceSegment) {
	if r == nil {
		return
	}
	if _, ok := s.rootAt[r]; !ok {
		s.rootAt[r] = len(s.roots)
		s.roots = append(s.roots, r)
	}
}

func (s *codec) all() {
	h := s.heap
	version := stateVersion
	if h.lossIntervalCount == 0 { // programs of before can read it
		version = stateWithoutLosses
	}
	if number(s, &version); version != stateVersion && version != stateWithoutLosses {
		s.fail("version %d, want %d or %d", version, stateVersion, stateWithoutLosses)
	}
	s.numbers(&h.events, &h.ignored, &h.failures, &h.first, &h.now, &h.gaps.total)
	list(s, &h.gaps.ring, func(g *Gap) { s.fixed(g) })
	s.sites(&h.sites)
	list(s, &s.roots, s.rootFields)
	list(s, &s.objects, s.objectFields)
	list(s, &s.mappings, s.mappingFields)
	table(s, h.processes, s.process)
	table(s, h.drivers, s.driver)
	table(s, h.accounts, s.account)
	s.moments()
	s.undoLog(&h.undo)
	if version != stateWithoutLosses {
		number(s, &h.lossIntervalCount)
		list(s, &h.lossIntervals, func(x *LossInterval) { s.fixed(x) })
	}
	s.check()
}

// moments enters the sites that changed since their peak, once the accounts that have the peaks are there.
func (s *codec) moments() {
	if !s.load {
		return
	}
	for i := range s.heap.sites.list {
		if c := &s.heap.sites.list[i]; c.changed {
			c.peakState = s.heap.peakStateOf(&c.key)
			c.peakState.changedSites = append(c.peakState.changedSites, uint32(i))
		}
	}
}

// check refuses what would lead out of a table.
func (s *codec) check() {
	if !s.load || s.err != nil {
		return
	}
	sites := uint32(len(s.heap.sites.list))
	for _, o := range s.objects {
		if o.site >= sites || o.sort > event.ObjectExternal {
			s.fail("an object of site %d of %d, sort %d", o.site, sites, o.sort)
			return
		}
	}
	for _, r := range s.roots {
		if r.site >= sites {
			s.fail("a segment of site %d of %d", r.site, sites)
			return
		}
	}
	if n := len(s.heap.lossIntervals); n > maxLossIntervals || uint64(n) > s.heap.lossIntervalCount {
		s.fail("%d of %d loss intervals", n, s.heap.lossIntervalCount)
	}
	if g := &s.heap.gaps; len(g.ring) > maxGaps || g.total < uint64(len(g.ring)) || len(g.ring) < maxGaps && g.total > uint64(len(g.ring)) {
		s.fail("%d of %d gaps", len(g.ring), g.total)
	}
}

func (s *codec) sites(t *sites) {
	list(s, &t.calls, s.text)
	list(s, &t.list, func(c *siteCounts) {
		k := &c.key
		number(s, &k.stack)
		number(s, &k.pid)
		number(s, &k.call)
		s.fixed(&k.device)
		number(s, &k.layer)
		s.flags(&k.segment)
		number(s, &k.origin)
		s.flags(&c.changed)
		counts := []*Count{&c.Alloc, &c.Inuse, &c.atPeak}
		if !c.changed {
			counts = counts[:2]
		}
		for _, n := range counts {
			s.numbers(&n.Objects, &n.Bytes, &n.Unsized, &n.Requested, &n.RequestedObjects)
		}
	})
	if !s.load {
		return
	}
	if len(t.calls) == 0 || len(t.calls) > maxCalls || t.calls[0] != "" {
		s.fail("%d calls, of which the first has a name", len(t.calls))
		return
	}
	for i := range t.calls {
		t.call[t.calls[i]] = uint16(i)
	}
	for i := range t.list {
		if k := t.list[i].key; int(k.call) < len(t.calls) {
			t.index[k] = uint32(i)
		} else {
			s.fail("call %d of %d", k.call, len(t.calls))
		}
	}
}

func (s *codec) text(v *string) {
	n := len(*v)
	number(s, &n)
	if !s.load {
		s.data = append(s.data, *v...)
		return
	}
	if n < 0 || n > len(s.data) {
		s.fail("a text of %d bytes in %d", n, len(s.data))
		return
	}
	*v, s.data = string(s.data[:n]), s.data[n:]
}

func (s *codec) rootFields(r **pieceSegment) {
	if s.load {
		*r = &pieceSegment{}
	}
	number(s, &(*r).site)
	s.flags(&(*r).expandable)
}

func (s *codec) objectFields(v **object) {
	if s.load {
		*v = &object{}
	}
	o := *v
	s.numbers(&o.addr, &o.size, &o.time, &o.touched, &o.listed, &o.context)
	number(s, &o.site)
	for _, n := range []*int32{&o.refs, &o.maps, &o.uncertainResets} {
		s.fixed(n)
	}
	number(s, &o.sort)
	s.flags(&o.segment, &o.live, &o.ordered, &o.primary, &o.dead, &o.uncertain)
	s.root(&o.segmentOf, false)
}

func (s *codec) mappingFields(v **mapping) {
	if s.load {
		*v = &mapping{}
	}
	m := *v
	s.numbers(&m.addr, &m.size)
	number(s, &m.unmaps)
	s.flags(&m.device)
	s.object(&m.behind, false)
}

func (s *codec) process(pid *uint32, v **process) {
	number(s, pid)
	if s.load {
		*v = s.heap.process(*pid)
	}
	p := *v
	table(s, p.spaces, s.space)
	list(s, &p.mappings, s.mapping)
	orphans := slices.Collect(maps.Keys(p.orphans))
	list(s, &orphans, func(o **object) { s.object(o, true) })
	list(s, &p.pieces, func(o **object) { s.object(o, true) })
	list(s, &p.unclaimed, func(l *span) {
		s.numbers(&l.start, &l.end)
		s.object(&l.object, true)
	})
	table(s, p.contexts, func(k *uint64, d *event.Device) {
		number(s, k)
		s.fixed(d)
	})
	table(s, p.primaries, func(k *int8, c *uint64) {
		s.fixed(k)
		number(s, c)
	})
	table(s, p.devices, func(k *int8, _ *struct{}) { s.fixed(k) })
	s.flags(&p.torch, &p.fromStart)
	number(s, &p.lastDriverEvent)
	for _, m := range []map[event.Device]bool{p.blocksObserved, p.segmentsObserved} {
		table(s, m, func(d *event.Device, yes *bool) {
			s.fixed(d)
			s.flags(yes)
		})
	}
	if !s.load || s.err != nil {
		return
	}
	for _, o := range orphans {
		p.orphans[o] = struct{}{}
	}
	for _, o := range p.pieces {
		if o.segmentOf == nil {
			s.fail("a piece of no segment")
		}
	}
}

func (s *codec) space(k *spaceKey, v *map[uint64]*object) {
	number(s, &k.layer)
	number(s, &k.sort)
	objects := slices.Collect(maps.Values(*v))
	list(s, &objects, func(o **object) { s.object(o, true) })
	if s.load && s.err == nil {
		*v = map[uint64]*object{}
		for _, o := range objects {
			(*v)[o.addr] = o
		}
	}
}

func (s *codec) driver(k *driverKey, v **DriverAccount) {
	if s.load {
		*v = &DriverAccount{}
	}
	s.fixed(*v)
	*k = driverKey{(*v).PID, (*v).Layer, (*v).Device}
}

func (s *codec) account(k *accountKey, v **account) {
	if s.load {
		*v = &account{live: newBlockIndex()}
	}
	a := *v
	s.fixed(&a.Account)
	s.flags(&a.hasTotal, &a.complete)
	s.numbers(&a.lastEvent, &a.lastGap)
	s.blocks(a)
	if s.load {
		*k = accountKey{a.PID, a.Device}
		a.process = s.heap.process(a.PID)
		a.process.accounts = append(a.process.accounts, a)
		a.driver = s.heap.drivers[driverKey{a.PID, event.LayerDevice, a.Device}]
	}
}

// blocks is the live blocks of a caching allocator, by address.
func (s *codec) blocks(a *account) {
	held := &s.heap.blocks
	numbers := slices.SortedFunc(a.live.all(), func(i, j uint32) int { return cmp.Compare(held.blocks[i].addr, held.blocks[j].addr) })
	last := uint64(0)
	list(s, &numbers, func(i *uint32) {
		var b block
		if !s.load {
			b = held.blocks[*i]
		}
		distance := b.addr - last
		s.numbers(&distance, &b.size, &b.requested, &b.stream, &b.time)
		number(s, &b.site)
		if s.load {
			if b.addr = last + distance; b.site >= uint32(len(s.heap.sites.list)) {
				s.fail("a block of site %d of %d", b.site, len(s.heap.sites.list))
				return
			}
			if _, ok := a.live.find(b.addr, held); ok {
				s.fail("two blocks at %#x", b.addr)
				return
			}
			a.live.add(b.addr, held.add(b))
		}
		last = b.addr
	})
}

func (s *codec) undoLog(l *undoLog) {
	number(s, &l.next)
	number(s, &l.pushes)
	list(s, &l.ring, s.undo)
	if l.last == nil {
		l.last = map[uint32]int{}
	}
	table(s, l.last, func(tid *uint32, at *int) {
		number(s, tid)
		if number(s, at); *at < 0 || *at >= len(l.ring) {
			s.fail("free %d of %d", *at, len(l.ring))
		}
	})
	if n := len(l.ring); s.load && (n > maxUndo || l.next < 0 || l.next > 0 && l.next >= n) {
		s.fail("free %d of %d is next", l.next, n)
	}
}

func (s *codec) undo(u *undoRecord) {
	number(s, &u.tid)
	known := u.process != nil
	if s.flags(&known); !known {
		return
	}
	s.numbers(&u.addr, &u.time)
	number(s, &u.pid)
	number(s, &u.layer)
	number(s, &u.sort)
	number(s, &u.kind)
	s.flags(&u.unknown, &u.finished)
	var key driverKey
	if !s.load {
		key = driverKey{u.account.PID, u.account.Layer, u.account.Device}
	}
	number(s, &key.pid)
	number(s, &key.layer)
	s.fixed(&key.device)
	s.object(&u.object, false)
	list(s, &u.mappings, s.mapping)
	list(s, &u.ranges, func(c *pieceRange) {
		s.root(&c.segmentOf, true)
		s.numbers(&c.lo, &c.hi)
	})
	reset := u.resetEffect != nil
	if s.flags(&reset); s.load {
		u.process, u.account = s.heap.process(u.pid), s.heap.driver(key.pid, key.layer, key.device)
		if reset {
			u.resetEffect = &resetEffect{}
		}
	}
	if !reset {
		return
	}
	for _, l := range []*[]*object{&u.freed, &u.pending, &u.uncertain} {
		list(s, l, func(o **object) { s.object(o, true) })
	}
	number(s, &u.context)
	s.fixed(&u.resetEffect.device)
}
