// SPDX-License-Identifier: Apache-2.0

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
	"time"

	"github.com/gputrace/gputrace/darwin/macho"
	"github.com/gputrace/gputrace/darwin/procargs"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recorder"
)

// ErrAttach is of processes that dtrace cannot find by itself.
var ErrAttach = errors.New("on macOS a running process is attached to by its number: sudo gputrace -p PID; children, names and --all " +
	"are not possible, gputrace run is")

// attached is the source of processes that run already: a dtrace of each. It sees PyTorch's blocks, requests that
// are refused, Metal's heaps and native stacks; what was allocated before, the device's own figures and Python's
// frames are not seen.
type attached struct {
	options *recorder.Options
	tool    string
	dir     string // of the script
	targets []*traced
	arrived []recorder.Target
	emptied bool
	stopped chan struct{} // closed by Stop
	asked   bool          // dtrace was asked to end
	over    bool
}

func newAttached(o *recorder.Options, c *Config) *attached {
	return &attached{options: o, tool: cmp.Or(c.DTrace, "dtrace"), stopped: make(chan struct{})}
}

// Start implements recorder.Source.
func (s *attached) Start(ctx context.Context) error {
	o := s.options
	if len(o.PIDs) == 0 || o.Name != nil || o.All || o.Children {
		return ErrAttach
	}
	dir, err := os.MkdirTemp("", "gputrace-")
	if err != nil {
		return fmt.Errorf("make a folder for the script: %w", err)
	}
	s.dir = dir
	for _, pid := range o.PIDs {
		if err := s.attach(ctx, pid); err != nil {
			return &recorder.AttachError{PID: pid, Err: fmt.Errorf("%w; a Python 3.14 or later can load a library instead: gputrace -p PID "+
				"--inject", err)}
		}
	}
	return nil
}

func (s *attached) attach(ctx context.Context, pid int) error {
	args, err := procargs.Of(pid)
	if err != nil {
		args = &procargs.Args{}
	}
	if file, err := macho.Open(args.Exe); err == nil {
		if v := file.DTrace(runtime.GOARCH == "arm64"); !v.Works {
			return fmt.Errorf("%s: %s. %s", args.Exe, v.Why, v.Fix)
		}
	}
	script := filepath.Join(s.dir, fmt.Sprint(pid, ".d"))
	t := newTraced(s.options, pid, args)
	sees := "PyTorch's blocks and Metal's heaps"
	err = t.start(ctx, s.tool, script, true)
	if errors.Is(err, errScript) { // names of Metal's classes are those of a version of macOS
		s.options.Observer.Warning(fmt.Errorf("heaps are not seen: %w", err))
		t, sees = newTraced(s.options, pid, args), "PyTorch's blocks"
		err = t.start(ctx, s.tool, script, false)
	}
	if err != nil {
		return err
	}
	s.targets, s.arrived = append(s.targets, t), append(s.arrived, t)
	s.options.Observer.Notice(fmt.Sprintf("gputrace %s · pid %d %s · by dtrace: %s, native stacks only", s.options.Version, pid,
		t.about.Name, sees))
	return nil
}

// Read implements recorder.Source.
func (s *attached) Read(buf []event.Event) ([]event.Event, error) {
	if s.over {
		return buf, io.EOF
	}
	s.askToEnd()
	before, open, waits := len(buf), false, false
	for _, t := range s.targets {
		buf = t.read(buf)
		open, waits = open || !t.ended, waits || len(t.sorted) > 0
	}
	s.emptied = !waits
	if len(buf) > before {
		return buf, nil
	}
	if !open && !waits {
		s.over = true
		return buf, io.EOF
	}
	time.Sleep(pause)
	return buf, nil
}

// askToEnd has dtrace print what it has, and end, once.
func (s *attached) askToEnd() {
	select {
	case <-s.stopped:
	default:
		return
	}
	if s.asked {
		return
	}
	s.asked = true
	for _, t := range s.targets {
		t.stop()
	}
}

// Arrived implements recorder.Source.
func (s *attached) Arrived() []recorder.Target {
	a := s.arrived
	s.arrived = nil
	return a
}

// Emptied implements recorder.Source.
func (s *attached) Emptied() bool { return s.emptied }

// Now implements recorder.Source.
func (s *attached) Now() uint64 { return now() }

// Lost implements recorder.Source.
func (s *attached) Lost() uint64 {
	n := uint64(0)
	for _, t := range s.targets {
		n += t.Lost()
	}
	return n
}

// Hits implements recorder.Source: dtrace counts no runs. What it printed, and what it said it lost.
func (s *attached) Hits() ([]figures.Hits, error) {
	out := []figures.Hits{newHits("dtrace MPSHeapAllocatorImpl::malloc"), newHits("dtrace MPSHeapAllocatorImpl::free"),
		newHits("dtrace, of either")}
	for _, t := range s.targets {
		t.addHits(out)
	}
	return out, nil
}

func newHits(name string) figures.Hits {
	return figures.Hits{Probe: name, Quiet: map[string]uint64{}, Dropped: map[string]uint64{}}
}

// Ended implements recorder.Source.
func (s *attached) Ended() bool {
	for _, t := range s.targets {
		if t.Alive() {
			return false
		}
	}
	return s.over
}

// Finish implements recorder.Source.
func (s *attached) Finish() {}

// Stop implements recorder.Source.
func (s *attached) Stop() {
	select {
	case <-s.stopped:
	default:
		close(s.stopped)
	}
}

// Signal implements recorder.Source: nothing was started.
func (s *attached) Signal(os.Signal) bool { return false }

// Wait implements recorder.Source.
func (s *attached) Wait() (code int, started bool) { return 0, false }

// Close implements recorder.Source.
func (s *attached) Close() error {
	for _, t := range s.targets {
		t.kill()
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}
