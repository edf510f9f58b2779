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

// totalsTimeout is how long reading the allocator's totals, or the driver's figures at the end, may take: a driver can hang.
const totalsTimeout = 5 * time.Second

// readTotals reads what the allocator itself counts when the trace begins.
func (p *Process) readTotals() {
	ctx, cancel := context.WithTimeout(p.ctx, totalsTimeout)
	defer cancel()
	p.before, p.stateErr = p.target.Totals(ctx)
}

// Before is the caching allocator's totals from before the attach: by the first event where there was one, so that the figure is the
// summary's, else by its own state. The error wraps reconcile.ErrNoState where there is no allocator.
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

// completeBaseline sets in the heap the totals of devices on which nothing happened during the recording.
func (p *Process) completeBaseline(ctx context.Context) {
	totals, err := p.target.Totals(ctx) // the allocator may have been loaded since the attach; it fails when the process has ended
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

// errSlowState is why there is nothing of the allocator, or of the driver, at the end of a job that goes on.
var errSlowState = errors.New("there was no time to read it at the end")

// errEnded is why there is nothing of the driver, and of the allocator, at the end.
var errEnded = errors.New("the process has ended")

// Input puts it into the form that can be added up.
func (m *Memory) Input(pid int) *balance.Input {
	in := &balance.Input{PID: uint32(pid), Moved: m.Moved, Torch: m.Torch, Driver: m.Driver}
	if m.DriverErr != nil {
		in.DriverWhy = m.DriverErr.Error()
	}
	return in
}

// balance is what tells where the process's memory is, at the end of the recording.
func (p *Process) balance(m *Memory, view *view.View) *balance.Input {
	in := m.Input(p.PID())
	in.View, in.Whole = view, m.Fresh
	parts := p.heap.torchParts()
	if m.HasTorch && (parts == nil || sameMoment(in.Torch, parts)) {
		return in // of one moment: before the process ended, if it has
	}
	alive := p.target.Alive()
	if !alive {
		in.Driver, in.DriverWhy = nil, errEnded.Error()
	}
	switch {
	case parts != nil:
		in.Torch = parts // the job went on while the state was read
	case !alive:
		in.TorchWhy = errEnded.Error()
	case m.TorchErr != nil:
		in.TorchWhy = m.TorchErr.Error()
	case p.stateErr != nil && !errors.Is(p.stateErr, reconcile.ErrNoState):
		in.TorchWhy = p.stateErr.Error()
	}
	return in
}

// torchParts is how the caching allocator's segments are used at the last event, by the events; nil when that is not known of
// every device.
func (h *recordedHeap) torchParts() []figures.TorchMemory {
	var out []figures.TorchMemory
	totals := h.Totals()
	for i := range totals.Accounts {
		a := &totals.Accounts[i]
		p, ok := h.Parts(a.PID, a.Device)
		if !ok || a.Device.Index < 0 {
			return nil
		}
		out = append(out, figures.TorchMemory{
			Device: int(a.Device.Index), Reserved: figures.Bytes(p.Reserved), Allocated: figures.Bytes(p.Allocated),
			Requested: figures.Bytes(p.Requested), Pending: figures.Unknown, InactiveSplit: figures.Bytes(p.InactiveSplit),
			Free: figures.Bytes(p.Free), Largest: figures.Bytes(p.Largest),
		})
	}
	return out
}

// sameMoment says whether the allocator's state tells of the same blocks as the events.
func sameMoment(state, events []figures.TorchMemory) bool {
	empty := func(t figures.TorchMemory) bool { return t.Reserved == 0 }
	state, events = slices.DeleteFunc(slices.Clone(state), empty), slices.DeleteFunc(slices.Clone(events), empty)
	return slices.EqualFunc(state, events, func(x, y figures.TorchMemory) bool {
		return x.Device == y.Device && x.Allocated == y.Allocated && x.Reserved == y.Reserved
	})
}

// readMemory reads the process's memory at its end, which must not wait for a driver that hangs. What is read has four fifths of the time:
// where the allocator has more blocks than can be read in it there are still the driver's figures.
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
