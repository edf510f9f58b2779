// SPDX-License-Identifier: Apache-2.0

// Package perfetto writes a recording as a trace that ui.perfetto.dev and trace_processor read: totals of every device as
// counters, each allocation with its stack and bytes, the live set of some moments as heap profiles, the largest blocks
// from birth to end. The format is a row of protobuf packets.
package perfetto

import (
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/kineto"
	"github.com/gputrace/gputrace/heap"
)

// Input is what Write needs.
type Input struct {
	Timeline *view.Timeline
	// Trace is the one that the timeline is of.
	Trace *view.Trace
	PID   uint32 // the process that Name and Cmdline are of
	Name  string // empty: not known
	// Cmdline is the first arguments; nil: not known.
	Cmdline []string
	// Started is a wall clock time, and StartedBoot the same moment on the clock of the events, CLOCK_BOOTTIME nanoseconds.
	// Zero: not known.
	Started     time.Time
	StartedBoot uint64
	Attributes  []Attribute     // about the trace, for people
	Steps       []view.StepSpan // of the process, in their order; nil: there are none
	Phases      []view.PhaseSpan
	// Profiles are traces of torch.profiler to show beside the timeline. Started and StartedBoot must be known.
	Profiles []*kineto.Trace
	// ProfileFrom and ProfileTo limit the events of Profiles, CLOCK_BOOTTIME nanoseconds. 0: all.
	ProfileFrom, ProfileTo uint64
}

// Attribute is one line of what a trace says about itself.
type Attribute struct{ Key, Text string }

// Write writes a trace. What was left out is in Input.Timeline after it, in the trace's attributes, and on the track that it
// is missing from: in its name, or as an instant where it ends.
func Write(w io.Writer, in Input) error {
	t := newTrace(w, &in)
	t.learn()
	t.clocks()
	err := in.Timeline.Visit(&view.TimelineVisitor{
		Totals: t.totals, Alloc: t.alloc, OutOfMemory: t.outOfMemory, Moment: t.moment,
	})
	if err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	t.stopped()
	t.steps()
	t.phases()
	t.lifetimes()
	for i, k := range in.Profiles {
		t.profile(i, k)
	}
	t.attributes()
	if err := t.finish(); err != nil {
		return fmt.Errorf("write timeline: %w", err)
	}
	return nil
}

// trace is a trace that is being written.
type trace struct {
	*writer
	in   *Input
	main *sequence // of what is no event

	processes map[uint32]uint64 // tracks
	threads   map[threadKey]bool
	devices   map[deviceKey]*device
	dumps     map[heapKey]*dump
	profiles  profiles
}

type threadKey struct{ pid, tid uint32 }

type deviceKey struct {
	pid    uint32
	device event.Device
}

func newTrace(w io.Writer, in *Input) *trace {
	t := &trace{
		writer: newWriter(w), in: in, processes: map[uint32]uint64{}, threads: map[threadKey]bool{},
		devices: map[deviceKey]*device{}, dumps: map[heapKey]*dump{},
	}
	t.main = t.sequence(0)
	return t
}

// clocks says how the clocks relate. Heap profiles have times of the coarse monotonic clock, which is declared to be the
// clock of the events; the real one is nowhere used.
func (t *trace) clocks() {
	clock := func(m *message, id, time uint64) {
		at := m.open(snapshotClock)
		m.number(clockID, id)
		m.number(clockTimestamp, time)
		m.close(at)
	}
	now := t.in.StartedBoot
	if now == 0 {
		now = t.in.Timeline.From
	}
	t.single(t.main, func(m *message) {
		at := m.open(packetClockSnapshot)
		clock(m, clockBoottime, now)
		clock(m, clockMonotonicCoarse, now)
		if t.in.StartedBoot != 0 && t.in.Started.UnixNano() > 0 {
			clock(m, clockRealtime, uint64(t.in.Started.UnixNano()))
		}
		m.number(snapshotPrimary, clockBoottime)
		m.close(at)
	})
}

// attributes says about the trace what is known of it, and what is not in it.
func (t *trace) attributes() {
	tl := t.in.Timeline
	t.single(t.main, func(m *message) {
		at := m.open(packetAttributes)
		for _, a := range t.in.Attributes {
			attribute(m, a.Key, func() { m.text(attributeText, a.Text) })
		}
		for _, a := range []struct {
			key   string
			value uint64
		}{
			{"gputrace.allocations", tl.Shown.Objects}, {"gputrace.allocated_bytes", tl.Shown.Bytes},
			{"gputrace.left_out_allocations", tl.Left.Objects}, {"gputrace.left_out_bytes", tl.Left.Bytes},
			{"gputrace.min_size", tl.MinSize}, {"gputrace.from_boottime_ns", tl.From}, {"gputrace.to_boottime_ns", tl.To},
			{"gputrace.until_boottime_ns", tl.Until},
		} {
			attribute(m, a.key, func() { m.number(attributeInt, a.value) })
		}
		m.close(at)
	})
}

func attribute(m *message, key string, value func()) {
	at := m.open(attributesAttribute)
	m.text(attributeKey, key)
	value()
	m.close(at)
}

// callstack is the number of a block's stack.
func (t *trace) callstack(s *sequence, b *heap.Block) uint64 {
	return s.callstack(labelKey{stack: b.Stack, origin: b.Origin}, func() []view.Label { return t.in.Trace.BlockLabels(b) })
}
