// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// inspector is the Inspector of a running process.
type inspector struct {
	process *process.Process
	driver  *Driver
	first   *firstLook
	pools   pools

	use       chan struct{} // held by the goroutine that uses the allocator
	find      finder
	allocator stateReader // nil: not found so far
	proved    atomic.Bool // its layout is known: its state was read
}

// stateReader has the methods of an inspect.Allocator that are used here.
type stateReader interface {
	mapReader
	Totals(ctx context.Context) ([]inspect.DeviceTotals, error)
	Sweep(ctx context.Context) (*inspect.Sweep, error)
}

// mapReader reads the allocator state for Reading.
type mapReader interface {
	MapNow(ctx context.Context, timeout time.Duration) (*inspect.Map, error)
	MemoryStats(ctx context.Context) ([]inspect.MemoryStats, error)
	Limits(ctx context.Context) ([][]uint64, error)
	DeviceSizes(ctx context.Context) ([]uint64, error)
}

// finder finds the caching allocator of a process: find, except in tests.
type finder func(p *process.Process) (stateReader, error)

// find searches the memory of the process for its allocator. It returns a nil stateReader if there is none.
func find(p *process.Process) (stateReader, error) {
	a, err := inspect.Find(p)
	if err != nil {
		return nil, err
	}
	return a, nil
}

func newInspector(ctx context.Context, p *process.Process, d *Driver) *inspector {
	return &inspector{process: p, driver: d, first: d.look(ctx, p), use: make(chan struct{}, 1), find: find}
}

// noState means that there is no allocator whose state could be read.
type noState struct{ error }

func (e noState) Unwrap() error        { return e.error }
func (e noState) Is(target error) bool { return target == reconcile.ErrNoState }

// absent makes errors that mean "no allocator" match ErrNoState.
func absent(err error) error {
	if errors.Is(err, inspect.ErrNoAllocator) || errors.Is(err, inspect.ErrOtherBackend) {
		return noState{err}
	}
	return err
}

// withAllocator calls f with the process's allocator, in a goroutine that is abandoned when ctx is done and ends soon
// after. Only one runs at a time.
func withAllocator[T any](ctx context.Context, i *inspector, f func(stateReader) (T, error)) (T, error) {
	var zero T
	select {
	case i.use <- struct{}{}:
	case <-ctx.Done():
		return zero, context.Cause(ctx)
	}
	out, err := within(ctx, func() (T, error) {
		defer func() { <-i.use }()
		if i.allocator == nil {
			a, err := i.find(i.process)
			if err != nil {
				return zero, err
			}
			i.allocator = a
		}
		out, err := f(i.allocator)
		if err == nil {
			i.proved.Store(true)
		}
		return out, err
	})
	return out, i.blame(ctx, err)
}

// leaveTime is how long a program may take from the first destructor of its exit until the kernel knows that it ends.
const leaveTime = 2 * time.Second

// blame replaces an error of reading the process by process.ErrEnded if that is the reason: it has ended, or a layout that was read
// before is not there any more because the program exits, and C++ destroys its objects.
func (i *inspector) blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err == nil || cause != nil && errors.Is(err, cause) {
		return err
	}
	if errors.Is(err, inspect.ErrUnknownLayout) && i.proved.Load() {
		for end := time.Now().Add(leaveTime); ctx.Err() == nil && time.Now().Before(end) && i.process.Blame(err) == err; {
			time.Sleep(leaveTime / 100)
		}
	}
	return absent(i.process.Blame(err))
}

// within calls f in a goroutine that is abandoned when ctx is done. The input of f is another process's memory, so a
// memory fault or panic of f must not end the recording: it is returned as an error.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if fault := recover(); fault != nil {
				r.err = fmt.Errorf("a fault of gputrace, please report it: %v", fault)
			}
			results <- r
		}()
		r.value, r.err = f()
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

func (i *inspector) Totals(ctx context.Context) ([]recorder.Totals, error) {
	return withAllocator(ctx, i, func(a stateReader) ([]recorder.Totals, error) {
		devices, err := a.Totals(ctx)
		if err != nil {
			return nil, err
		}
		var out []recorder.Totals
		for _, d := range devices {
			out = append(out, recorder.Totals{Device: d.Device, Allocated: d.Allocated, Reserved: d.Reserved})
		}
		return out, nil
	})
}

// torchState reads PyTorch's caching allocator.
func (i *inspector) torchState(ctx context.Context) (*reconcile.State, error) {
	return withAllocator(ctx, i, func(a stateReader) (*reconcile.State, error) {
		sweep, err := a.Sweep(ctx)
		if err != nil {
			return nil, err
		}
		out := &reconcile.State{Until: sweep.To}
		for k := range sweep.Devices {
			out.Devices = append(out.Devices, observation(i.process.PID, &sweep.Devices[k]))
		}
		return out, nil
	})
}

// observation converts the reading of one device for the heap.
func observation(pid int, d *inspect.DeviceSweep) event.Observation {
	o := event.Observation{
		PID: uint32(pid), Device: event.Device{Type: event.DeviceCUDA, Index: int8(d.Before.Device)}, From: d.Window.From, To: d.Window.To,
		Allocated: event.Unknown, Reserved: event.Unknown,
	}
	if d.Window.Settled && d.Before == d.After {
		o.Allocated, o.Reserved = d.Before.Allocated, d.Before.Reserved
	}
	for i := range d.Segments {
		g := &d.Segments[i]
		if d.Balanced { // otherwise a segment can be listed in part
			o.Segments = append(o.Segments, event.ObservedSegment{Addr: g.Addr, Size: g.Size, Expandable: g.Expandable})
		}
		for _, b := range g.Blocks {
			if b.State == inspect.StateAllocated {
				o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream})
			}
		}
	}
	if !d.Balanced {
		o.Reserved = event.Unknown
	}
	return o
}

func (i *inspector) Holders(ctx context.Context) (*recorder.Scan, error) {
	report, err := within(ctx, func() (*scan.Report, error) {
		return scan.Read(ctx, i.process, &scan.Options{BFC: i.pools.forHolders(i.process)})
	})
	if err != nil {
		return nil, i.blame(ctx, err)
	}
	known := holders.New(report)
	return &recorder.Scan{
		Until: report.Time + uint64(report.Stats.Confirm),
		Join:  func(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined { return known.Join(v, blocks) },
		Held:  known.Held, Passing: known.Passing, NoPython: report.NoPython,
	}, nil
}

// Memory reads the driver's figures, and the allocator's if one was found.
func (i *inspector) Memory(ctx context.Context) *recorder.Memory {
	select {
	case <-i.first.done:
	case <-ctx.Done():
		return &recorder.Memory{DriverErr: fmt.Errorf("wait for the GPU's driver: %w", context.Cause(ctx))}
	}
	select {
	case i.use <- struct{}{}:
		defer func() { <-i.use }()
	case <-ctx.Done():
		return &recorder.Memory{TorchErr: context.Cause(ctx)}
	}
	var source mapReader
	if i.allocator != nil {
		source = i.allocator
	}
	m := readMemory(ctx, i.process, i.driver, source).Memory()
	m.Fresh = i.first.fresh
	return m
}

func (i *inspector) Driver() (version string, devices []string) { return i.first.known() }
