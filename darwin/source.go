// SPDX-License-Identifier: Apache-2.0

// Package darwin is the live source of events on macOS: a program is started with a library of ours in it (shim), which writes what it
// sees into a ring that is read here. Nothing here but the library itself depends on macOS: tests run all of it on Linux, with the
// library that ships, on a Metal and a PyTorch of their own.
package darwin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/darwin/shim"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recorder"
)

const (
	pause      = 10 * time.Millisecond // between two looks at empty rings
	lookEvery  = 50 * time.Millisecond // for rings of new processes
	maxTargets = 1024
)

// Config is what differs where it is tested.
type Config struct {
	// Library is the Mach-O library to insert. nil: the one that gputrace for macOS contains.
	Library []byte
	// Environ are further variables of the program.
	Environ []string
	// DTrace is the program by which running processes are attached to. Empty: dtrace, of PATH.
	DTrace string
	// Python runs sys.remote_exec. Empty: the program of the process.
	Python string
}

// source is the recorder's Source.
type source struct {
	options *recorder.Options
	config  Config
	dir     string // of the library and the rings
	program atomic.Pointer[launched]
	late    int // the process that the library was loaded into; 0: none, a program was started
	targets []*target
	arrived []recorder.Target
	known   map[string]bool // files of the folder that were looked at
	looked  time.Time
	queue   []event.Event // that did not fit the last Read
	emptied bool
	stopped atomic.Bool
	over    bool // all events were read
	lost    uint64
}

// Open makes the source of the program, or of the running processes, that options name. Nothing runs before its Start. config may be nil.
func Open(o *recorder.Options, config *Config) recorder.Source {
	s := &source{options: o, known: map[string]bool{}}
	if config != nil {
		s.config = *config
	}
	if o.Command == nil && !o.Inject {
		return newAttached(o, &s.config)
	}
	if s.config.Library == nil {
		s.config.Library = shim.Library
	}
	return s
}

// Start implements recorder.Source.
func (s *source) Start(ctx context.Context) error {
	if len(s.config.Library) == 0 {
		return fmt.Errorf("this gputrace is for %s and has no library for macOS", runtime.GOOS)
	}
	parent := ""
	if s.options.Command == nil {
		parent = "/tmp" // a folder for temporary files can be closed to other users, as that of the process may be
	}
	dir, err := os.MkdirTemp(parent, "gputrace-")
	if err != nil {
		return fmt.Errorf("make a folder for the library: %w", err)
	}
	s.dir = dir
	library := filepath.Join(dir, ShimName)
	if err := os.WriteFile(library, s.config.Library, 0o755); err != nil {
		return fmt.Errorf("write the library: %w", err)
	}
	if s.options.Command == nil {
		return s.inject(ctx)
	}
	return s.launch(library)
}

// launch starts the program.
func (s *source) launch(library string) error {
	program, err := resolve(s.options.Command)
	if err != nil {
		return &recorder.LaunchError{Err: err}
	}
	if program.warning != "" {
		s.options.Observer.Warning(errors.New(program.warning))
	}
	p, err := program.start(append(s.config.Environ, "DYLD_INSERT_LIBRARIES="+library, "GPUTRACE_DIR="+s.dir,
		fmt.Sprintf("GPUTRACE_RING_BYTES=%d", s.options.RingBytes)))
	if err != nil {
		return err
	}
	s.program.Store(p)
	s.options.Observer.Notice(fmt.Sprintf("gputrace %s · pid %d %s · a library of ours runs in the program (%s)", s.options.Version,
		p.cmd.Process.Pid, filepath.Base(program.path), ShimName))
	return nil
}

// Read implements recorder.Source.
func (s *source) Read(buf []event.Event) ([]event.Event, error) {
	if s.over {
		return buf, io.EOF
	}
	if len(s.queue) == 0 {
		last := s.stopped.Load() || s.ended() // before the rings are read: what was written before is then in them
		s.look(last)
		more := s.readRings()
		s.emptied = !more
		if !more && len(s.queue) == 0 {
			if last {
				s.finish()
				return buf, io.EOF
			}
			time.Sleep(pause)
		}
	}
	n := min(cap(buf)-len(buf), len(s.queue))
	buf = append(buf, s.queue[:n]...)
	s.queue = s.queue[n:]
	s.emptied = s.emptied && len(s.queue) == 0
	return buf, nil
}

// ended reports whether the program and all processes that were seen have ended.
func (s *source) ended() bool {
	p := s.program.Load()
	switch {
	case s.late != 0 && running(s.late), s.late == 0 && (p == nil || p.running()):
		return false
	}
	for _, t := range s.targets {
		if t.Alive() {
			return false
		}
	}
	return true
}

// look finds the rings of processes that are new.
func (s *source) look(now bool) {
	if !now && time.Since(s.looked) < lookEvery {
		return
	}
	s.looked = time.Now()
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return // the folder was removed: what was found is still read
	}
	slices.SortStableFunc(files, func(a, b os.DirEntry) int {
		return len(a.Name()) - len(
			b.Name())
	}) // a process's second ring behind its first
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".ring") && !s.known[name] && len(s.targets) < maxTargets {
			s.add(name)
		}
	}
}

func (s *source) add(name string) {
	r, err := ring.Open(filepath.Join(s.dir, name))
	if errors.Is(err, ring.ErrNotStarted) {
		return
	}
	s.known[name] = true
	if err != nil {
		s.options.Observer.Warning(err)
		return
	}
	t := newTarget(s, r)
	for _, other := range s.targets {
		if other.PID() == t.PID() && other.next == nil {
			t.before, other.next = other, t
		}
	}
	s.targets = append(s.targets, t)
}

// readRings decodes what is in the rings. more says that there is more than was read.
func (s *source) readRings() (more bool) {
	s.lost = 0
	for _, t := range s.targets {
		if t.before != nil && t.before.end == recorder.Running {
			t.before.become(len(s.queue) == 0)
			more = true
			continue
		}
		again, err := t.read(&s.queue)
		if err != nil {
			s.options.Observer.Warning(fmt.Errorf("pid %d: %w", t.PID(), err))
		}
		more = more || again
		s.lost += t.Lost()
		if !t.arrived && t.decoder.happened { // its version of Python is known with the first stack
			t.arrived = true
			s.arrived = append(s.arrived, t)
		}
	}
	return more
}

// finish notes the end of all events, and says why there are none.
func (s *source) finish() {
	s.over = true
	for _, t := range s.targets {
		t.finish()
	}
	for _, t := range s.targets {
		if t.arrived {
			return
		}
	}
	loaded, err := filepath.Glob(filepath.Join(s.dir, "*.loaded"))
	full, _ := filepath.Glob(filepath.Join(s.dir, "*.full")) // of a pattern that is right there is no error
	switch {
	case len(full) > 0:
		s.options.Observer.Warning(fmt.Errorf("there was no room for the events of the program in %s: nothing was recorded; TMPDIR names "+
			"another folder", s.dir))
	case s.late != 0, err == nil && len(loaded) > 0:
		s.options.Observer.Warning(errors.New("the program has allocated nothing by Metal" + s.since()))
	case !s.stopped.Load():
		s.options.Observer.Warning(fmt.Errorf("the library was not loaded into the program: macOS removes DYLD_INSERT_LIBRARIES for "+
			"programs of its own and for hardened ones; gputrace doctor %s says which this is", s.options.Command[0]))
	}
}

// since says from when on, where that is not the beginning.
func (s *source) since() string {
	if s.late == 0 {
		return ""
	}
	return " since the attach"
}

// Arrived implements recorder.Source.
func (s *source) Arrived() []recorder.Target {
	a := s.arrived
	s.arrived = nil
	return a
}

// Emptied implements recorder.Source.
func (s *source) Emptied() bool { return s.emptied }

// Clocks that go on while the machine sleeps: clock_gettime(2) of Linux and of macOS (time.h).
const (
	clockBootTime     = 7
	clockMonotonicRaw = 4
)

// Now implements recorder.Source: the clock of the library.
func (s *source) Now() uint64 { return now() }

func now() uint64 {
	var ts unix.Timespec
	clock := int32(clockMonotonicRaw)
	if runtime.GOOS == "linux" {
		clock = clockBootTime
	}
	if unix.ClockGettime(clock, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}

// Lost implements recorder.Source.
func (s *source) Lost() uint64 { return s.lost }

// Hits implements recorder.Source: the sum over all processes.
func (s *source) Hits() ([]figures.Hits, error) {
	var out []figures.Hits
	for _, t := range s.targets {
		hits, err := t.hits()
		if err != nil {
			return out, err
		}
		if out == nil {
			out = hits
			continue
		}
		for i := range hits {
			addHits(&out[i], &hits[i])
		}
	}
	return out, nil
}

func addHits(to, h *figures.Hits) {
	to.Hits, to.Emitted, to.Received = to.Hits+h.Hits, to.Emitted+h.Emitted, to.Received+h.Received
	for reason, n := range h.Quiet {
		to.Quiet[reason] += n
	}
	for reason, n := range h.Dropped {
		to.Dropped[reason] += n
	}
}

// Ended implements recorder.Source.
func (s *source) Ended() bool { return s.over && !s.stopped.Load() }

// Finish implements recorder.Source.
func (s *source) Finish() {}

// Stop implements recorder.Source.
func (s *source) Stop() { s.stopped.Store(true) }

// Signal implements recorder.Source.
func (s *source) Signal(sig os.Signal) bool {
	p := s.program.Load()
	if p == nil {
		return false
	}
	p.signal(sig)
	return true
}

// Wait implements recorder.Source.
func (s *source) Wait() (code int, started bool) {
	p := s.program.Load()
	if p == nil {
		return 0, false
	}
	return p.wait(), true
}

// Close implements recorder.Source. A program that still runs goes on: what it writes is lost.
func (s *source) Close() error {
	var errs []error
	for _, t := range s.targets {
		errs = append(errs, t.ring.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// watermark is how much of the recommended size PyTorch lets its allocator have: a ratio from the environment, else 1.7; 0: all
// (ATen/mps/MPSAllocator.h, default_high_watermark_ratio). ok is false when it is no number.
func watermark(environ []string) (ratio float64, ok bool) {
	const name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO="
	value := ""
	for _, v := range environ {
		if strings.HasPrefix(v, name) {
			value = v[len(name):]
		}
	}
	_, err := fmt.Sscan(cmp.Or(value, "1.7"), &ratio)
	return ratio, err == nil && ratio >= 0
}
