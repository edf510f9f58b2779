// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Package tracer is the live source on Linux: it finds what to probe in a running process, prepares the unwinder, attaches,
// and turns what the kernel sends into events. Nothing runs in the target; when the tracer ends, the kernel removes the
// probes.
package tracer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/directmap"
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
	// decode.DefaultStacks.
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
	records *decode.Process
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
	t := &Tracer{Session: s, member: m, target: m.target, objects: mapped.NewFiles(m.target, s.options.CacheDir, s.rows, s.files)}
	t.records = s.decoder.NewProcess(targetCode{t})
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
	t.lastChange = t.lastRefresh
	t.records.LookedUp()
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
	info.CodePages, info.StackSeed = t.pages, decode.StackSeed(pid, t.reused)
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

// Stack implements event.Source.
func (t *Tracer) Stack(id event.StackID) *event.Stack { return t.records.Stack(id) }

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

// targetCode is what decoding asks of the process.
type targetCode struct{ *Tracer }

func (c targetCode) Memory() process.Memory           { return c.target }
func (c targetCode) Python() *cpython.Runtime         { return c.python }
func (c targetCode) KnownAt(pc uint64) *mapped.Region { return c.knownAt(pc) }
func (c targetCode) Refresh(pc uint64) bool           { return c.refreshFor(pc) }
func (c targetCode) Reused() uint64                   { return c.reused }

// MappedAt implements decode.Code: what came later than the stack is not what it met.
func (c targetCode) MappedAt(pc uint64) *mapped.Region {
	if r := mapped.Find(c.regions, pc); r != nil && r.Since <= c.reached {
		return r
	}
	return nil
}

// Unknown implements decode.Code.
func (c targetCode) Unknown() {
	c.unknownCode = true
	c.refreshIfDue()
}
