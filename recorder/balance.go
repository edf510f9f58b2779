// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// totalsTimeout limits reading the allocator's totals, or the driver's figures at the end, because a driver can hang.
const totalsTimeout = 5 * time.Second

// readTotals reads the allocator's own totals when the trace begins.
func (p *Process) readTotals() {
	ctx, cancel := context.WithTimeout(p.ctx, totalsTimeout)
	defer cancel()
	p.before, p.stateErr = p.target.Totals(ctx)
}

// Before returns the caching allocator's totals from before the attach. For a device with events they come from the first one, so
// that they equal the summary's; otherwise from the allocator state. The error wraps reconcile.ErrNoState if there is no allocator.
func (p *Process) Before(accounts []heap.Account) ([]Totals, error) {
	if p.stateErr != nil {
		return nil, p.stateErr
	}
	out := slices.Clone(p.before)
	for i := range out {
		for k := range accounts {
			if a := &accounts[k]; int(a.Device.Index) == out[i].Device && a.Baseline != event.Unknown {
				out[i].Allocated = a.Baseline
			}
		}
	}
	return out, nil
}

// completeBaseline sets the heap's totals of devices without an event in the recording.
func (p *Process) completeBaseline(ctx context.Context) {
	totals, err := p.target.Totals(ctx) // the allocator may have been loaded after the attach; fails when the process has ended
	switch {
	case err == nil:
		p.stateErr = nil
	case p.stateErr != nil:
		p.stateErr = err
		return
	default:
		totals = p.before
	}
	for _, d := range totals {
		if d.Reserved > 0 {
			p.heap.SetBaseline(uint32(p.PID()), event.Device{Type: event.DeviceCUDA, Index: int8(d.Device)}, d.Allocated, d.Reserved)
		}
	}
}

// errSlowState means that the allocator or the driver of a running job could not be read in time at the end.
var errSlowState = errors.New("there was no time to read it at the end")

// errEnded means that the process ended before the driver and the allocator could be read.
var errEnded = errors.New("the process has ended")

// Input converts the reading for package balance.
func (m *Memory) Input(pid int) *balance.Input {
	in := &balance.Input{PID: uint32(pid), Moved: m.Moved, Torch: m.Torch, Driver: m.Driver}
	if m.DriverErr != nil {
		in.DriverWhy = m.DriverErr.Error()
	}
	return in
}

// balance returns the input for dividing the process's memory at the end of the recording.
func (p *Process) balance(m *Memory, view *view.View) *balance.Input {
	in := m.Input(p.PID())
	in.View, in.Whole = view, m.Fresh
	parts := p.heap.torchParts()
	if m.HasTorch && (parts == nil || sameMoment(in.Torch, parts)) {
		return in // all read at one moment, before the process ended if it has
	}
	alive := p.target.Alive()
	if !alive {
		in.Driver, in.DriverWhy = nil, errEnded.Error()
	}
	switch {
	case parts != nil:
		in.Torch = parts // the job continued while the state was read
	case !alive:
		in.TorchWhy = errEnded.Error()
	case m.TorchErr != nil:
		in.TorchWhy = m.TorchErr.Error()
	case p.stateErr != nil && !errors.Is(p.stateErr, reconcile.ErrNoState):
		in.TorchWhy = p.stateErr.Error()
	}
	return in
}

// torchParts returns the use of the caching allocator's segments at the last event, computed from events; nil unless it
// is known for every device.
func (h *recordedHeap) torchParts() []figures.TorchMemory {
	var out []figures.TorchMemory
	totals := h.Totals()
	for i := range totals.Accounts {
		a := &totals.Accounts[i]
		if a.Device.Physical().Type == event.DeviceCPU {
			continue // host memory
		}
		p, ok := h.Parts(a.PID, a.Device)
		if !ok || a.Device.Index < 0 {
			return nil
		}
		out = append(out, figures.TorchMemory{
			Device: int(a.Device.Index), Reserved: figures.Bytes(p.Reserved), Allocated: figures.Bytes(p.Allocated),
			Requested: figures.Bytes(p.Requested), Pending: figures.Unknown, InactiveSplit: figures.Bytes(p.InactiveSplit),
			Free: figures.Bytes(p.Free), Largest: figures.Bytes(p.Largest),
			Allocator: a.Device.Allocator(),
		})
	}
	return out
}

// sameMoment reports whether the allocator state and the events describe the same blocks.
func sameMoment(state, events []figures.TorchMemory) bool {
	empty := func(t figures.TorchMemory) bool { return t.Reserved == 0 }
	state, events = slices.DeleteFunc(slices.Clone(state), empty), slices.DeleteFunc(slices.Clone(events), empty)
	return slices.EqualFunc(state, events, func(x, y figures.TorchMemory) bool {
		return x.Device == y.Device && x.Allocated == y.Allocated && x.Reserved == y.Reserved
	})
}

// readMemory reads the process's memory at its end, without waiting for a driver that hangs. The reading gets four
// fifths of the time, so that the driver's figures are still available if the allocator has too many blocks to read.
func (p *Process) readMemory(ctx context.Context) *Memory {
	results := make(chan *Memory, 1)
	inner, cancel := ctx, context.CancelFunc(func() {})
	if end, ok := ctx.Deadline(); ok {
		inner, cancel = context.WithTimeoutCause(ctx, time.Until(end)*4/5, errSlowState)
	}
	go func() {
		defer cancel()
		results <- p.target.Memory(inner)
	}()
	select {
	case m := <-results:
		return m
	case <-ctx.Done():
		err := fmt.Errorf("the GPU's driver and the process's memory were not read within %v", totalsTimeout)
		return &Memory{TorchErr: err, DriverErr: err}
	}
}
