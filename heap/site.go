// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/tally"
	"github.com/gputrace/gputrace/internal/index"
)

// Count is a number of allocations and their bytes.
type Count = tally.Count

// CountOf returns the count of one allocation; both sizes are bytes and may be event.Unknown.
func CountOf(size, requested uint64) Count { return tally.Of(size, requested) }

// Origin is how an allocation became known.
type Origin uint8

// The origins.
const (
	OriginEvent     Origin = iota // from its event
	OriginBefore                  // from the allocator state: allocated before the first event
	OriginRecovered               // from the allocator state: its event was lost
)

type siteKey struct {
	stack   event.StackID
	pid     uint32
	call    uint16 // index into sites.calls
	device  event.Device
	layer   event.Layer
	segment bool
	origin  Origin
}

type siteCounts struct {
	key          siteKey
	Alloc, Inuse Count
	atPeak       Count      // Inuse at the peak, if it has changed since
	peakState    *peakState // nil: nothing was in use so far
	changed      bool
}

// sites adds up allocations by stack.
type sites struct {
	index index.Index[siteKey]
	list  []siteCounts
	calls []string
	call  map[string]uint16
}

func newSites() sites {
	return sites{calls: []string{""}, call: map[string]uint16{"": 0}}
}

func (s *sites) at(e *event.Event) uint32 {
	key := siteKey{stack: e.Stack, pid: e.PID, device: e.Device, layer: e.Layer}
	if e.Call != "" {
		key.call = s.intern(e.Call)
	}
	return s.find(key)
}

func (s *sites) find(key siteKey) uint32 {
	if i, ok := s.index.Find(uint64(key.stack), &key); ok {
		return i
	}
	if len(s.list) >= maxSites && key.stack != 0 {
		key.stack = 0
		return s.find(key)
	}
	i, _ := s.index.Number(uint64(key.stack), &key)
	s.list = append(s.list, siteCounts{key: key})
	return i
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
