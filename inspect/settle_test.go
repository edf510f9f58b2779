// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// script is a device's mutex and statistics that change while they are read: each look at the mutex is a step.
type script struct {
	steps []step
	at    int
}

type step struct {
	kind, lock uint32
	calls      uint64 // allocations and frees so far
}

const scriptStats, scriptMutex = 0x20000, 0x1ffd8

func (s *script) ReadAt(b []byte, addr uint64) (int, error) {
	now := s.steps[min(s.at, len(s.steps)-1)]
	clear(b)
	if addr == scriptMutex {
		s.at++
		binary.LittleEndian.PutUint32(b, now.lock)
		binary.LittleEndian.PutUint32(b[mutexKind:], now.kind)
		return len(b), nil
	}
	// A Stat is current, peak, allocated, freed.
	binary.LittleEndian.PutUint64(b[16:], now.calls/2)
	binary.LittleEndian.PutUint64(b[24:], now.calls-now.calls/2)
	return len(b), nil
}

func TestSettle(t *testing.T) {
	held := func(calls uint64) step { return step{mutexRecursive, 1, calls} }
	for _, c := range []struct {
		name    string
		steps   []step
		settled bool
		looks   int // at least
	}{
		{"unlocked", []step{{mutexRecursive, 0, 10}}, true, 1},
		{"contended, then unlocked", []step{{mutexRecursive, 2, 10}, {mutexRecursive, 2, 10}, {mutexRecursive, 0, 11}}, true, 3},
		{"shared between processes", []step{{mutexRecursive | 0x80, 0, 10}}, true, 1},
		{"two calls later", []step{held(10), held(11), held(12)}, true, 2},
		{"one call later", []step{held(10), held(11)}, false, eagerPolls},
		{"held for long", []step{held(10)}, false, eagerPolls},
		{"counters reset", []step{held(10), held(0)}, false, eagerPolls},
		{"no recursive mutex", []step{{0, 0, 10}}, false, eagerPolls},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &script{steps: c.steps}
			seen, err := readStats(m, scriptStats)
			assert.NoError(t, err)
			before := bootTime()
			to, settled := (&Allocator{memory: m}).settle(t.Context(), device{stats: scriptStats, mutex: scriptMutex}, seen)
			assert.Equal(t, c.settled, settled)
			assert.GreaterOrEqual(t, m.at, c.looks)
			assert.GreaterOrEqual(t, to, before)
		})
	}
}
