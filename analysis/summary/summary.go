// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"fmt"
	"slices"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// Report is what a recording says in the keys of PyTorch and of the libraries around it.
type Report struct {
	Devices []figures.MemoryStats
	// Stages are what was allocated before training and in it, of each device; nil: no steps were found.
	Stages []Stages
}

// Stages is the memory of one device in the two stages that can be recognised from outside: before the first batch,
// forward or other part of a step, and from there on. The second ends behind a step, with what is freed before
// anything else is allocated: gradients that are reset.
type Stages struct {
	Device      int
	Init, Train Stage
}

// course is Stages that are being followed.
type course struct {
	Stages
	begun  bool   // Train has
	step   int    // of the last event
	behind bool   // nothing was allocated since the step before ended
	left   uint64 // allocated behind the last event, bytes
}

// Stage is a time in which memory was allocated, bytes.
type Stage struct {
	Begin, End, Peak uint64
}

// AllocDelta is what was allocated in the stage and stays.
func (s *Stage) AllocDelta() int64 { return int64(s.End) - int64(s.Begin) }

// PeakedDelta is how much more than at its end was allocated at its peak.
func (s *Stage) PeakedDelta() int64 { return int64(s.Peak) - int64(s.End) }

type accountKey struct {
	pid    uint32
	device event.Device
}

// inSteps are the phases that steps consist of.
var inSteps = []phases.Phase{phases.Input, phases.Forward, phases.Backward, phases.Optimizer, phases.ZeroGrad}

type reader struct {
	trace   *view.Trace
	devices map[accountKey]*device
	stages  map[accountKey]*course
	steps   *steps.Table
	ends    uint64 // of the last whole step
}

// Of replays a trace once. table nil: steps were not looked for. Accounts of a trace are of one process.
func Of(t *view.Trace, table *steps.Table) (*Report, error) {
	r := &reader{trace: t, devices: map[accountKey]*device{}, stages: map[accountKey]*course{}, steps: table}
	if table != nil && table.Count() > 0 {
		_, r.ends, _ = table.Span(table.Last() - 1)
	}
	if err := t.Replay(r.visitor()); err != nil {
		return nil, fmt.Errorf("count as the allocator does: %w", err)
	}
	out := &Report{}
	accounts := t.End().Snapshot.Accounts
	for i := range accounts {
		a := &accounts[i]
		if a.Device.Allocator() != allocator.Torch {
			continue
		}
		key := accountKey{a.PID, a.Device}
		out.Devices = append(out.Devices, r.device(key).known(a))
		if s := r.stages[key]; s != nil && a.Baseline == 0 {
			out.Stages = append(out.Stages, s.Stages)
		}
	}
	return out, nil
}

func (r *reader) device(key accountKey) *device {
	d := r.devices[key]
	if d == nil {
		d = newDevice(int(key.device.Index))
		r.devices[key] = d
	}
	return d
}

func (r *reader) visitor() *view.Visitor {
	return &view.Visitor{
		Event: func(e *event.Event, h *heap.Heap) { r.stage(e, h) },
		Allocated: func(b *heap.Block, _ *event.Event) {
			r.count(b, more)
		},
		Freed: func(b *heap.Block, _ *event.Event, _ uint64) { r.count(b, less) },
		Moved: func(from, to *heap.Block) {
			r.count(from, less)
			r.count(to, more)
		},
	}
}

func (r *reader) count(b *heap.Block, change func(uint64) func(*figures.Counter)) {
	d := r.device(accountKey{b.PID, b.Device})
	switch {
	case b.Layer == event.LayerAllocator && b.Device.Allocator() == allocator.Torch:
		d.block(b, change)
	case b.Layer == event.LayerDevice && b.Segment && b.Size != event.Unknown:
		d.segment(b, change)
	}
}

// stage follows the total of a device.
func (r *reader) stage(e *event.Event, h *heap.Heap) {
	if r.ends == 0 || e.Layer != event.LayerAllocator {
		return
	}
	a, ok := h.Account(e.PID, e.Device)
	if !ok || a.Allocated == event.Unknown {
		return
	}
	key := accountKey{e.PID, e.Device}
	s := r.stages[key]
	if s == nil {
		s = &course{Stages: Stages{Device: int(e.Device.Index)}}
		r.stages[key] = s
	}
	step, phase := r.steps.At(e.Time), phases.Unknown
	if e.Kind == event.KindAlloc {
		phase = r.trace.Phase(e.Stack)
	}
	s.begun = s.begun || step > 0 || slices.Contains(inSteps, phase)
	if !s.begun {
		s.Init.End, s.Init.Peak = a.Allocated, max(s.Init.Peak, a.Allocated)
		s.Train = Stage{a.Allocated, a.Allocated, a.Allocated}
		return
	}
	s.train(step, e.Kind == event.KindAlloc && phase != phases.Optimizer, a.Allocated, e.Time <= r.ends)
}

// train follows the steps. next: something is allocated that is none of the optimizer's; whole: the last whole
// step has not ended yet. What is freed behind the last step, before nothing
// is allocated, may be all there is: of a program that ends.
func (s *course) train(step int, next bool, allocated uint64, whole bool) {
	if step != s.step {
		s.step, s.behind = step, true
	}
	if next && s.behind {
		s.behind, s.Train.End = false, s.left
	}
	if s.left = allocated; !whole {
		return
	}
	s.Train.Peak = max(s.Train.Peak, allocated)
	if step <= 1 { // no step has ended yet
		s.Train.End = allocated
	}
}
