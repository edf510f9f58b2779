// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"io"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/tracer/hook"
)

// Source supplies the events of all recorded processes. On Linux it is the tracer; tests have their own. Its methods
// are called from the goroutine of Recorder.Run, except Stop and Signal, which may be called from any.
type Source interface {
	// Start finds the processes and attaches to them. It returns once there is something to read, or when ctx is done.
	Start(ctx context.Context) error
	// Read appends events to buf up to its capacity, and waits only briefly for some. The first event of a process that
	// Arrived has not returned yet begins a batch. The error is io.EOF after the last event.
	Read(buf []event.Event) ([]event.Event, error)
	// Arrived returns the newly traced processes, each one once.
	Arrived() []Target
	// Emptied reports whether the last Read returned everything from before it.
	Emptied() bool
	// Now returns the current time on the clock of the events, nanoseconds.
	Now() uint64
	// Lost returns the number of lost events of all processes.
	Lost() uint64
	// Hits returns the outcomes of the runs of every probe, for all processes.
	Hits() ([]figures.Hits, error)
	// Ended reports whether all requested processes have ended.
	Ended() bool
	// Finish means that the recording is about to end: no further process is wanted.
	Finish()
	// Stop ends the events: Read returns the remaining ones, then io.EOF.
	Stop()
	// Signal forwards a signal to the program that Start started. It reports whether there is one.
	Signal(s os.Signal) bool
	// Wait waits for that program and returns its exit code as a shell would. started is false when there is none.
	Wait() (code int, started bool)
	// Close releases everything.
	Close() error
}

// Target is a process of a Source, from the beginning of its trace until it ends or becomes another program. Its
// methods are called from the goroutine of Recorder.Run.
type Target interface {
	Inspector
	PID() int
	// About returns the process's description of itself, such as its command line.
	About() *process.About
	// NameNow returns the name of the program that the process runs now; empty when it has ended.
	NameNow() string
	// UID returns the process's effective user ID.
	UID() (int, error)
	// Alive reports whether the process, possibly as another program, still runs.
	Alive() bool
	// Paused returns why no thread of the process runs now, as process.Pause; empty when one runs, or the process has ended.
	Paused() string
	// Found describes what the attach found.
	Found() *Found
	// Began reports whether the process began while it was traced.
	Began() bool
	// End returns why the process's events ended. It is Running until all of them were read.
	End() End
	// Stack returns a stack of the process's events; nil when not known.
	Stack(id event.StackID) *event.Stack
	// Lost returns the process's share of Source.Lost.
	Lost() uint64
	// OverLimit returns the number of the process's events whose stack exceeded the maximum number of stacks.
	OverLimit() uint64
	// Stacks returns the counts of the process's stacks.
	Stacks() Stacks
	// File opens a file as the process sees it, even after the process has ended; nil when it cannot be read.
	File(path string) io.Reader
	// Close closes the process's files.
	Close()
}

// Exiter is a Target whose exit status can be read.
type Exiter interface {
	// ExitStatus returns the process's exit code, as a shell would. ok is false while it runs, and when the code is not known.
	ExitStatus() (code int, ok bool)
}

// Coster is a Target whose tracing is measured.
type Coster interface {
	// Cost returns what tracing has cost the process, as last measured.
	Cost() figures.Cost
}

// Inspector reads a process's memory and its GPU driver's figures, without a probe. Its methods may be called from any
// goroutine. They return soon after ctx is done.
type Inspector interface {
	// Totals reads the caching allocator's totals. The error wraps reconcile.ErrNoState when there is no allocator.
	Totals(ctx context.Context) ([]Totals, error)
	// AllocatorState reads the caching allocator's blocks and segments. The error wraps reconcile.ErrNoState when there
	// is no allocator.
	AllocatorState(ctx context.Context) (*reconcile.State, error)
	// Allocators returns the number of other allocators that events have shown and that AllocatorState reads too.
	Allocators() int
	// Holders scans for the holders of the live blocks. The error wraps reconcile.ErrNoState when there is no allocator.
	Holders(ctx context.Context) (*Scan, error)
	// Memory reads where the process's GPU memory is.
	Memory(ctx context.Context) *Memory
	// Driver returns what is known so far of the GPU's driver: its version, and a line for each device that the process sees.
	Driver() (version string, devices []string)
}

// Totals are the caching allocator's own totals on one device.
type Totals struct {
	Device              int    // its number
	Allocated, Reserved uint64 // bytes
}

// Scan is the result of one holder scan.
type Scan struct {
	Until uint64 // when the last holder was confirmed, on the clock of the events
	// Join combines the scan with the live set.
	Join func(view *view.View, blocks iter.Seq[heap.Block]) *view.Joined
	// Held reports whether a block that was freed at a time had been seen at a place of the program, and Passing adds
	// up such blocks. nil: places were not checked.
	Held    func(b *heap.Block, freed uint64) bool
	Passing func(view *view.View, freed []holders.Freed) []view.HeldSite

	// NoPython says why no Python could be read, so that the scan knows no holders; empty when one could.
	NoPython string

	freed []holders.Freed // freed blocks for Held, once events and scan were joined
}

// Memory is where a process's GPU memory is, according to the driver and the caching allocator, both at one moment if possible.
type Memory struct {
	Torch     []figures.TorchMemory // nil: no state, or unreadable, see TorchErr
	HasTorch  bool                  // Torch was read
	TorchErr  error
	Stats     []figures.MemoryStats // the allocator's own statistics; nil: not known
	Driver    []figures.DriverUse
	DriverErr error               // why there are no driver figures, or their devices are not known
	Others    []figures.Processes // for devices on which the driver lists the process
	Private   []figures.Range     // segments of private pools; nil: not read
	Limits    []figures.Limit
	Sizes     []figures.DeviceSize // device sizes, as CUDA reported them to the program; nil: not known
	Time      uint64               // time of the reading, on the clock of the events; 0: not known
	Moved     bool                 // the driver's figures changed in the meantime
	Fresh     bool                 // the process had no device memory when the trace began
}

// Stacks counts the stacks of a process.
type Stacks struct {
	Lost uint64 // lost stacks; their events have StatusLost
	Raw  figures.RawStacks
}

// End is the reason why the events of a process ended.
type End uint8

// The reasons.
const (
	Running End = iota
	Stopped     // by Source.Stop
	Exited      // the process ended
	Execed      // the process became another program
)

// Found is what an attach found.
type Found struct {
	Python     string // "3.11.7"; empty: see PythonErr
	PythonErr  error
	NoPython   bool     // PythonErr means that there is none
	Beside     string   // other interpreters of the process, whose lines are not known; empty: none
	PyTorch    string   // "2.15.0"; empty: not found
	CUDA       string   // CUDA version that PyTorch was built for; empty: not known
	Frameworks []string // other frameworks that are loaded, with versions if known: "TensorFlow 2"
	Driver     string   // version in the driver library's name; empty: not known
	Memory     string   // how the process's memory is read
	Hooks      []Hook
	Empty      []string // library files that should be hooked but define none of the functions
	Libraries  int      // files with code
	Rows       int      // unwind rows
	Cached     int      // files whose rows came from the cache
	Unreadable []error  // files through which stacks cannot be unwound
	Multi      bool     // one link holds many probes
	Autograd   error    // why allocations of the backward pass are not joined to lines of forward; nil: they are
	Paused     string   // why the process did not run at the attach, as Target.Paused; empty: it ran
	Took       time.Duration
	Attached   uint64 // just before the first probe was placed, on the clock of the events
}

// Hook is a file whose functions are traced.
type Hook struct {
	Library   *hook.Library
	File      string // path as the process sees it
	Functions int
}

// HooksTorch reports whether functions of PyTorch are traced.
func (f *Found) HooksTorch() bool {
	return slices.ContainsFunc(f.Hooks, func(h Hook) bool { return h.Library == hook.Torch || h.Library == hook.MPS })
}

// Functions returns the number of traced functions.
func (f *Found) Functions() int {
	n := 0
	for i := range f.Hooks {
		n += f.Hooks[i].Functions
	}
	return n
}
