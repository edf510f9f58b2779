// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package local is the recorder's source of events on this machine: it finds processes or starts a program, attaches
// the tracer to them, and reads their memory and the GPU driver's figures.
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/footprint"
	"github.com/gputrace/gputrace/internal/limits"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
)

// live is the Source for processes of this machine.
type live struct {
	options    *recorder.Options
	ctx        context.Context // done at Close
	close      context.CancelFunc
	tracer     attacher // nil before Start
	attach     func(*tracer.Options) attacher
	driver     *Driver
	search     *search // nil: nothing to search for
	program    atomic.Pointer[launched]
	early      atomic.Pointer[os.Signal] // a signal for the program that arrived before it was started
	arrived    []recorder.Target
	inspectors map[uint32]*inspector // one per arrived process, by PID
	shown      poolKey               // the last allocator that was noted
	patience   time.Duration         // how long events may still wait for the driver's list of devices
	refilled   time.Time             // when that was last increased, for a source that runs forever
	waited     bool                  // the single process had nothing to trace at first
	finished   bool                  // no further process is searched for
	over       bool                  // all events were read
}

// Open returns the source of the processes that options select. It attaches to nothing before Start.
func Open(o *recorder.Options) (recorder.Source, error) {
	ctx, cancel := context.WithCancel(context.Background())
	attach := func(o *tracer.Options) attacher { return kernel{tracer.Open(o)} }
	return &live{
		options: o, ctx: ctx, close: cancel, attach: attach, driver: OpenDriver(), inspectors: map[uint32]*inspector{}, patience: devicePatience,
	}, nil
}

// KeepSmall keeps the memory of this program small until ctx is done: it sets the garbage collector's percentage and memory limit, which
// are the whole program's, and gives mapped files back. A program that does little beside recording calls it; a library does not.
func KeepSmall(ctx context.Context) { footprint.Keep(ctx) }

// tracerOptions returns the tracer's options.
func tracerOptions(o *recorder.Options) (*tracer.Options, error) {
	memory, err := directmap.ParseMode(o.Memory)
	return &tracer.Options{
		RingBytes: o.RingBytes, FreeStacks: o.FreeStacks, MaxStacks: o.MaxStacks, CacheDir: o.CacheDir, Memory: memory,
		Job: o.Many(), Children: o.Children, Steps: !o.NoSteps, Forever: o.Forever, CPUBudget: o.CPUBudget, NodeCPUBudget: o.NodeCPUBudget,
	}, err
}

// Start implements Source.
func (l *live) Start(ctx context.Context) error {
	if low := limits.Check(); low != nil {
		return &recorder.AttachError{PID: l.firstPID(), Err: low}
	}
	options, err := tracerOptions(l.options)
	if err != nil {
		return err
	}
	if !l.options.Many() {
		if err := l.awaitLibrary(ctx); err != nil {
			return err
		}
	}
	for _, c := range feature.SystemCalls() {
		if c.Err != nil && c.Without != "" {
			l.warn(fmt.Errorf("the system call %s is refused to gputrace (%w): %s; gputrace doctor says how to allow it", c.Name, c.Err, c.Without))
		}
	}
	if err := l.fit(options); err != nil {
		return err
	}
	l.tracer = l.attach(options)
	if l.options.Many() { // otherwise it is loaded while the process is inspected
		if err := l.tracer.Ready(); err != nil {
			return &recorder.AttachError{PID: l.firstPID(), Err: err}
		}
	}
	if l.options.Command != nil {
		err = l.startProgram()
	} else {
		err = l.addAll()
	}
	if err == nil {
		l.dropRights()
	}
	return err
}

// fit reduces the tracer's memory to the available memory. The error means that there is too little.
func (l *live) fit(o *tracer.Options) error {
	ring := cmp.Or(o.RingBytes, tracer.DefaultRing)
	b, err := limits.FitMemory(ring, ring != tracer.DefaultRing, tracer.KernelMemory)
	if err != nil {
		return &recorder.AttachError{PID: l.firstPID(), Err: err}
	}
	o.RingBytes = b.Ring
	if said := b.Smaller(ring); said != "" {
		l.options.Observer.Notice(said)
	}
	return nil
}

// awaitLibrary waits until the single process has something to trace; without Wait, it returns an error if there is nothing.
func (l *live) awaitLibrary(ctx context.Context) error {
	pid := l.firstPID()
	p, err := process.Open(pid)
	if err != nil {
		return &recorder.AttachError{PID: pid, Err: err}
	}
	for waiting := false; ; waiting = true {
		err := tracer.Check(p)
		if err == nil {
			return nil
		}
		if waiting && !p.Alive() {
			return endedUnused(pid)
		}
		if !l.options.Wait || !errors.Is(err, tracer.ErrNoCUDA) {
			return &recorder.AttachError{PID: pid, Err: p.Blame(err)}
		}
		if l.waited = true; !waiting {
			l.say("waiting for pid %d (%s) to load a CUDA library", pid, p.Name())
		}
		select {
		case <-ctx.Done():
			return &recorder.Outcome{Kind: recorder.ErrInterrupted, Text: "interrupted before there was anything to trace"}
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func endedUnused(pid int) error {
	return &recorder.Outcome{Kind: recorder.ErrEndedEarly, Text: fmt.Sprintf("pid %d ended before it used CUDA", pid)}
}

// firstPID returns the first process named by the user, for messages; 0: none.
func (l *live) firstPID() int {
	if len(l.options.PIDs) == 0 {
		return 0
	}
	return l.options.PIDs[0]
}

func (l *live) say(format string, args ...any) {
	l.options.Observer.Notice(fmt.Sprintf(format, args...))
}

func (l *live) warn(err error) { l.options.Observer.Warning(err) }

// arrive creates the target of a traced process.
func (l *live) arrive(t traced) {
	n := &target{inspector: newInspector(l.ctx, t.Process(), l.driver), source: l, traced: t}
	n.files, _ = t.Process().Root()     // nil: not readable
	n.exit, _ = t.Process().WatchExit() // nil: it has ended
	n.cwd = t.About().Cwd
	n.paused = n.Paused()
	if now := time.Now(); l.options.Forever {
		// The others have had theirs. If many arrive together, all events must not wait for each of them.
		l.patience = min(devicePatience, l.patience+now.Sub(l.refilled)/patienceShare)
		l.refilled = now
	}
	l.arrived = append(l.arrived, n)
	l.inspectors[uint32(n.PID())], l.shown = n.inspector, poolKey{}
}

// Read implements Source.
func (l *live) Read(buf []event.Event) ([]event.Event, error) {
	if !l.finished {
		l.searchAgain()
	}
	buf, err := l.tracer.Read(buf)
	for _, t := range l.tracer.Arrived() {
		l.arrive(t)
	}
	l.place(buf)
	for _, n := range l.tracer.Notices() {
		l.say("  %s", n)
	}
	for _, w := range l.tracer.Warnings() {
		l.warn(w)
	}
	if err != nil {
		l.over = true
		l.warnChildren()
	}
	return buf, err
}

// place notes the allocators that events name, and sets the device of events whose calls do not pass it, if their process can only
// have cuda:0. Most calls of the driver do not pass it: CUDA's runtime makes its context current by functions that are not exported.
func (l *live) place(events []event.Event) {
	for i := range events {
		e := &events[i]
		if e.Layer == event.LayerAllocator {
			l.show(e)
		}
		if e.Layer != event.LayerDevice || e.Device.Index >= 0 || e.Device.Type != event.DeviceCUDA {
			continue
		}
		if i := l.inspectors[e.PID]; i != nil && l.one(i.first) {
			e.Device.Index = 0
		}
	}
}

// devicePatience is the total time for which events wait in the ring for the driver's answer; the ring can hold events
// of some seconds. The driver takes a tenth of a second, and without the wait a program that begins with its first call
// would have its first memory on an unknown device.
const (
	devicePatience = 500 * time.Millisecond
	// patienceShare limits the wait of a source that runs forever to 1/patienceShare of the time.
	patienceShare = 20
)

// one reports whether a process can only have one device.
func (l *live) one(look *firstLook) bool {
	if !look.answered() && l.patience > 0 {
		begun := time.Now()
		select {
		case <-look.done:
		case <-time.After(l.patience):
		}
		l.patience -= time.Since(begun)
	}
	return look.answered() && look.single
}

// warnChildren warns about processes for which there was no place.
func (l *live) warnChildren() {
	if n := l.tracer.ChildrenLost(); n > 0 {
		l.warn(fmt.Errorf("%d new processes were not traced: more than %d at a time", n, tracer.MaxChildren))
	}
}

// Arrived implements Source.
func (l *live) Arrived() []recorder.Target {
	a := l.arrived
	l.arrived = nil
	return a
}

// Emptied implements Source.
func (l *live) Emptied() bool { return l.tracer.Emptied() }

// Now implements Source: CLOCK_BOOTTIME.
func (l *live) Now() uint64 { return bootTime() }

// Lost implements Source.
func (l *live) Lost() uint64 { return l.tracer.Lost() }

// Hits implements Source.
func (l *live) Hits() ([]figures.Hits, error) {
	return l.tracer.Hits()
}

// Ended implements Source.
func (l *live) Ended() bool { return l.tracer.Ended() }

// Finish implements Source.
func (l *live) Finish() { l.finished = true }

// Stop implements Source.
func (l *live) Stop() { l.tracer.Stop() }

// Close implements Source.
func (l *live) Close() error {
	l.close()
	if l.tracer == nil {
		return nil
	}
	return l.tracer.Close()
}

// target is a traced process of this machine.
type target struct {
	*inspector
	source *live
	traced traced
	cwd    string        // working directory at the attach
	paused string        // why it was paused at the attach
	files  *process.Root // usable after the process has ended; nil: not readable
	exit   *process.ExitWatch
}

func (t *target) PID() int { return int(t.traced.PID()) }

func (t *target) About() *process.About { return t.traced.About() }

func (t *target) UID() (int, error) { return t.process.UID() }

func (t *target) NameNow() string { return t.process.Name() }

func (t *target) Alive() bool { return t.process.Alive() }

func (t *target) Paused() string { return t.process.Paused().String() }

// exitTime is how long a process may take from the exit of its last thread to its end.
const exitTime = 2 * time.Second

// ExitStatus implements recorder.Exiter.
func (t *target) ExitStatus() (code int, ok bool) {
	if t.exit == nil {
		return 0, false
	}
	return t.exit.Status(exitTime)
}

func (t *target) Began() bool { return t.traced.Began() }

func (t *target) Stack(id event.StackID) *event.Stack { return t.traced.Stack(id) }

func (t *target) Lost() uint64 { return t.traced.Lost() }

func (t *target) OverLimit() uint64 { return t.traced.StacksOverLimit() }

// Cost implements recorder.Coster.
func (t *target) Cost() figures.Cost { return t.traced.Cost() }

// End implements Target. For a single process, it is the end of the recording.
func (t *target) End() recorder.End {
	switch end := t.traced.End(); {
	case end == tracer.Running, !t.source.over && (end == tracer.Stopped || !t.source.options.Many()):
		return recorder.Running
	case end == tracer.Exited:
		return recorder.Exited
	case end == tracer.Execed:
		return recorder.Execed
	default:
		return recorder.Stopped
	}
}

// Memory implements Target. A program that was started here had no device memory before.
func (t *target) Memory(ctx context.Context) *recorder.Memory {
	m := t.inspector.Memory(ctx)
	m.Fresh = m.Fresh || t.source.program.Load() != nil
	return m
}

// Stacks implements Target.
func (t *target) Stacks() recorder.Stacks {
	return recorder.Stacks{Lost: t.traced.StackRecordsLost(), Raw: t.traced.RawStacks()}
}

// Found implements Target.
func (t *target) Found() *recorder.Found {
	f := t.traced.Found()
	memory := t.source.tracer.Memory()
	out := &recorder.Found{
		Python: f.Python, Beside: f.Beside, PythonErr: f.PythonErr, NoPython: errors.Is(f.PythonErr, tracer.ErrNoPython), Autograd: f.Autograd,
		PyTorch: f.PyTorch, CUDA: f.CUDA, Frameworks: f.Frameworks, Driver: f.Driver, Memory: memory.String(),
		Empty: f.Empty, Libraries: f.Libraries, Rows: f.Rows, Cached: f.Cached, Unreadable: f.Unreadable, Multi: f.Multi,
		Paused: t.paused, Took: f.Took, Attached: f.Attached,
	}
	at := map[string]int{}
	for _, p := range f.Probes {
		key := p.Library.Name + " " + p.File
		i, ok := at[key]
		if !ok {
			i = len(out.Hooks)
			at[key] = i
			out.Hooks = append(out.Hooks, recorder.Hook{Library: p.Library, File: p.File})
		}
		out.Hooks[i].Functions++
	}
	return out
}

// File implements Target.
func (t *target) File(path string) io.Reader {
	if text, ok := t.traced.CellText(path); ok {
		return strings.NewReader(text)
	}
	if !filepath.IsAbs(path) {
		dir := t.process.Cwd()
		if dir == "" {
			dir = t.cwd
		}
		path = filepath.Join(dir, path)
	}
	if t.files == nil {
		return nil
	}
	f, err := t.files.Open(path)
	if err != nil {
		return nil
	}
	return f
}

// Close implements Target.
func (t *target) Close() {
	if t.source.inspectors[uint32(t.PID())] == t.inspector {
		delete(t.source.inspectors, uint32(t.PID()))
	}
	if t.files != nil {
		t.files.Close()
	}
	if t.exit != nil {
		t.exit.Close()
		t.exit = nil
	}
}
