package heap

import (
	"slices"

	"github.com/gputrace/gputrace/event"
)

type spaceKey struct {
	pid   uint32
	layer event.Layer
}

// space is the device or host memory of a process, by address. Addresses are unique over all devices of a process
// (unified virtual addressing), and a free does not say its device.
type space struct {
	live map[uint64]uint32
	// loose are the device allocations in which no torch block has been seen, by address. There are few: every segment
	// leaves as soon as its first block is handed out.
	loose []span
}

type span struct {
	start, end uint64
	block      uint32
}

type driverKey struct {
	pid    uint32
	layer  event.Layer
	device event.Device
}

func (h *Heap) space(pid uint32, layer event.Layer) *space {
	key := spaceKey{pid, layer}
	s := h.spaces[key]
	if s == nil {
		s = &space{live: map[uint64]uint32{}}
		h.spaces[key] = s
	}
	return s
}

func (h *Heap) driver(pid uint32, layer event.Layer, device event.Device) *DriverAccount {
	key := driverKey{pid, layer, device}
	d := h.drivers[key]
	if d == nil {
		d = &DriverAccount{PID: pid, Layer: layer, Device: device}
		h.drivers[key] = d
	}
	return d
}

// owner is the account that a block was booked on; the event that frees it may name another device.
func (h *Heap) owner(b *block) *DriverAccount {
	k := &h.sites.list[b.site].key
	return h.driver(k.pid, k.layer, k.device)
}

func (h *Heap) applyDriver(e *event.Event) {
	switch e.Kind {
	case event.KindAlloc:
		h.allocDriver(e)
	case event.KindFree:
		h.freeDriver(e)
	case event.KindFreeFailed:
		h.restoreDriver(e)
	case event.KindOutOfMemory:
		h.driver(e.PID, e.Layer, e.Device).OOMs++
	}
}

func (h *Heap) allocDriver(e *event.Event) {
	s := h.space(e.PID, e.Layer)
	if i, ok := s.live[e.Addr]; ok { // its free did not come through
		h.owner(&h.blocks.blocks[i]).LostFrees++
		h.retireDriver(s, i)
		h.blocks.drop(i)
	}
	site := h.sites.at(e)
	i := h.blocks.add(block{e.Addr, e.Size, event.Unknown, e.Time, site})
	h.sites.alloc(site, e.Size, event.Unknown)
	d := h.driver(e.PID, e.Layer, e.Device)
	d.Allocs++
	h.enter(s, d, i)
	if d.Live.Bytes > d.Peak {
		d.Peak, d.PeakTime = d.Live.Bytes, e.Time
	}
}

// enter makes a block live.
func (h *Heap) enter(s *space, d *DriverAccount, i uint32) {
	b := &h.blocks.blocks[i]
	k := &h.sites.list[b.site].key
	s.live[b.addr] = i
	d.Live.add(b.size, b.requested)
	switch {
	case k.segment:
		d.Segments.add(b.size, b.requested)
	case k.layer == event.LayerDevice:
		at, _ := slices.BinarySearchFunc(s.loose, b.addr, compareSpan)
		s.loose = slices.Insert(s.loose, at, span{b.addr, b.addr + b.size, i})
	}
}

func compareSpan(s span, addr uint64) int {
	switch {
	case s.start < addr:
		return -1
	case s.start > addr:
		return 1
	}
	return 0
}

func (h *Heap) freeDriver(e *event.Event) {
	s := h.space(e.PID, e.Layer)
	i, ok := s.live[e.Addr]
	u := undo{pid: e.PID, tid: e.TID, layer: e.Layer, addr: e.Addr, device: e.Device, known: ok, block: i}
	if ok {
		h.owner(&h.blocks.blocks[i]).Frees++
		h.retireDriver(s, i)
	} else {
		d := h.driver(e.PID, e.Layer, e.Device)
		d.Frees++
		d.UnknownFrees++
	}
	if old := h.undo.push(u); old.known {
		h.blocks.drop(old.block)
	}
}

// retireDriver takes a block out of the live set; its record stays until it is dropped.
func (h *Heap) retireDriver(s *space, i uint32) {
	b := &h.blocks.blocks[i]
	site := &h.sites.list[b.site]
	d := h.owner(b)
	d.Live.remove(b.size, b.requested)
	site.Inuse.remove(b.size, b.requested)
	delete(s.live, b.addr)
	if site.key.segment {
		d.Segments.remove(b.size, b.requested)
		return
	}
	if at, ok := slices.BinarySearchFunc(s.loose, b.addr, compareSpan); ok {
		s.loose = slices.Delete(s.loose, at, at+1)
	}
}

// restoreDriver undoes the free that the same thread began last at this address.
func (h *Heap) restoreDriver(e *event.Event) {
	u, ok := h.undo.take(e)
	if !ok {
		h.failures++
		return
	}
	if !u.known {
		d := h.driver(u.pid, u.layer, u.device)
		d.Frees--
		d.UnknownFrees--
		d.FailedFrees++
		return
	}
	b := &h.blocks.blocks[u.block]
	d := h.owner(b)
	d.Frees--
	d.FailedFrees++
	s := h.space(e.PID, e.Layer)
	if _, reused := s.live[b.addr]; reused { // handed out again, so it was freed after all: by a call that was lost
		d.LostFrees++
		h.blocks.drop(u.block)
		return
	}
	h.sites.list[b.site].Inuse.add(b.size, b.requested)
	h.enter(s, d, u.block)
}

// markSegments books the device allocations that overlap [lo, hi), where a torch block lies, as segments of the caching
// allocator. One block can span several: an expandable segment is mapped piece by piece.
func (h *Heap) markSegments(s *space, lo, hi uint64) {
	at, _ := slices.BinarySearchFunc(s.loose, hi, compareSpan)
	from := at
	for from > 0 && s.loose[from-1].end > lo {
		from--
		h.markSegment(s.loose[from].block)
	}
	s.loose = slices.Delete(s.loose, from, at)
}

func (h *Heap) markSegment(i uint32) {
	b := &h.blocks.blocks[i]
	d := h.owner(b)
	d.Segments.add(b.size, b.requested)
	key := h.sites.list[b.site].key
	key.segment = true
	to := h.sites.find(key)
	from := b.site
	b.site = to
	src, dst := &h.sites.list[from], &h.sites.list[to]
	src.Alloc.remove(b.size, b.requested)
	src.Inuse.remove(b.size, b.requested)
	dst.Alloc.add(b.size, b.requested)
	dst.Inuse.add(b.size, b.requested)
}

// undo is a free that may yet turn out to have failed.
type undo struct {
	addr     uint64
	pid, tid uint32
	block    uint32
	layer    event.Layer
	device   event.Device
	known    bool // block is valid: the free was of a known allocation
}

// undoLog is a ring of the last frees of the driver layers.
type undoLog struct {
	ring []undo
	next int
}

// push returns what it had to forget.
func (l *undoLog) push(u undo) undo {
	if len(l.ring) < undoable {
		l.ring = append(l.ring, u)
		return undo{}
	}
	old := l.ring[l.next]
	l.ring[l.next] = u
	l.next = (l.next + 1) % undoable
	return old
}

// take finds the latest free that a failure is about, and forgets it.
func (l *undoLog) take(e *event.Event) (undo, bool) {
	n := len(l.ring)
	for i := range n {
		u := &l.ring[(l.next+n-1-i)%n]
		if u.addr == e.Addr && u.pid == e.PID && u.tid == e.TID && u.layer == e.Layer {
			found := *u
			*u = undo{}
			return found, true
		}
	}
	return undo{}, false
}
