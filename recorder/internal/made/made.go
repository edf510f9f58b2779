// SPDX-License-Identifier: Apache-2.0

// Package made is a source of events that a test writes, for the tests of those who use a recorder.
package made

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// Second is a second on the clock of the events.
const Second = uint64(time.Second)

// Target is a process that never was.
type Target struct {
	recorder.Target // nil: for methods that a recorder of it does not call

	ID   int
	Self process.About
	Why  recorder.End

	found recorder.Found
}

// PID returns the process ID.
func (t *Target) PID() int { return t.ID }

// About returns the process's description of itself.
func (t *Target) About() *process.About { return &t.Self }

// NameNow returns the name of the program.
func (t *Target) NameNow() string { return t.Self.Name }

// Alive reports whether the process still runs.
func (t *Target) Alive() bool { return t.Why == recorder.Running }

// Paused returns nothing: a thread runs.
func (*Target) Paused() string { return "" }

// Found returns nothing that an attach found.
func (t *Target) Found() *recorder.Found { return &t.found }

// Began reports that the process is older than its trace.
func (*Target) Began() bool { return false }

// End returns why the events ended.
func (t *Target) End() recorder.End { return t.Why }

// Stack returns a stack of one line, whose number is the stack's.
func (*Target) Stack(id event.StackID) *event.Stack {
	return &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, Func: "train", File: "/app/train.py", Line: int(id)}}}
}

// Lost returns no lost event.
func (*Target) Lost() uint64 { return 0 }

// OverLimit returns no stack over the limit.
func (*Target) OverLimit() uint64 { return 0 }

// Stacks returns no counts.
func (*Target) Stacks() recorder.Stacks { return recorder.Stacks{} }

// File returns no file.
func (*Target) File(string) io.Reader { return nil }

// Close does nothing.
func (*Target) Close() {}

// Driver knows nothing.
func (*Target) Driver() (string, []string) { return "", nil }

var noState = &recorder.Outcome{Kind: reconcile.ErrNoState, Text: "no PyTorch here"}

// Totals returns no totals from before the trace.
func (*Target) Totals(context.Context) ([]recorder.Totals, error) { return nil, noState }

// Allocators finds no allocator.
func (*Target) Allocators() int { return 0 }

// AllocatorState finds no allocator.
func (*Target) AllocatorState(context.Context) (*reconcile.State, error) { return nil, noState }

// Holders finds no allocator.
func (*Target) Holders(context.Context) (*recorder.Scan, error) { return nil, noState }

// Memory finds no driver.
func (*Target) Memory(context.Context) *recorder.Memory {
	return &recorder.Memory{DriverErr: errors.New("no driver")}
}

// Batch is what one Read of a Source returns.
type Batch struct {
	Events []event.Event
	Arrive []recorder.Target
}

// Source is a source whose batches a test writes. It ends after the last.
type Source struct {
	Targets []recorder.Target // that exist when it starts
	Batches []Batch

	mu      sync.Mutex
	clock   uint64
	arrived []recorder.Target
}

// Start begins with Targets.
func (s *Source) Start(context.Context) error {
	s.arrived = s.Targets
	return nil
}

// Read returns the next batch.
func (s *Source) Read(buf []event.Event) ([]event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock += Second / 1000
	if len(s.Batches) == 0 {
		return buf, io.EOF
	}
	b := s.Batches[0]
	s.Batches = s.Batches[1:]
	s.arrived = append(s.arrived, b.Arrive...)
	for i := range b.Events {
		s.clock = max(s.clock, b.Events[i].Time)
	}
	return append(buf, b.Events...), nil
}

// Arrived returns the new processes.
func (s *Source) Arrived() []recorder.Target {
	out := s.arrived
	s.arrived = nil
	return out
}

// Emptied reports that nothing is left.
func (*Source) Emptied() bool { return true }

// Now returns the time of the last event.
func (s *Source) Now() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock
}

// Lost returns no lost event.
func (*Source) Lost() uint64 { return 0 }

// Hits returns the runs of one probe.
func (*Source) Hits() ([]figures.Hits, error) {
	return []figures.Hits{{Probe: "libc10.so report", Hits: 3, Emitted: 3}}, nil
}

// Ended reports that there are more processes.
func (*Source) Ended() bool { return false }

// Finish does nothing.
func (*Source) Finish() {}

// Stop does nothing: the batches end.
func (*Source) Stop() {}

// Signal finds no program.
func (*Source) Signal(os.Signal) bool { return false }

// Wait finds no program.
func (*Source) Wait() (int, bool) { return 0, false }

// Close does nothing.
func (*Source) Close() error { return nil }

// Observer keeps the events and warnings of a recording.
type Observer struct {
	Events   []recorder.Event
	Warnings []string
}

// Event keeps an event.
func (o *Observer) Event(e recorder.Event) { o.Events = append(o.Events, e) }

// Notice implements recorder.Observer.
func (*Observer) Notice(string) {}

// Warning keeps a warning.
func (o *Observer) Warning(err error) { o.Warnings = append(o.Warnings, err.Error()) }

// Attached implements recorder.Observer.
func (*Observer) Attached(*recorder.Process) {}

// Ready implements recorder.Observer.
func (*Observer) Ready() error { return nil }

// Live implements recorder.Observer.
func (*Observer) Live(*recorder.State) {}

// Holders implements recorder.Observer.
func (*Observer) Holders(*view.Joined) {}

// Ended implements recorder.Observer.
func (*Observer) Ended(*recorder.Process) {}

// Alloc is an allocation of the caching allocator; total is what the allocator has handed out after it.
func Alloc(pid int, at, addr, size, total uint64) event.Event {
	return event.Event{
		Time: at, PID: uint32(pid), TID: uint32(pid), Kind: event.KindAlloc, Layer: event.LayerAllocator,
		Device: event.Device{Type: event.DeviceCUDA}, Addr: addr, Size: size, Requested: size, Stack: 1, Allocated: total, Reserved: 1 << 30,
		Handle: event.Unknown, Context: event.Unknown,
	}
}

// Free is a free of the caching allocator.
func Free(pid int, at, addr, size, total uint64) event.Event {
	e := Alloc(pid, at, addr, size, total)
	e.Kind, e.Stack = event.KindFree, 0
	return e
}
