// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Package tracer is the live source on Linux: it finds what to probe in a running process, prepares the unwinder, attaches,
// and turns what the kernel sends into events. Nothing runs in the target; when the tracer ends, the kernel removes the
// probes.
package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/kernel"
	"github.com/gputrace/gputrace/tracer/mapped"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// Errors on which callers branch.
var (
	// ErrNoCUDA: none of the libraries of the hook table is mapped.
	ErrNoCUDA = errors.New("uses no CUDA")
	// ErrNoSymbol: a library is there, but none of its functions that could be traced.
	ErrNoSymbol = errors.New("no function to trace")
)

// errMalformed is a record that does not have the form which records.h gives it. What it said is lost.
var errMalformed = errors.New("the kernel side sent a record that cannot be read: something is lost")

// Options may be nil.
type Options struct {
	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// FreeStacks also captures the stack of every free, at the cost of an allocation's.
	FreeStacks bool
	// PerfUprobes attaches each probe by a perf event, as kernels before 6.6 need it, also where uprobe_multi exists.
	PerfUprobes bool
	// Memory is how the target's memory is read. Reading in place takes Linux 6.2.
	Memory directmap.Mode
	// MaxStacks is how many different stacks are kept. What comes beyond is counted on one stack, event.StackOverLimit. 0 means
	// DefaultStacks.
	MaxStacks int
	// CacheDir holds unwind tables between runs. Empty: none are kept.
	CacheDir string
	// Job is for Open: probes are placed in a file for all processes that map it, and the kernel side tells which are traced.
	Job bool
	// ReturnTrial is what became of a program with a seccomp filter and a return probe on this kernel, where that was found out before.
	// Zero: it is tried when it matters.
	ReturnTrial returnprobe.Trial
	// Children has the descendants of what is added to a job traced too, those to come from their first instruction.
	Children bool
}

// DefaultStacks is how many different stacks are kept when nothing else is said. A training job has some thousands; a stack of 50
// frames takes 10 kB.
const DefaultStacks = 1 << 16

const (
	defaultRing = 32 << 20
	// pollEvery is how long events may lie in the ring. The kernel does not wake us for them: that would cost the target, and
	// so does each time that we wake ourselves. pollSoon holds for a ring below smallRing, and while a pollShare of a larger one
	// is filled meanwhile.
	pollEvery = 40 * time.Millisecond
	pollSoon  = 10 * time.Millisecond
	smallRing = 8 << 20
	pollShare = 8
	// refreshEvery is how often the mappings are looked at, refreshSoon how often when libraries are being loaded: for as
	// long as loadingFor after the last one came.
	refreshEvery = time.Second
	refreshSoon  = 20 * time.Millisecond
	loadingFor   = 2 * time.Second
	// quietFor is how long no new name may have been looked up before the memory that this takes is given back.
	quietFor = 2 * time.Second
)

// End says why a trace ended.
type End uint8

// The reasons.
const (
	Running End = iota
	Stopped     // Stop was called
	Exited      // the target ended
	Execed      // the target became another program
)

// Tracer is one process, from when it is known until it ends or becomes another program. One that Start made is an event.Source:
// its session is about it alone.
type Tracer struct {
	*Session
	member  *member
	target  *process.Process
	objects *mapped.Files
	stacks  *stackTable
	regions []mapped.Region // of now
	known   []mapped.Region // also those that were unloaded, where nothing else was loaded: stacks that still arrive lead there
	python  *cpython.Runtime
	found   Found
	mine    []*kernel.Probe // those in files that it has mapped

	end         End
	lost        losses // when that was last asked for
	arrived     bool   // it was said that it is there
	began       bool   // during the trace
	lastRefresh time.Time
	unknownCode bool      // a stack met code in no known mapping, or code has come that is not known yet
	changes     uint64    // of the code, as the kernel counts them, when the mappings were last read
	pages       uint64    // of code, then
	reached     uint64    // the last of those changes that the records which were read lie behind
	reused      uint64    // how often code has taken the place of other code
	unpublished bool      // the kernel does not know the present regions yet
	missing     uint64    // an address that was in no mapping when they were last read for it
	crowded     bool      // more mappings than the kernel has room for: it was said
	lastChange  time.Time // of the mappings, or the attach
	counts      RawStacks // of this process
}

// Start attaches to a process. Before the first probe is in place, everything that the unwinder needs is: the first event
// has a stack. Errors: ErrNoCUDA, ErrNoSymbol, ErrNotLoaded, ErrUnsafeReturns, those of package process, and what the kernel said.
// After an error nothing is attached.
func Start(p *process.Process, o *Options) (*Tracer, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	if err := anyLibrary(p, maps); err != nil {
		return nil, err
	}
	s := newSession(o)
	t, err := s.attachAlone(p)
	if err != nil {
		_ = s.Close() // the first error counts
		return nil, err
	}
	return t, nil
}

// attachAlone makes the session one of this process.
func (s *Session) attachAlone(p *process.Process) (*Tracer, error) {
	m, err := s.newMember(p)
	if err != nil {
		return nil, err
	}
	s.sole = s.newTracer(m)
	if err := s.sole.start(); err != nil {
		return nil, err
	}
	s.install(s.sole)
	return s.sole, nil
}

func (s *Session) newTracer(m *member) *Tracer {
	t := &Tracer{Session: s, member: m, target: m.target, objects: mapped.NewFiles(m.target, s.options.CacheDir, s.rows, s.files), stacks: newStackTable(cmp.Or(s.options.MaxStacks, DefaultStacks))}
	t.stacks.byID, t.stacks.names = s.stacks, s.names
	t.began = m.began
	t.reused = s.instances[m.PID] << instanceShift
	return t
}

// instanceShift keeps the stacks of programs apart that had the same number one after the other.
const instanceShift = 20

func (t *Tracer) start() error {
	begin := time.Now()
	t.pages = t.target.CodePages()
	maps, err := t.target.Maps()
	if err != nil {
		return err
	}
	if err := anyLibrary(t.target, maps); err != nil {
		return err
	}
	t.followMappings(maps)
	t.findPython()
	probes, err := t.discover()
	if err := errors.Join(err, t.ready()); err != nil {
		return err
	}
	if err := t.publish(true); err != nil {
		return err
	}
	if err := t.follow(t.member); err != nil {
		return err
	}
	t.found.Attached = bootTime()
	if err := t.attach(probes); err != nil {
		return err
	}
	if len(t.mine) == 0 && t.toldUnsafe {
		return fmt.Errorf("pid %d: %w", t.target.PID, ErrUnsafeReturns)
	}
	if err := t.watchLinker(); err != nil {
		t.warn(err)
	}
	t.lastRefresh = time.Now()
	t.lastChange, t.stacks.lookedUp = t.lastRefresh, t.lastRefresh
	t.found = t.describe(time.Since(begin))
	return nil
}

// publish gives the kernel the mappings that were last read. See kernel.Side.Publish.
func (t *Tracer) publish(force bool) error {
	t.warnings = append(t.warnings, t.objects.TakeFailed()...)
	if n := len(t.regions); n > kernel.MaxMappings && !t.crowded {
		t.crowded = true
		t.warn(fmt.Errorf("the process has %d mappings of code, and unwinding knows %d: stacks stop in libraries that were loaded late", n, kernel.MaxMappings))
	}
	pid := uint32(t.target.PID)
	info := kernel.NewInfo(pid, t.regions, t.python)
	info.CodePages, info.StackSeed = t.pages, stackSeed(pid, t.reused)
	return t.kernel.Publish(&t.member.Place, info, t.rows, t.changes, force)
}

func (t *Tracer) attach(probes []*kernel.Probe) error {
	err := t.hook(probes)
	for _, p := range probes {
		if at := t.probes.At(p); at != nil && !slices.Contains(t.mine, at) {
			t.mine = append(t.mine, at)
		}
	}
	return err
}

func (t *Tracer) findPython() {
	t.python, t.found.PythonErr = cpython.Find(t.target)
}

// End says why the trace of the process ended, or Running.
func (t *Tracer) End() End { return t.end }

// PID is the number of the process.
func (t *Tracer) PID() uint32 { return t.member.PID }

// Began reports whether the process, or the program that it runs, began while it was traced.
func (t *Tracer) Began() bool { return t.began }

// About is what the process says of itself, and when it has ended, what it said while it ran.
func (t *Tracer) About() *process.About {
	kept := t.member.about
	if t.target.Alive() {
		if now := t.target.About(); t.target.Alive() {
			return now
		}
	}
	if kept.Name == "" {
		kept.Name = t.member.name
	}
	return &kept
}

// Target is the process.
func (t *Tracer) Target() *process.Process { return t.target }

// decode takes a record of the process. ok false: it cannot be read.
func (t *Tracer) decode(buf []event.Event, raw []byte) (out []event.Event, ok bool) {
	switch {
	case len(raw) >= eventBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_EVENT):
		return append(buf, t.event(decodeEvent(raw))), true
	case len(raw) >= callBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_CALL):
		return append(buf, t.call(decodeCall(raw))), true
	case len(raw) >= freeBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_FREE):
		return append(buf, t.free(decodeFree(raw))), true
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_CODE):
		r, err := decodeCode(raw)
		if err == nil {
			t.stacks.addCode(r, t.target, t.python)
		}
		return buf, err == nil
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_STACK):
		r, err := decodeStack(raw)
		if err == nil {
			t.stack(r)
		}
		return buf, err == nil
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_RAW):
		r, err := decodeStack(raw)
		return buf, err == nil && t.unwindRaw(r) == nil
	}
	return buf, false
}

func (t *Tracer) stack(r stackRecord) {
	if s := event.StackStatus(r.status); s == event.StatusNoMapping || s == event.StatusNoRow {
		t.unknownCode = true
		t.refreshIfDue() // before the addresses are looked up
	}
	t.stacks.add(r, t.knownAt, t.target, t.python)
}

func (t *Tracer) event(r *bpf.TraceRecordEvent) event.Event {
	e := event.Event{
		Time: r.Time + t.suspended, PID: r.Pid, TID: r.Tid, Kind: event.Kind(r.Kind), Layer: event.Layer(r.Layer),
		Device: event.Device{Type: event.DeviceType(r.DeviceType), Index: r.DeviceIndex},
		Addr:   r.Addr, Size: r.Size, Requested: r.Requested, Stream: r.Stream, Allocated: r.Allocated, Reserved: r.Reserved,
		Stack: t.stacks.within(t.raw.stack(event.StackID(r.Stack))), Object: event.Object(r.Object), Handle: event.Unknown, Context: event.Unknown,
	}
	t.received[int(r.Hook)%kernel.MaxHooks]++
	t.watchStacks(&e, event.StackStatus(r.StackStatus))
	if p := t.probes.ByRow[int(r.Call)%kernel.MaxHooks]; p != nil {
		e.Call = p.Row.Name()
	}
	return e
}

// free makes the event of a block that is taken back.
func (t *Tracer) free(r *bpf.TraceRecordFree) event.Event {
	e := event.Event{
		Time: r.Time + t.suspended, PID: r.Pid, TID: r.Tid, Kind: event.KindFree, Layer: event.LayerTorch,
		Device: event.Device{Type: event.DeviceType(r.DeviceType), Index: r.DeviceIndex},
		Addr:   r.Addr, Size: r.Size, Requested: event.Unknown, Stream: event.Unknown, Allocated: r.Allocated, Reserved: r.Reserved,
		Handle: event.Unknown, Context: event.Unknown,
	}
	t.received[int(r.Hook)%kernel.MaxHooks]++
	if p := t.probes.ByRow[int(r.Hook)%kernel.MaxHooks]; p != nil {
		e.Call = p.Row.Name()
	}
	return e
}

// call makes the event of another layer than torch's.
func (t *Tracer) call(r *bpf.TraceRecordCall) event.Event {
	e := t.event(&r.Event)
	e.Handle, e.Context = r.Value[bpf.TraceOperandNameVALUE_HANDLE], r.Context
	p := t.probes.ByRow[int(r.Event.Meaning)%kernel.MaxHooks]
	if p == nil {
		return e
	}
	describeCall(&e, p.Row, &r.Value)
	return e
}

// maxValues is how many values a call has at most.
const maxValues = len(bpf.TraceRecordCall{}.Value)

// describeCall fills in what the values of a call mean.
func describeCall(e *event.Event, row *hook.Row, values *[maxValues]uint64) {
	if row.Addr.From == hook.FromNone {
		e.Addr = 0
	}
	if row.InContext {
		e.Context, e.Handle = e.Handle, event.Unknown
	}
	if row.Ordinal.From != hook.FromNone {
		e.Device.Index = ordinal(values[bpf.TraceOperandNameVALUE_DEVICE])
	}
	dims := values[bpf.TraceOperandNameVALUE_DIMS:]
	if e.Kind == event.KindOutOfMemory {
		forgetResults(row, dims)
	}
	switch e.Kind {
	case event.KindAlloc, event.KindOutOfMemory:
		e.Size, e.Layer = row.EventSize(dims), row.EventLayer(dims)
	case event.KindMap, event.KindUnmap, event.KindTrim:
		e.Size = row.EventSize(dims)
	}
}

// forgetResults takes out what a call that was refused would have given back: it gave nothing, and what is there is where
// it would have been.
func forgetResults(row *hook.Row, dims []uint64) {
	for i := range row.Dims {
		if row.Dims[i].From == hook.FromOut {
			dims[i] = event.Unknown
		}
	}
}

// ordinal is a device's number as far as it can be one; -1: it cannot.
func ordinal(v uint64) int8 {
	if v > math.MaxInt8 {
		return -1
	}
	return int8(v)
}

// Stack implements event.Source.
func (t *Tracer) Stack(id event.StackID) *event.Stack { return t.stacks.stack(id) }

// bootTime is the clock that events carry, nanoseconds.
func bootTime() uint64 { return readClock(unix.CLOCK_BOOTTIME) }

// clocksTogether is how long reading the clocks may take, nanoseconds: we can be interrupted between them.
const clocksTogether = uint64(100 * time.Microsecond)

// suspendedTime is how long the machine was suspended since it was booted, nanoseconds: what CLOCK_BOOTTIME is ahead of
// CLOCK_MONOTONIC, which the kernel side uses. What is below a millisecond is none.
func suspendedTime() uint64 {
	for {
		before, boot := readClock(unix.CLOCK_MONOTONIC), bootTime()
		after := readClock(unix.CLOCK_MONOTONIC)
		if after-before > clocksTogether {
			continue
		}
		if boot < before+uint64(time.Millisecond) {
			return 0
		}
		return boot - before
	}
}

func readClock(clock int32) uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(clock, &ts) // cannot fail with a known clock
	return uint64(ts.Nano())
}
