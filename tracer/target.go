// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/cells"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/decode"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
	"golang.org/x/sys/unix"
)

// state is the state of a Target between its discovery and its end. The transitions:
//
//	         follow                look, surface
//	 new ─────────────▶ followed ────────────────▶ hooked
//	  │                  ▲    │                      ▲ │
//	  │  start (Add)     │    │                      │ │ retire: the process ended, or runs another program
//	  ├──────────────────┼────┼──────────────────────┘ │
//	  │ drop             │    └───────────┬────────────┘
//	  ▼                  │                ▼
//	ended         forked, find     ended, replaced ──▶ the next program of the process: another Target, followed
//
// A target never leaves the states ended and replaced: the process's next program is another Target, and so is a later process
// with the same PID. Only targets that are or were hooked are returned to callers, who may keep them as long as they like.
type state uint8

const (
	stateNew      state = iota // has a place, and is not traced yet
	stateFollowed              // traced by the kernel side; nothing to hook was found
	stateHooked                // its events arrive
	stateEnded                 // the process ended
	stateReplaced              // the process runs another program
)

// Target is one traced program of a process, from its discovery until the process ends or runs another program. It
// belongs to its Tracer, and its methods are called from the Tracer's goroutine.
type Target struct {
	place  kernel.Place // place in the kernel side's table
	tracer *Tracer
	state  state
	end    End // why no more events arrive

	name    string           // name of the program; empty: not known
	added   bool             // added by user space, not found by the kernel
	root    bool             // named by the user
	execed  bool             // it may have mapped anything: its memory map is not just its parent's
	began   bool             // the program began while it was traced
	arrived bool             // returned to callers
	parent  *Target          // the process whose memory map it was created with; nil: not known, or the map changed
	process *process.Process // nil: not inspected yet
	about   process.About    // of the program; empty: not known
	exit    *exitWatch       // nil: a record reports its end
	earlier losses           // counted by the kernel at earlier places, less those of an earlier program
	lost    losses           // total when last read
	cost    cost
	pages   uint64 // number of code pages, when the mappings were last read

	// For targets that are hooked, or about to be.
	code        *mapped.Files
	records     *decode.Process
	regions     []mapped.Region // current mappings
	known       []mapped.Region // also unloaded ones whose range was not reused, for stacks that still arrive
	python      *cpython.Runtime
	bindTries   int           // searches since PyTorch was loaded
	cells       *cells.Reader // cells of a notebook
	found       Found
	mine        []*kernel.Probe // probes in files that it has mapped
	lastRefresh time.Time
	lastChange  time.Time // time of the last change of the mappings, or of the attach
	unknownCode bool      // a stack contained code in no known mapping, or new code is not known yet
	changes     uint64    // number of code changes, as the kernel counts them, when the mappings were last read
	reached     uint64    // the last of those changes that precedes the records read so far
	reused      uint64    // number of times code replaced other code
	unpublished bool      // the kernel does not have the current regions yet
	missing     uint64    // an address that was in no mapping when they were last read for it
	crowded     bool      // more mappings than the kernel has room for: the warning was shown
	autograd    autograd
	marked      *mapped.File    // the library with mark functions
	marks       []*kernel.Probe // probes in marked
	unread      map[string]bool // files of whose own probes the arguments cannot be read
}

// End is the reason why a trace ended.
type End uint8

// The reasons.
const (
	Running End = iota
	Stopped     // Stop was called
	Exited      // the target ended
	Execed      // the target became another program
)

// instanceShift keeps apart the stacks of programs that had the same PID in turn.
const instanceShift = 20

// close closes the watch for the process's end.
func (t *Target) close() {
	if t.exit != nil {
		t.exit.close()
		t.exit = nil
	}
}

// losses counts events and stacks that did not fit the ring, or were lost for other reasons.
type losses struct{ events, stacks uint64 }

// lostNow returns the program's losses so far.
func (t *Target) lostNow() losses {
	now := t.tracer.kernel.TracedAt(t.place.Index)
	return losses{t.earlier.events + now.Lost, t.earlier.stacks + now.StacksLost}
}

// exitWatch reports whether a process has ended. Its descriptor refers to the process itself, so a reused PID does not matter.
type exitWatch struct{ fd int }

func watchExit(p *process.Process) (*exitWatch, error) {
	fd, err := p.Pidfd()
	if err != nil {
		return nil, err
	}
	return &exitWatch{fd}, nil
}

func (w *exitWatch) ended() bool {
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (w *exitWatch) close() { _ = unix.Close(w.fd) }

// PID returns the PID of the process.
func (t *Target) PID() uint32 { return t.place.PID }

// Process returns the process.
func (t *Target) Process() *process.Process { return t.process }

// Found describes what the attach found.
func (t *Target) Found() *Found { return &t.found }

// End returns why the trace of the process ended, or Running.
func (t *Target) End() End { return t.end }

// Began reports whether the process, or the program that it runs, began while it was traced.
func (t *Target) Began() bool { return t.began }

// About returns the process's description of itself. After the process has ended, or while it is ending, it is the
// description from before: an ending process frees its memory some time before the kernel reports its end.
func (t *Target) About() *process.About {
	kept := t.about
	if t.process.Alive() {
		if now := t.process.About(); t.process.Alive() && len(now.Cmdline) >= min(1, len(kept.Cmdline)) {
			if len(now.Environ) == 0 {
				now.Environ = kept.Environ
			}
			return now
		}
	}
	if kept.Name == "" {
		kept.Name = t.name
	}
	return &kept
}

// Stack implements event.Source.
func (t *Target) Stack(id event.StackID) *event.Stack { return t.records.Stack(id) }

// CellText returns the text of a notebook's cell, by the name of its file in stacks. ok is false if the name is not a
// cell's, or the cell has no text.
func (t *Target) CellText(name string) (text string, ok bool) { return t.cells.Text(name) }

// prepare creates the parts of a target that is hooked.
func (t *Target) prepare() {
	tr := t.tracer
	t.code = mapped.NewFiles(t.process, tr.options.CacheDir, tr.rows, tr.files)
	t.cells = cells.NewReader(t.process)
	t.records = tr.decoder.NewProcess(targetCode{t})
	t.reused = tr.instances[t.place.PID] << instanceShift
}

// start hooks the libraries that a new target has mapped, and lets the kernel side trace it. It prepares everything for
// the unwinder before it places the first probe, so that the first event has a stack.
func (t *Target) start() error {
	begin := time.Now()
	t.prepare()
	t.pages = t.process.CodePages()
	maps, err := t.process.Maps()
	if err != nil {
		return err
	}
	if err := anything(t.process, maps); err != nil {
		return err
	}
	t.followMappings(maps)
	t.findPython()
	t.findAutograd() // concurrently with loading the programs; publish uses the result
	probes, err := t.discover()
	if err := errors.Join(err, t.tracer.Ready()); err != nil {
		return err
	}
	if err := t.publish(true); err != nil {
		return err
	}
	if err := t.follow(); err != nil {
		return err
	}
	t.found.Attached = bootTime()
	if err := t.attach(probes); err != nil {
		return err
	}
	if len(t.mine) == 0 && t.tracer.saidUnsafe {
		return fmt.Errorf("pid %d: %w", t.process.PID, ErrUnsafeReturns)
	}
	if err := t.tracer.watchLinkers(t.process, t.regions); err != nil {
		t.tracer.warn(err)
	}
	t.lastRefresh = time.Now()
	t.lastChange = t.lastRefresh
	t.records.LookedUp()
	t.found = t.describe(time.Since(begin))
	return nil
}

// follow lets the kernel side trace a target.
func (t *Target) follow() error {
	if err := t.tracer.kernel.Follow(&t.place, t.tracer.options.Children); err != nil {
		return err
	}
	if !t.process.Alive() { // its PID must not become another process's
		return fmt.Errorf("pid %d has ended: %w", t.place.PID, process.ErrNotExist)
	}
	t.state = stateFollowed
	return nil
}

// open opens the process, which may have ended.
func (t *Target) open() {
	if t.process != nil {
		return
	}
	p, err := process.Open(int(t.place.PID))
	if err != nil {
		t.process = process.Ended(int(t.place.PID))
		return
	}
	t.process = p
	if about := p.About(); p.Alive() {
		t.about = *about
	}
	t.exit, _ = watchExit(p) // without it, a record reports the end
}

// publish writes the current mappings to the kernel. See kernel.Side.Publish.
func (t *Target) publish(force bool) error {
	t.tracer.warnings = append(t.tracer.warnings, t.code.TakeFailed()...)
	if n := len(t.regions); n > kernel.MaxMappings && !t.crowded {
		t.crowded = true
		t.tracer.warn(fmt.Errorf("the process has %d mappings of code, and unwinding knows %d: stacks stop in libraries that were loaded late",
			n, kernel.MaxMappings))
	}
	pid := t.place.PID
	info := kernel.NewInfo(pid, t.regions, t.python)
	t.findAutograd().describe(info)
	info.CodePages, info.StackSeed = t.pages, decode.StackSeed(pid, t.reused)
	return t.tracer.kernel.Publish(&t.place, info, t.tracer.rows, t.changes, force)
}

// attach places probes, and records which of them are in the target's files.
func (t *Target) attach(probes []*kernel.Probe) error {
	err := t.tracer.hook(probes, t.tracer.scope(t.process))
	for _, p := range probes {
		if at := t.tracer.probes.At(p); at != nil && !slices.Contains(t.mine, at) {
			t.mine = append(t.mine, at)
		}
	}
	return err
}

// findPython finds the interpreter whose frames are walked, and reports whether it is another one than before. One that was found is kept
// if the search fails.
func (t *Target) findPython() bool {
	found, err := cpython.Find(t.process)
	if err != nil && t.python != nil {
		return false
	}
	before := t.python
	t.python, t.found.PythonErr = found, err
	return found != nil && (before == nil || before.Address != found.Address || before.Bound != found.Bound)
}

// bindTries is how often the interpreter is searched for once PyTorch's library for Python is there: the dynamic linker reports a library
// before it has bound it.
const bindTries = 20

// maybeBound reports whether PyTorch may be bound to another interpreter than the one that was chosen before PyTorch was loaded.
func (t *Target) maybeBound() bool {
	binds := func(r mapped.Region) bool { return cpython.Binds(r.Path) }
	if t.python == nil || t.python.Bound || t.bindTries == bindTries || !slices.ContainsFunc(t.regions, binds) {
		return false
	}
	t.bindTries++
	return true
}

// targetCode implements decode.Code for a target.
type targetCode struct{ target *Target }

func (c targetCode) Memory() process.Memory { return c.target.process }

func (c targetCode) Python() *cpython.Runtime { return c.target.python }

func (c targetCode) FileName(file string) string { return c.target.cells.Name(file) }

func (c targetCode) KnownAt(pc uint64) *mapped.Region { return c.target.knownAt(pc) }

func (c targetCode) Refresh(pc uint64) bool { return c.target.refreshFor(pc) }

func (c targetCode) Reused() uint64 { return c.target.reused }

func (c targetCode) Allocates() { c.target.wantAutograd() }

// MappedAt implements decode.Code. It ignores code that is newer than the stack.
func (c targetCode) MappedAt(pc uint64) *mapped.Region {
	if r := mapped.Find(c.target.regions, pc); r != nil && r.Since <= c.target.reached {
		return r
	}
	return nil
}

// Unknown implements decode.Code.
func (c targetCode) Unknown() {
	c.target.unknownCode = true
	c.target.refreshIfDue()
}
