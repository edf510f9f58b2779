// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"strings"

	"github.com/gputrace/gputrace/event"
)

// resetEffect records what a reset freed, so that it can be undone.
type resetEffect struct {
	freed     []*object // live before the reset
	pending   []*object // another call was freeing them: they stay freed if that call fails
	uncertain []*object // possibly freed by the reset
	context   uint64    // the destroyed context; 0: none
	device    event.Device
}

// scope is the target of a reset: a context or, when context is 0, a device's primary context and the memory of the
// device's pools. device is -1 when not known.
type scope struct {
	context uint64
	device  int8
}

// addContext records a new context, or one more reference to a known one.
func (p *process) addContext(o *object, e *event.Event) {
	p.contexts[e.Addr] = e.Device
	o.primary = !strings.Contains(e.Call, "CtxCreate") // all other calls act on the primary context
	o.uncertain = o.primary && !p.fromStart
	if o.primary {
		p.primaries[e.Device.Index] = e.Addr
	}
}

// freeContext drops a reference. Dropping the last one frees everything in the context.
func (h *Heap) freeContext(p *process, e *event.Event) {
	addr := e.Addr
	if addr == 0 {
		addr = p.primary(e.Device.Index)
	}
	u := undoRecord{process: p}
	o := p.find(e.Layer, e.Object, addr)
	if o == nil {
		u.account, u.unknown = h.driver(e.PID, e.Layer, e.Device), true
		u.account.UnknownFrees++
	} else {
		u.account = h.accountOf(o)
		if !o.uncertain {
			u.object = o
			h.dropRef(p, o, e.Time)
		}
	}
	u.account.Frees++
	switch {
	case u.object == nil || o.refs > 0:
	case o.primary:
		h.resetAll(p, &u, scope{device: p.contexts[addr].Index}, e)
		u.forget(p, addr)
	default:
		h.resetAll(p, &u, scope{context: addr}, e)
		u.forget(p, addr)
	}
	h.undo.push(e, u)
}

// primary returns the primary context of a device, or 0.
func (p *process) primary(device int8) uint64 {
	if c, ok := p.primaries[device]; ok || device >= 0 || len(p.primaries) != 1 {
		return c
	}
	for _, c := range p.primaries {
		return c
	}
	return 0
}

func (h *Heap) reset(p *process, e *event.Event) {
	u := undoRecord{process: p, account: h.driver(e.PID, e.Layer, e.Device)}
	u.account.Resets++
	if e.Addr == 0 {
		h.resetAll(p, &u, scope{device: e.Device.Index}, e)
	} else {
		h.resetAll(p, &u, scope{context: e.Addr}, e)
		if u.object = p.find(event.LayerHolder, event.ObjectContext, e.Addr); u.object != nil {
			h.dropRef(p, u.object, e.Time)
		}
		u.forget(p, e.Addr)
	}
	h.undo.push(e, u)
}

// forget removes a destroyed context.
func (u *undoRecord) forget(p *process, context uint64) {
	if device, ok := p.contexts[context]; ok {
		u.context, u.device = context, device
		delete(p.contexts, context)
	}
}

// resetAll retires what a reset frees: memory and arrays of the device, and host memory.
func (h *Heap) resetAll(p *process, u *undoRecord, s scope, e *event.Event) {
	t := &resetEffect{}
	p.noteDriver(e.Time)
	for _, l := range []event.Layer{event.LayerDevice, event.LayerHost} {
		for _, sort := range []event.Object{event.ObjectMemory, event.ObjectArray} {
			for _, o := range p.inSpace(spaceKey{l, sort}) {
				h.resetObject(p, t, s, o)
			}
		}
	}
	for _, o := range append([]*object(nil), p.pieces...) {
		if o.segmentOf.expandable {
			continue
		}
		if yes, doubt := s.covers(p, h.key(o), o); yes {
			h.accountOf(o).ResetFrees++
			u.ranges = append(u.ranges, h.removePieces(p, o.addr, o.addr+o.size)...)
		} else if doubt {
			h.markUncertain(t, o)
		}
	}
	for _, o := range h.undo.pending(p, e.TID) {
		h.resetPending(p, t, s, o)
	}
	for _, o := range t.freed {
		h.accountOf(o).ResetFrees++
		h.dropRef(p, o, e.Time)
	}
	for _, o := range t.pending {
		h.dropRef(p, o, e.Time)
	}
	u.resetEffect = t
}

func (h *Heap) resetObject(p *process, t *resetEffect, s scope, o *object) {
	if yes, doubt := s.covers(p, h.key(o), o); yes {
		t.freed = append(t.freed, o)
	} else if doubt {
		h.markUncertain(t, o)
	}
}

// resetPending retires memory that other calls have begun to free.
func (h *Heap) resetPending(p *process, t *resetEffect, s scope, o *object) {
	if yes, doubt := s.covers(p, h.key(o), o); yes {
		t.pending = append(t.pending, o)
	} else if doubt {
		h.markUncertain(t, o)
	}
}

func (h *Heap) markUncertain(t *resetEffect, o *object) {
	h.setUncertain(o, 1)
	t.uncertain = append(t.uncertain, o)
}

// setUncertain changes the number of resets that may have freed an object.
func (h *Heap) setUncertain(o *object, change int32) {
	d, origin := h.accountOf(o), h.key(o).origin
	if o.live {
		d.remove(o, origin)
	}
	o.uncertainResets += change
	if o.live {
		d.add(o, origin)
	}
}

// covers reports whether a reset frees an object (yes) or may free it (doubt).
func (s scope) covers(p *process, k *siteKey, o *object) (yes, doubt bool) {
	if k.layer != event.LayerDevice && k.layer != event.LayerHost || o.sort != event.ObjectMemory && o.sort != event.ObjectArray {
		return false, false
	}
	if s.context != 0 {
		return s.coversContext(p, k, o)
	}
	device := k.device.Index
	if known, ok := p.contexts[o.context]; device < 0 && ok {
		device = known.Index
	}
	switch {
	case !o.ordered && p.notPrimary(o.context, device):
		return false, false
	case s.device >= 0 && device >= 0:
		return device == s.device, false
	case len(p.devices) == 0, len(p.devices) == 1 && (s.device < 0 || p.uses(s.device)):
		return true, false
	}
	return false, true
}

// notPrimary reports whether a context is known not to be the primary one of its device, which cuDevicePrimaryCtxReset and the
// last release destroy. An unknown context counts as primary, because the runtime allocates everything in the primary one.
func (p *process) notPrimary(context uint64, device int8) bool {
	if context == 0 {
		return false
	}
	if primary := p.primary(device); primary != 0 {
		return context != primary
	}
	o := p.find(event.LayerHolder, event.ObjectContext, context)
	return o != nil && !o.primary
}

func (s scope) coversContext(p *process, k *siteKey, o *object) (yes, doubt bool) {
	switch _, shown := p.contexts[s.context]; {
	case o.ordered:
		return false, false
	case o.context != 0:
		return o.context == s.context, false
	case k.device.Index >= 0: // the thread chose a device, and so its primary context
		return p.primary(k.device.Index) == s.context, false
	default:
		yes = len(p.contexts) == 0 || len(p.contexts) == 1 && shown
		return yes, !yes
	}
}

func (p *process) uses(device int8) bool {
	_, ok := p.devices[device]
	return ok
}

// undoReset undoes a reset.
func (h *Heap) undoReset(p *process, t *resetEffect, time uint64) {
	for _, o := range t.freed {
		d := h.accountOf(o)
		d.ResetFrees--
		if !h.restoreRef(p, o, time) {
			d.LostFrees++
		}
	}
	for _, o := range t.pending {
		h.restoreRef(p, o, time)
	}
	for _, o := range t.uncertain {
		h.setUncertain(o, -1)
	}
	if t.context != 0 {
		p.contexts[t.context] = t.device
	}
}
