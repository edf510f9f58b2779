// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// maxPools limits the BFC allocators of a process that are read. A process has a few for each device.
const maxPools = 1024

// searchTimeout limits the search for allocators. A gigabyte takes a tenth of a second.
const searchTimeout = 3 * time.Second

// pools is the BFC allocators of a process. Events name them: each contains the address of its allocator's object.
type pools struct {
	mu    sync.Mutex
	list  []*pool
	using sync.Mutex // held while the allocators are read
	// searched: those that were there when the recording began were searched for, whether they make a call or not.
	searched bool
}

// pool is one BFC allocator.
type pool struct {
	object uint64
	device event.Device // of the allocator, as in its events
	reader *bfc.Allocator
	took   time.Duration // by the last reading
}

// note adds the allocator of an event, if it is a new one.
func (s *pools) note(m process.Memory, e *event.Event) {
	s.add(&pool{object: e.Handle, device: e.Device, reader: bfc.New(m, e.Handle)})
}

// add adds an allocator, if it is a new one.
func (s *pools) add(p *pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if s.list[i].object == p.object {
			return
		}
	}
	if len(s.list) < maxPools {
		s.list = append(s.list, p)
	}
}

// search adds the allocators that the process has, once. One that is not found is known from its first event on.
func (s *pools) search(ctx context.Context, p *process.Process) {
	s.using.Lock()
	defer s.using.Unlock()
	if s.searched {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, searchTimeout)
	defer cancel()
	found, err := bfc.Find(bounded, p, bootTime)
	if s.searched = ctx.Err() == nil; err != nil {
		return
	}
	for _, f := range found.Pools {
		device := event.Device{Type: event.DeviceCUDA.Of(allocator.BFC), Index: int8(f.Device)}
		if f.Host {
			if s, err := f.Read(ctx, bootTime); err != nil || len(s.Blocks) == 0 {
				continue // JAX has one for copies, which most programs hardly use
			}
			device.Type = event.DeviceCPU.Of(allocator.BFC)
		}
		s.add(&pool{object: f.Object(), device: device, reader: f.Allocator})
	}
}

// all returns the allocators that events have named so far.
func (s *pools) all() []*pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list[:len(s.list):len(s.list)]
}

// read adds the state of all allocators to a state, one observation for each device. A device with an allocator that cannot be
// read is left out: the blocks of the others would look like all of its blocks. The error wraps bfc.ErrChanged.
func (s *pools) read(ctx context.Context, pid int, out *reconcile.State) error {
	s.using.Lock()
	defer s.using.Unlock()
	devices, unread := []event.Observation{}, map[event.Device]bool{}
	list := slices.Clone(s.all())
	slices.SortStableFunc(list, func(x, y *pool) int { return cmp.Compare(y.took, x.took) }) // so that the times of the counts are close
	for _, p := range list {
		begun := time.Now()
		state, err := p.reader.Read(ctx, bootTime)
		p.took = time.Since(begun)
		switch {
		case errors.Is(err, bfc.ErrChanged), ctx.Err() != nil:
			return err
		case err != nil:
			unread[p.device], out.Unread = true, err
		default:
			devices = addPool(devices, pid, p.device, state)
		}
	}
	for i := range devices {
		if o := &devices[i]; !unread[o.Device] {
			out.Devices, out.Until = append(out.Devices, *o), max(out.Until, o.To)
		}
	}
	return nil
}

// forHolders returns the allocators for the search for holders, which reads them at its own times.
func (s *pools) forHolders(m process.Memory) (out []*bfc.Pool) {
	for _, p := range s.all() {
		host := p.device.Physical().Type == event.DeviceCPU
		out = append(out, &bfc.Pool{Allocator: bfc.New(m, p.object), Device: int(p.device.Index), Host: host})
	}
	return out
}

// addPool adds one allocator to the observation of its device.
func addPool(list []event.Observation, pid int, device event.Device, s *bfc.State) []event.Observation {
	var o *event.Observation
	for i := range list {
		if list[i].Device == device {
			o = &list[i]
		}
	}
	if o == nil {
		list = append(list, event.Observation{PID: uint32(pid), Device: device, From: s.From, Counted: s.Counted})
		o = &list[len(list)-1]
	}
	o.From, o.Counted, o.To = min(o.From, s.From), min(o.Counted, s.Counted), max(o.To, s.To)
	o.Allocated, o.Reserved, o.Allocators = o.Allocated+s.InUse, o.Reserved+s.Reserved, o.Allocators+1
	if device.Physical().Type == event.DeviceCPU {
		o.Reserved = event.Unknown // no event shows when an allocator of host memory takes more
	}
	for _, r := range s.Regions {
		o.Segments = append(o.Segments, event.ObservedSegment{Addr: r.Addr, Size: r.Size})
	}
	for _, b := range s.Blocks {
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: event.Unknown})
	}
	return list
}

// Allocators implements recorder.Inspector.
func (i *inspector) Allocators() int { return len(i.pools.all()) }

// AllocatorState implements recorder.Inspector.
func (i *inspector) AllocatorState(ctx context.Context) (*reconcile.State, error) {
	state, err := i.torchState(ctx)
	if errors.Is(err, reconcile.ErrNoState) {
		i.pools.search(ctx, i.process)
	}
	if i.Allocators() == 0 {
		return state, err
	}
	switch {
	case errors.Is(err, reconcile.ErrNoState):
		state = &reconcile.State{}
	case err != nil:
		return nil, err
	}
	return within(ctx, func() (*reconcile.State, error) {
		if err := i.pools.read(ctx, i.process.PID, state); err != nil {
			return nil, fmt.Errorf("read the allocator state: %w", i.process.Blame(err))
		}
		return state, nil
	})
}

// show notes the allocator that an event names.
func (l *live) show(e *event.Event) {
	if e.Device.Allocator() != allocator.BFC || e.Handle == event.Unknown || e.Device.Index < 0 {
		return
	}
	if now := (poolKey{e.PID, e.Handle}); now != l.shown {
		l.shown = now
		if i := l.inspectors[e.PID]; i != nil {
			i.pools.note(i.process, e)
		}
	}
}

// poolKey identifies an allocator of a process.
type poolKey struct {
	pid    uint32
	object uint64
}
