package heap

import (
	"github.com/gputrace/gputrace/event"
)

// Count is a number of allocations and their bytes.
type Count struct {
	Objects uint64
	Bytes   uint64 // as booked by the layer: block sizes for torch
	// Requested is what the program asked for, in bytes, of the RequestedObjects allocations of which that is known.
	Requested        uint64
	RequestedObjects uint64
}

func (c *Count) add(bytes, requested uint64) {
	c.Objects++
	c.Bytes += bytes
	if requested != event.Unknown {
		c.Requested += requested
		c.RequestedObjects++
	}
}

func (c *Count) remove(bytes, requested uint64) {
	c.Objects--
	c.Bytes -= bytes
	if requested != event.Unknown {
		c.Requested -= requested
		c.RequestedObjects--
	}
}

type siteKey struct {
	stack   event.StackID
	pid     uint32
	call    uint16 // index into sites.calls
	device  event.Device
	layer   event.Layer
	segment bool
}

type siteCounts struct {
	key          siteKey
	Alloc, Inuse Count
}

// sites adds up allocations by where they were made.
type sites struct {
	index map[siteKey]uint32
	list  []siteCounts
	calls []string
	call  map[string]uint16
}

func newSites() sites {
	return sites{index: map[siteKey]uint32{}, calls: []string{""}, call: map[string]uint16{"": 0}}
}

func (s *sites) at(e *event.Event) uint32 {
	key := siteKey{stack: e.Stack, pid: e.PID, device: e.Device, layer: e.Layer}
	if e.Call != "" {
		key.call = s.intern(e.Call)
	}
	return s.find(key)
}

func (s *sites) find(key siteKey) uint32 {
	if i, ok := s.index[key]; ok {
		return i
	}
	if len(s.list) >= maxSites && key.stack != 0 {
		key.stack = 0
		return s.find(key)
	}
	i := uint32(len(s.list))
	s.index[key] = i
	s.list = append(s.list, siteCounts{key: key})
	return i
}

func (s *sites) alloc(i uint32, bytes, requested uint64) {
	c := &s.list[i]
	c.Alloc.add(bytes, requested)
	c.Inuse.add(bytes, requested)
}

func (s *sites) intern(call string) uint16 {
	i, ok := s.call[call]
	if !ok && len(s.calls) < maxCalls {
		i = uint16(len(s.calls))
		s.calls = append(s.calls, call)
		s.call[call] = i
	}
	return i
}
