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

// Source has the events of all processes that are recorded. On Linux it is the tracer; a test makes its own. Its methods are
// called from the goroutine of Recorder.Run, but for Stop and Signal, which may be called from any.
type Source interface {
	// Start finds the processes and attaches to them. It returns once there is something to read, or when ctx is done.
	Start(ctx context.Context) error
	// Read appends events to buf up to its capacity, and waits for some only shortly. The first event of a process that Arrived
	// has not returned before begins a batch. The error is io.EOF after the last event.
	Read(buf []event.Event) ([]event.Event, error)
	// Arrived returns, once each, the processes that are traced from now on.
	Arrived() []Target
	// Emptied reports whether the last Read returned everything from before it.
	Emptied() bool
	// Now is the present time on the clock of the events, nanoseconds.
	Now() uint64
	// Lost is the number of events of all processes that were lost so far.
	Lost() uint64
	// Hits is what became of the runs of every probe, by all processes.
	Hits() ([]figures.Hits, error)
	// Ended reports whether all processes that were asked for have ended.
	Ended() bool
	// Finish says that no further process is wanted: the recording is about to end.
	Finish()
	// Stop ends the events: Read returns those that are there, then io.EOF.
	Stop()
	// Signal passes a signal on to the program that Start has started. It reports whether there is one.
	Signal(s os.Signal) bool
	// Wait waits for that program and returns its exit code, as a shell says it. started is false when there is none.
	Wait() (code int, started bool)
	// Close releases everything.
	Close() error
}

// Target is a process of a Source, from when it is traced until it ends or becomes another program. Its methods are called from
// the goroutine of Recorder.Run.
type Target interface {
	Inspector
	PID() int
	// About is what the process says, or said, of itself.
	About() *process.About
	// NameNow is the name of the program that it runs now; empty when it has ended.
	NameNow() string
	// UID is its effective user.
	UID() (int, error)
	// Alive reports whether the process, or what has become of it, still runs.
	Alive() bool
	// Paused says why no thread of it runs now, as process.Pause does; empty: it runs, or has ended.
	Paused() string
	// Found describes the attach.
	Found() *Found
	// Began reports whether it began while it was traced.
	Began() bool
	// End says why its events ended. It is Running until they were all read.
	End() End
	// Stack returns a stack of its events; nil: it is not known.
	Stack(id event.StackID) *event.Stack
	// Lost is how many of its events were lost so far, of those that Source.Lost counts.
	Lost() uint64
	// OverLimit is how many of its events have a stack that was one too many.
	OverLimit() uint64
	// Stacks says how its stacks fared.
	Stacks() Stacks
	// File opens a file as the process sees it, also after its end; nil: it cannot be read.
	File(path string) io.Reader
	// Close releases its files.
	Close()
}

// Exiter is a Target whose exit status can be read.
type Exiter interface {
	// ExitStatus is how the process ended, as a shell says it. ok is false while it runs, and if that is not known.
	ExitStatus() (code int, ok bool)
}

// Inspector reads what a process's own memory and its GPU's driver say, without a probe. Its methods may be called from any
// goroutine. They return soon after ctx is done.
type Inspector interface {
	// Totals are those of the caching allocator. The error wraps reconcile.ErrNoState where there is none.
	Totals(ctx context.Context) ([]Totals, error)
	// AllocatorState is the caching allocator's blocks and segments. The error wraps reconcile.ErrNoState where there are none.
	AllocatorState(ctx context.Context) (*reconcile.State, error)
	// Holders scans for what holds the live blocks. The error wraps reconcile.ErrNoState where there are none.
	Holders(ctx context.Context) (*Scan, error)
	// Memory is where the process's GPU memory is.
	Memory(ctx context.Context) *Memory
	// Driver is what is known so far of the GPU's driver: its version, and a line for each device that the process sees.
	Driver() (version string, devices []string)
}

// Totals are the caching allocator's own of one device.
type Totals struct {
	Device              int    // its number
	Allocated, Reserved uint64 // bytes
}

// Scan is who holds the live blocks.
type Scan struct {
	Until uint64 // when the last holder was confirmed, on the clock of the events
	// Join brings the scan and the live set together.
	Join func(view *view.View, blocks iter.Seq[heap.Block]) *view.Joined
	// Held reports whether a block that was freed at a time was seen at a place of the program before, and Passing adds such blocks up.
	// nil: places were not looked at.
	Held    func(b *heap.Block, freed uint64) bool
	Passing func(view *view.View, freed []holders.Freed) []view.HeldSite

	// NoPython says why no Python could be read, so that no holder in it is known; empty: one was.
	NoPython string

	freed []holders.Freed // those of Held, once events and scan were brought together
}

// Memory is where a process's GPU memory is by the driver and the caching allocator, both of one moment if they can be had so.
type Memory struct {
	Torch     []figures.TorchMemory // nil: there is no state, or TorchErr says why it could not be read
	HasTorch  bool                  // Torch was read
	TorchErr  error
	Stats     []figures.MemoryStats // what the allocator itself counts; nil: not known
	Driver    []figures.DriverUse
	DriverErr error               // why there is nothing of the driver, or its devices are not known
	Others    []figures.Processes // of devices on which the driver lists the process
	Private   []figures.Range     // segments of private pools; nil: they were not read
	Limits    []figures.Limit
	Sizes     []figures.DeviceSize // of the devices, as CUDA reported them to the program; nil: not known
	Time      uint64               // when it was read, on the clock of the events; 0: not known
	Moved     bool                 // the driver's figures changed meanwhile
	Fresh     bool                 // the process had no device memory when the trace began
}

// Stacks says how the stacks of a process fared.
type Stacks struct {
	Lost uint64 // stacks that were lost; their events say so
	Raw  figures.RawStacks
}

// End says why the events of a process ended.
type End uint8

// The reasons.
const (
	Running End = iota
	Stopped     // by Source.Stop
	Exited      // the process ended
	Execed      // it became another program
)

// Found is what an attach found, for people.
type Found struct {
	Python     string // "3.11.7"; empty: PythonErr says why
	PythonErr  error
	NoPython   bool     // PythonErr is that there is none
	Beside     string   // interpreters of the process whose lines are not known, for people; empty: none
	PyTorch    string   // "2.15.0"; empty: not found
	CUDA       string   // that PyTorch was built for; empty: not known
	Frameworks []string // that are loaded, with their versions: "TensorFlow 2.21.0"
	Driver     string   // version in the driver library's name; empty: not known
	Memory     string   // how the process's memory is read
	Hooks      []Hook
	Empty      []string // files of libraries to hook that define none of the functions
	Libraries  int      // files with code
	Rows       int      // unwind rows
	Cached     int      // files whose rows came from the cache
	Unreadable []error  // files through which stacks cannot be followed
	Multi      bool     // one link has many probes
	Autograd   error    // why allocations of the backward pass are not named by the lines of forward; nil: they are
	Paused     string   // why the process did not run at the attach, as Target.Paused; empty: it did
	Took       time.Duration
	Attached   uint64 // when the first probe was about to be placed, on the clock of the events
}

// Hook is a file whose functions are traced.
type Hook struct {
	Library   *hook.Library
	File      string // as the process sees it
	Functions int
}

// torch reports whether functions of PyTorch are traced.
func (f *Found) torch() bool {
	return slices.ContainsFunc(f.Hooks, func(h Hook) bool { return h.Library == hook.Torch || h.Library == hook.MPS })
}

// Functions is how many functions are traced.
func (f *Found) Functions() int {
	n := 0
	for i := range f.Hooks {
		n += f.Hooks[i].Functions
	}
	return n
}
