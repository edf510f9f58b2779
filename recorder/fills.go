// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// fillParts are the parts of a device, in twentieths, at which holders are read once each: a program that fills a device within seconds
// leaves no time for it when a request has failed.
var fillParts = [...]uint64{10, 15, 18}

// fills follows how far the caching allocator of a process has filled its devices. The zero value is ready for use.
type fills struct {
	rooms map[int]uint64 // bytes that PyTorch can have of a device, by its index
	used  map[event.Device]uint64
	parts map[event.Device]int // number of fillParts that were reached
	last  event.Device         // of the latest entry of used that was looked at; most is its value
	most  uint64
}

// see follows what an event says is reserved.
func (f *fills) see(e *event.Event) {
	if e.Kind != event.KindAlloc || e.Layer != event.LayerAllocator || e.Reserved == event.Unknown {
		return
	}
	if e.Device == f.last && e.Reserved <= f.most { // nearly all events
		return
	}
	if f.used == nil {
		f.used = map[event.Device]uint64{}
	}
	f.last, f.most = e.Device, max(f.used[e.Device], e.Reserved)
	f.used[f.last] = f.most
}

// isNew reports whether a device is in use whose size is not known.
func (f *fills) isNew() bool {
	for d := range f.used {
		if _, ok := f.rooms[int(d.Index)]; !ok {
			return true
		}
	}
	return false
}

// read takes the sizes of devices, and the program's own limits, from a reading.
func (f *fills) read(r *figures.Reading) {
	if f.rooms == nil {
		f.rooms = map[int]uint64{}
	}
	set := func(device int, bytes figures.Bytes) {
		if bytes != figures.Unknown && bytes > 0 {
			f.rooms[device] = uint64(bytes - min(contextBytes, bytes/2))
		}
	}
	for _, d := range r.Sizes {
		set(d.Device, d.Bytes)
	}
	for i := range r.Driver {
		set(r.Driver[i].Device, r.Driver[i].Total)
	}
	for _, l := range r.Limits {
		if room, ok := f.rooms[l.Device]; ok && l.Bytes != figures.Unknown && l.Bytes > 0 {
			f.rooms[l.Device] = min(room, uint64(l.Bytes))
		}
	}
}

// reached reports whether a device is filled to a further part than before.
func (f *fills) reached() (further bool) {
	for d, used := range f.used {
		room, ok := f.rooms[int(d.Index)]
		for ok && f.parts[d] < len(fillParts) && used >= room/20*fillParts[f.parts[d]] {
			if f.parts == nil {
				f.parts = map[event.Device]int{}
			}
			f.parts[d]++
			further = true
		}
	}
	return further
}
