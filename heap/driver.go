// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"strings"

	"github.com/gputrace/gputrace/event"
)

// object is one thing that the driver allocated: memory, a handle, a context.
type object struct {
	addr    uint64 // or handle
	size    uint64 // bytes; event.Unknown when no call had the size
	time    uint64 // of the allocation
	touched uint64 // time of the last event of the object
	listed  uint64 // number of the event that assigned the address or handle
	context uint64 // the context it was allocated in; 0: not known
	site    uint32
	// refs is the number of frees needed to free the object; a free in flight beyond that lowers it too, so 0 or less
	// means freed. maps is the number of its mappings.
	refs, maps      int32
	uncertainResets int32 // resets that may have freed it
	sort            event.Object
	segment         bool // as in its site
	live            bool // has a reference or a mapping, and is counted
	ordered         bool // stream-ordered: it comes from a pool and is in no context
	primary         bool // is a device's primary context
	dead            bool // a call that freed it has returned, so the free cannot be undone
	uncertain       bool // is a context that may have references from before the first event
	segmentOf       *pieceSegment
}

type driverKey struct {
	pid    uint32
	layer  event.Layer
	device event.Device
}

func (h *Heap) driver(pid uint32, layer event.Layer, device event.Device) *DriverAccount {
	if d := h.lastDriver; d != nil && d.PID == pid && d.Layer == layer && d.Device == device {
		return d
	}
	key := driverKey{pid, layer, device}
	d := h.drivers[key]
	if d == nil {
		d = &DriverAccount{PID: pid, Layer: layer, Device: device}
		h.drivers[key] = d
		for _, a := range h.process(pid).accounts {
			if a.Device.Physical() == device && layer == event.LayerDevice {
				a.driver = d
			}
		}
	}
	h.lastDriver = d
	return d
}

// accountOf returns the account that counts an object; the event that frees the object may name another device.
func (h *Heap) accountOf(o *object) *DriverAccount {
	k := h.key(o)
	return h.driver(k.pid, k.layer, k.device)
}

func (h *Heap) key(o *object) *siteKey { return &h.sites.list[o.site].key }

func (h *Heap) applyDriver(e *event.Event) {
	p := h.process(e.PID)
	p.note(e)
	switch e.Kind {
	case event.KindAlloc:
		h.allocDriver(p, e)
	case event.KindFree:
		h.freeDriver(p, e)
	case event.KindFreeFailed:
		h.restore(e)
	case event.KindMap:
		h.mapMemory(p, e)
	case event.KindUnmap:
		h.unmapMemory(p, e)
	case event.KindRetain:
		h.retain(p, e)
	case event.KindReset:
		h.reset(p, e)
	case event.KindTrim:
		h.driver(e.PID, e.Layer, e.Device).Trims++
	case event.KindOutOfMemory:
		h.driver(e.PID, e.Layer, e.Device).OOMs++
	}
	for _, a := range p.accounts {
		a.followSegments()
	}
}

func (h *Heap) allocDriver(p *process, e *event.Event) {
	if o := p.referenced(e); o != nil {
		o.refs++
		o.touched = e.Time
		h.accountOf(o).Retains++
		return
	}
	s := p.space(e.Layer, e.Object)
	if e.Object == event.ObjectMemory && e.Size != event.Unknown {
		p.forgetAsleep(e.Addr, e.Size)
	}
	if o := s[e.Addr]; o != nil { // its free was lost
		h.retireLost(p, o)
	}
	if e.Layer == event.LayerDevice && e.Object == event.ObjectMemory && e.Size != event.Unknown {
		h.retireLostPieces(p, e.Addr, e.Addr+e.Size)
	}
	o := &object{
		addr: e.Addr, size: e.Size, time: e.Time, touched: e.Time, context: contextOf(e), site: h.sites.at(e), refs: 1, sort: e.Object,
		ordered: e.Handle != event.Unknown && e.Handle != 0 || strings.Contains(e.Call, "Async"),
	}
	if e.Object == event.ObjectContext {
		p.addContext(o, e)
	}
	h.sites.list[o.site].Alloc.Add(e.Size, event.Unknown)
	d := h.accountOf(o)
	d.Allocs++
	s[o.addr], o.listed = o, h.events
	h.settle(p, o)
}

// referenced returns the live object to which an allocation adds a reference, or nil: for some calls the driver returns
// the same address, handle or context again and counts references.
func (p *process) referenced(e *event.Event) *object {
	switch {
	case !counted(e.Layer, e.Object):
		return nil
	case e.Object == event.ObjectPhysical: // also a handle that was exported here
		return p.find(event.LayerDevice, e.Object, e.Addr)
	default:
		return p.find(e.Layer, e.Object, e.Addr)
	}
}

// counted reports whether allocating a live object again adds a reference: true for primary contexts
// (cuDevicePrimaryCtxRetain), memory of another process that is opened again (cuIpcOpenMemHandle) and imported handles.
func counted(layer event.Layer, sort event.Object) bool {
	return sort == event.ObjectContext || layer == event.LayerShared && (sort == event.ObjectMemory || sort == event.ObjectPhysical)
}

func (h *Heap) freeDriver(p *process, e *event.Event) {
	if e.Object == event.ObjectContext {
		h.freeContext(p, e)
		return
	}
	u := undoRecord{process: p}
	o := p.find(e.Layer, e.Object, e.Addr)
	switch {
	case o != nil:
		u.object = o
		u.account = h.accountOf(o)
	case e.Object == event.ObjectMemory && p.piece(e.Addr) != nil:
		o := p.piece(e.Addr)
		u.account = h.accountOf(o)
		u.ranges = h.removePieces(p, o.addr, o.addr+o.size)
	default:
		u.account = h.driver(e.PID, e.Layer, e.Device)
		u.account.UnknownFrees++
		u.unknown = true
		u.object = h.undo.objectInFlight(p, e.Object, e.Addr, e.TID)
	}
	u.account.Frees++
	if e.Layer == event.LayerVirtual && e.Object == event.ObjectMemory {
		p.forgetAsleep(e.Addr, event.Unknown)
	}
	if u.object != nil {
		h.dropRef(p, u.object, e.Time)
	}
	h.undo.push(e, u)
}

// dropRef removes one reference.
func (h *Heap) dropRef(p *process, o *object, time uint64) {
	o.refs--
	o.touched = max(o.touched, time)
	if o.refs == 0 {
		h.unlist(p, o)
	}
	h.settle(p, o)
}

// restoreRef puts back a reference that dropRef removed. It returns false when the address or handle was allocated
// again in the meantime: the memory was freed after all, by a call that was lost.
func (h *Heap) restoreRef(p *process, o *object, time uint64) bool {
	o.refs++
	o.touched = max(o.touched, time)
	if o.refs == 1 {
		k := h.key(o)
		s := p.space(k.layer, o.sort)
		if other := s[o.addr]; other != nil {
			o.refs--
			if counted(k.layer, o.sort) { // the reference was added while it seemed to be the first
				other.refs++
				return true
			}
			return false
		}
		s[o.addr], o.listed = o, h.events
		delete(p.orphans, o)
	}
	h.settle(p, o)
	return true
}

// retireLost retires an object whose last free was lost.
func (h *Heap) retireLost(p *process, o *object) {
	h.accountOf(o).LostFrees++
	o.refs = 0
	h.unlist(p, o)
	h.settle(p, o)
}

// unlist releases the address or handle of an object for another one.
func (h *Heap) unlist(p *process, o *object) {
	s := p.space(h.key(o).layer, o.sort)
	if s[o.addr] == o {
		delete(s, o.addr)
	}
	if o.maps > 0 {
		p.orphans[o] = struct{}{}
	}
}

// settle makes an object live if it has a reference or a mapping, and retires it otherwise.
func (h *Heap) settle(p *process, o *object) {
	switch live := o.refs > 0 || o.maps > 0; {
	case live && !o.live:
		h.enter(p, o)
	case !live && o.live:
		h.retire(p, o)
	}
}

// enter makes an object live.
func (h *Heap) enter(p *process, o *object) {
	o.live = true
	h.notifyDriverAlloc(o)
	h.siteForChange(o.site).Inuse.Add(o.size, event.Unknown)
	d := h.accountOf(o)
	d.add(o, h.key(o).origin)
	if d.Live.Bytes > 0 && isPeak(d.Live.Bytes, h.now, d.Peak, d.PeakTime) {
		d.Peak, d.PeakTime = d.Live.Bytes, h.now
		h.setPeak(h.driverPeak(driverKey{d.PID, d.Layer, d.Device}))
	}
	if p.torch && !o.segment && d.Layer == event.LayerDevice && o.sort == event.ObjectMemory && o.size != event.Unknown {
		p.addUnclaimed(span{o.addr, o.addr + o.size, o})
	}
}

// retire is the inverse of enter.
func (h *Heap) retire(p *process, o *object) {
	o.live = false
	h.notifyDriverFree(o)
	h.siteForChange(o.site).Inuse.Remove(o.size, event.Unknown)
	h.accountOf(o).remove(o, h.key(o).origin)
	if !o.segment && o.sort == event.ObjectMemory {
		p.removeUnclaimed(o.addr, o)
	}
}

// add counts a live object.
func (d *DriverAccount) add(o *object, origin Origin) {
	for _, c := range d.counts(o, origin) {
		if c != nil {
			c.Add(o.size, event.Unknown)
		}
	}
}

func (d *DriverAccount) remove(o *object, origin Origin) {
	for _, c := range d.counts(o, origin) {
		if c != nil {
			c.Remove(o.size, event.Unknown)
		}
	}
}

// counts lists the counters that include an object; unused elements are nil.
func (d *DriverAccount) counts(o *object, origin Origin) [5]*Count {
	out := [5]*Count{&d.Live, &d.ByObject[o.sort]}
	if o.segment {
		out[2] = &d.Segments
	}
	if o.uncertainResets > 0 {
		out[3] = &d.Doubtful
	}
	if origin != OriginEvent {
		out[4] = &d.Found
	}
	return out
}
