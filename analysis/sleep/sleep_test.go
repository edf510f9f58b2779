// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

const (
	unit   = 2 << 20
	second = 1e9
)

var cuda0 = event.Device{Type: event.DeviceCUDA}

// server is a trace of a server that sleeps.
type server struct {
	t    *testing.T
	heap *heap.Heap
	f    Follower
	now  uint64
}

func (s *server) send(seconds uint64, kind event.Kind, layer event.Layer, object event.Object, addr, size, handle uint64) {
	s.now = seconds*second + s.now%second + 1
	e := &event.Event{Time: s.now, PID: 7, TID: 7, Kind: kind, Layer: layer, Object: object, Device: cuda0, Addr: addr, Size: size,
		Handle: handle, Context: event.Unknown, Requested: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown}
	if kind == event.KindMap || kind == event.KindUnmap {
		e.Device.Index = -1
	}
	s.f.Before(e, s.heap)
	s.heap.Apply(e)
	s.f.See(e, s.heap)
}

// start makes two segments with a block in each, which can sleep, at 1 and 2 units.
func start(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, heap: heap.New()}
	for i := uint64(1); i <= 2; i++ {
		s.send(0, event.KindAlloc, event.LayerVirtual, event.ObjectMemory, i*unit, unit, event.Unknown)
		s.wake(0, i)
		s.send(0, event.KindAlloc, event.LayerAllocator, event.ObjectMemory, i*unit, 512, event.Unknown)
	}
	return s
}

func (s *server) sleep(at, i uint64) {
	s.send(at, event.KindUnmap, event.LayerDevice, event.ObjectPhysical, i*unit, unit, event.Unknown)
	s.send(at, event.KindFree, event.LayerDevice, event.ObjectPhysical, i, event.Unknown, event.Unknown)
}

func (s *server) wake(at, i uint64) {
	s.send(at, event.KindAlloc, event.LayerDevice, event.ObjectPhysical, i, unit, event.Unknown)
	s.send(at, event.KindMap, event.LayerDevice, event.ObjectPhysical, i*unit, unit, i)
}

// leak takes other memory of the device.
func (s *server) leak(at, i uint64) {
	s.send(at, event.KindAlloc, event.LayerDevice, event.ObjectMemory, 100*unit*(i+1), unit, event.Unknown)
}

func (s *server) cycles() []Cycle {
	out := s.f.Cycles()
	for i := range out {
		c := &out[i]
		require.Equal(s.t, cuda0, c.Device)
		require.EqualValues(s.t, 7, c.PID)
		*c = Cycle{From: c.From / second, To: c.To / second, Released: c.Released, Before: c.Before, Stayed: c.Stayed, After: c.After}
	}
	return out
}

func TestCycles(t *testing.T) {
	s := start(t)
	require.Empty(t, s.cycles())
	s.sleep(1, 1)
	s.sleep(1, 2)
	s.wake(2, 1)
	require.Equal(t, []Cycle{{From: 1, Released: 2 * unit, Before: 2 * unit}}, s.cycles())
	require.Zero(t, s.f.Cycles()[0].Change(), "it sleeps")
	s.leak(2, 1)
	s.wake(3, 2)
	all := []Cycle{{From: 1, To: 3, Released: 2 * unit, Before: 2 * unit, After: 3 * unit}}
	require.Equal(t, all, s.cycles())
	require.EqualValues(t, unit, s.f.Cycles()[0].Change())

	s.sleep(5, 2)
	s.send(6, event.KindFree, event.LayerVirtual, event.ObjectMemory, 2*unit, event.Unknown, event.Unknown)
	all = append(all, Cycle{From: 5, To: 6, Released: unit, Before: 3 * unit, Stayed: 2 * unit, After: 2 * unit})
	require.Equal(t, all, s.cycles())
	require.EqualValues(t, -unit, s.f.Cycles()[1].Change())
}

func TestRise(t *testing.T) {
	s := start(t)
	for i := range uint64(4) {
		require.Zero(t, Rise(s.f.Cycles()[:min(i, leastRising-1)]))
		s.sleep(2*i+1, 1)
		s.wake(2*i+2, 1)
		s.leak(2*i+2, i)
	}
	require.EqualValues(t, unit, Rise(s.f.Cycles()))
	s.sleep(20, 1)
	s.wake(21, 1)
	s.sleep(22, 1)
	require.Zero(t, Rise(s.f.Cycles()), "the last one stayed as it was")
}

func TestCyclesAreBounded(t *testing.T) {
	s := start(t)
	for i := range uint64(maxCycles + 3) {
		s.sleep(i+1, 1)
		s.wake(i+1, 1)
	}
	require.Len(t, s.cycles(), maxCycles)
	require.EqualValues(t, 4, s.cycles()[0].From)
}
