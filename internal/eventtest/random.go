// SPDX-License-Identifier: Apache-2.0

// Package eventtest makes streams of events for tests.
package eventtest

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/gputrace/gputrace/event"
)

// Stream is events in memory, with the names of their stacks. It is an event.Recorded without marks that can be rewound.
type Stream struct {
	Events []event.Event
	Stacks map[event.StackID]*event.Stack
	// Err is what Read says behind the last event; nil: io.EOF.
	Err error

	at int
}

// Read implements event.Source.
func (s *Stream) Read(buf []event.Event) ([]event.Event, error) {
	n := min(cap(buf)-len(buf), len(s.Events)-s.at)
	if n == 0 && s.at == len(s.Events) {
		if s.Err != nil {
			return buf, s.Err
		}
		return buf, io.EOF
	}
	buf = append(buf, s.Events[s.at:s.at+n]...)
	s.at += n
	return buf, nil
}

// Stack implements event.Source.
func (s *Stream) Stack(id event.StackID) *event.Stack { return s.Stacks[id] }

// Annotations implements event.Replayable.
func (s *Stream) Annotations() []event.Annotation { return nil }

// Rewind makes the first event the next.
func (s *Stream) Rewind() error {
	s.at = 0
	return nil
}

// The processes, devices and sizes of Random's events.
const (
	PID     = 4242
	stacks  = 24
	slots   = 200 // addresses of each device, so that they are used again
	slotLog = 22
	devices = 2
)

// random is a caching allocator on each of two devices, and a driver.
type random struct {
	*Stream
	rng    *rand.Rand
	torch  [devices]map[uint64]uint64 // live blocks: address to bytes
	total  [devices]uint64
	device [devices]map[uint64]uint64
	time   uint64
}

// Random makes n events of one process: a caching allocator with one segment on each of two devices, whose totals begin above 0 on
// the second, device memory of others, three threads, two streams, and a request that is refused now and then. No two events have
// the same time. The same seed makes the same events.
func Random(seed uint64, n int) *Stream {
	r := &random{Stream: &Stream{Stacks: map[event.StackID]*event.Stack{}}, rng: rand.New(rand.NewPCG(seed, 99)), time: 1e9}
	for i := range devices {
		r.torch[i], r.device[i] = map[uint64]uint64{}, map[uint64]uint64{}
		r.total[i] = uint64(i) << 20 // from before
	}
	for id := event.StackID(1); id <= stacks; id++ {
		r.Stacks[id] = stack(id)
	}
	for d := range min(devices, n) {
		r.segment(d)
	}
	for len(r.Events) < n {
		r.time += 1 + r.rng.Uint64N(20_000)
		switch d := r.rng.IntN(devices); r.rng.IntN(20) {
		case 0:
			r.driver(d)
		case 1:
			r.refused(d)
		default:
			r.block(d)
		}
	}
	return r.Stream
}

// stack is as deep as its number, with native frames under Python ones; the last has none that is known.
func stack(id event.StackID) *event.Stack {
	s := &event.Stack{ID: id}
	if id == stacks {
		return s
	}
	torch := &event.Module{Path: "/opt/torch/lib/libtorch_cpu.so", Start: 1 << 40, Limit: 1<<40 + 1<<20, BuildID: "00ff"}
	s.Frames = append(s.Frames, event.Frame{
		Kind: event.FrameNative, Func: fmt.Sprintf("at::native::op%d", id%5), Module: torch, Addr: 1<<40 + uint64(id)*16, Offset: uint64(id) * 16,
	})
	for depth := range 1 + int(id)%4 {
		if id%6 == 0 { // a backward thread: no Python
			break
		}
		s.Frames = append(s.Frames, event.Frame{
			Kind: event.FramePython, Func: fmt.Sprintf("f%d.<locals>.g;%d", id%7, depth), File: "/home/a b/train.py", Line: 10*int(id) + depth,
			StartLine: 5,
		})
	}
	return s
}

func (r *random) event(kind event.Kind, layer event.Layer, device int) event.Event {
	return event.Event{
		Time: r.time, PID: PID, TID: PID + uint32(r.rng.IntN(3)), Kind: kind, Layer: layer,
		Device: event.Device{Type: event.DeviceCUDA, Index: int8(device)}, Handle: event.Unknown, Context: event.Unknown,
		Requested: event.Unknown, Stream: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown,
		Stack: event.StackID(r.rng.IntN(stacks + 1)),
	}
}

// block allocates or frees a block of a caching allocator.
func (r *random) block(d int) {
	e := r.event(event.KindAlloc, event.LayerAllocator, d)
	e.Addr = uint64(d+1)<<44 | r.rng.Uint64N(slots)<<slotLog
	if size, ok := r.torch[d][e.Addr]; ok {
		e.Kind, e.Size, e.Stack = event.KindFree, size, 0
		delete(r.torch[d], e.Addr)
		r.total[d] -= size
	} else {
		e.Requested = 1 + r.rng.Uint64N(1<<(10+r.rng.Uint64N(12)))
		e.Size, e.Stream = (e.Requested+511)&^511, r.rng.Uint64N(2)
		r.torch[d][e.Addr] = e.Size
		r.total[d] += e.Size
	}
	e.Allocated, e.Reserved = r.total[d], 1<<32
	r.Events = append(r.Events, e)
}

// segment is all memory that the caching allocator of a device deals out.
func (r *random) segment(d int) {
	r.time++
	e := r.event(event.KindAlloc, event.LayerDevice, d)
	e.Call, e.Addr, e.Size = "cudaMalloc", uint64(d+1)<<44, slots<<slotLog
	r.Events = append(r.Events, e)
}

// driver allocates or frees device memory that is nobody's segment.
func (r *random) driver(d int) {
	e := r.event(event.KindAlloc, event.LayerDevice, d)
	e.Call, e.Size = "cuMemAlloc_v2", 1<<16*(1+r.rng.Uint64N(8))
	e.Addr = uint64(d+1)<<46 | r.rng.Uint64N(20)<<slotLog
	if _, ok := r.device[d][e.Addr]; ok {
		e.Kind, e.Call, e.Size = event.KindFree, "cuMemFree_v2", event.Unknown
		delete(r.device[d], e.Addr)
	} else {
		r.device[d][e.Addr] = e.Size
	}
	r.Events = append(r.Events, e)
}

func (r *random) refused(d int) {
	e := r.event(event.KindOutOfMemory, event.LayerAllocator, d)
	e.Size, e.Allocated, e.Reserved = 1<<40, r.total[d], 1<<32
	r.Events = append(r.Events, e)
}
