// SPDX-License-Identifier: Apache-2.0

// Package recorder records the GPU memory of one or many processes. It finds or starts the processes, reads their events from a
// source, maintains the live set of each, compares it with the allocator's own state, scans for holders, and records losses. A single
// process is treated as a job of one. The package has no flags, no terminal and no format: its user implements Observer and Keeper.
//
//	Source ──events──▶ Recorder ──by PID──▶ Process: recordedHeap ──▶ recording file
//	  tracer (Linux)      │ one goroutine      Reconciler  (allocator's state, read beside)
//	  a test's own        │                    holderScans (read beside)
//	                      ├──▶ Observer: events, warnings, once a second the State
//	                      ├──▶ State, View, Holders: asked for from other goroutines
//	                      ├──▶ Keeper: the recordings, such as in a folder of results
//	                      └──▶ Results: what is known of each process at the end
package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/process"
)

// Options says what to record and how.
type Options struct {
	// PIDs are processes to attach to.
	PIDs []int
	// Name selects processes by program name or command line, including ones that start later. nil: none.
	Name *regexp.Regexp
	// All selects every process that uses CUDA, including ones that start later.
	All bool
	// Children also traces the descendants of the processes.
	Children bool
	// Command is a program to start, with its arguments; Command[0] is its name. nil: none.
	Command []string
	// User is the user that runs the program, a name or a number. Empty means the caller of sudo if sudo started
	// gputrace, otherwise our own user.
	User string
	// Env adds variables to the program's environment, as "NAME=value", or "NAME" for gputrace's own value. The other
	// variables come from the caller of sudo, or otherwise from our own environment.
	Env []string
	// Starter is the arguments with which gputrace calls Become.
	Starter []string
	// Inject loads a library of ours into the process, on macOS, if it is a Python that can be asked to. The library stays there.
	Inject bool
	// Wait waits for a process that uses no CUDA yet, or until a process is found.
	Wait bool
	// Forever continues when no process is left, until it is interrupted. A process is let go of after Observer.Ended:
	// how many processes came and ended does not change its memory. There are no Results, Observer.Live is not called,
	// and Keeper must be a Divider or nil.
	Forever bool
	// Select chooses among the processes that Name and All select, and is asked again while it refuses one. It is called
	// in the goroutine of Run. nil: all of them.
	Select func(p *process.Process) bool
	// Labels returns the labels of a process when its recording begins; Process.SetLabels replaces them. nil: none.
	Labels func(pid int, about *process.About) map[string]string
	// UntilOOM ends the recording when a request for memory has failed.
	UntilOOM bool
	// Duration is how long to record. 0: until it is interrupted or the processes end.
	Duration time.Duration

	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// FreeStacks also captures the stack of every free.
	FreeStacks bool
	// MaxStacks limits the number of different stacks that are kept for a process. 0 means the tracer's default.
	MaxStacks int
	// CacheDir stores unwind tables between runs. Empty: no cache.
	CacheDir string
	// Memory selects how the tracer reads the processes' memory: "auto", "copy", "in-place".
	Memory string
	// NoSteps turns off the detection of steps, and of growth from one step to the next.
	NoSteps bool
	// CPUBudget limits the CPU time of gputrace's programs in each process, as a share of one CPU; NodeCPUBudget limits the sum for all
	// processes, as a share of all CPUs. Beyond them, stacks of allocations are left out. 0: no limit.
	CPUBudget, NodeCPUBudget float64
	// StepOn is the function whose calls begin steps, as steps.Rules.On. Empty: detected.
	StepOn string
	// NoHolders turns off the search for the holders of the live blocks.
	NoHolders bool
	// HoldersOnRequest searches for holders only on request and for growth, not at peaks and at the end.
	HoldersOnRequest bool

	// Keeper keeps the recordings. nil: nothing is recorded.
	Keeper Keeper
	// Version is gputrace's version, for recordings.
	Version string

	// Alerts are thresholds that are checked for each process. AlertEvery is the shortest interval between two alerts
	// of one threshold; 0: one second.
	Alerts     []alerts.Rule
	AlertEvery time.Duration
	// Alert is called with each alert, in the goroutine of Run, and must not block. Its error is shown. nil: alerts are
	// only notices.
	Alert func(*alerts.Alert) error

	// Observer is notified of events of the recording. It must not be nil.
	Observer Observer
}

// Many reports whether there may be more than one process.
func (o *Options) Many() bool {
	return len(o.PIDs) != 1 || o.Name != nil || o.All || o.Children || o.Command != nil
}

// Observer is notified of events of a recording, in the goroutine of Run.
type Observer interface {
	// Event receives an event of the recording.
	Event(e Event)
	// Notice receives a line for people from the source of the events.
	Notice(text string)
	// Warning receives an error that does not end the recording. The same error can be repeated.
	Warning(err error)
	// Attached is called when a process is traced.
	Attached(p *Process)
	// Ready is called when the probes are live and the memory from before them is known, or cannot be known for now. An
	// error ends the recording.
	Ready() error
	// Live receives the state, once a second while a process is traced.
	Live(s *State)
	// Holders receives the holders that Look requested.
	Holders(j *view.Joined)
	// Ended is called when a process's recording is over.
	Ended(p *Process)
}

// Recorder is a recording in progress.
type Recorder struct {
	options  *Options
	source   Source
	observer Observer

	mu        sync.Mutex
	passed    bool               // a signal was left to the program
	signal    os.Signal          // the signal that ended the recording; nil: none
	ending    context.Context    // done when the recording should end
	end       context.CancelFunc // ends the recording
	scans     context.Context    // for all readings beside the events
	stopScans context.CancelFunc

	look     chan struct{} // requests a comparison and a scan
	requests chan func()   // for the goroutine of Run
	running  chan struct{} // closed when that goroutine has ended

	now       map[int]*Process // processes that have not ended, by PID
	all       []*Process       // in the order in which they were found
	batches   map[*Process][]event.Event
	slots     chan struct{} // limits concurrent scans
	losses    lossWatch
	begunAt   time.Time // when the first process was traced
	until     time.Time // when Options.Duration is over; zero: no limit
	over      bool      // the recordings are over
	abandoned bool      // the source is still starting and is not waited for
	begun     uint64    // when Run began, on the clock of the events
	ready     bool      // Observer.Ready was called
	shown     time.Time
}

// New returns a recorder of a source's processes. It attaches to nothing before Run, which closes the source.
func New(s Source, o *Options) *Recorder {
	r := &Recorder{
		options: o, source: s, observer: o.Observer, look: make(chan struct{}, 1), requests: make(chan func()), running: make(chan struct{}),
		now: map[int]*Process{}, batches: map[*Process][]event.Event{}, slots: make(chan struct{}, maxScans),
	}
	r.ending, r.end = context.WithCancel(context.Background())
	r.scans, r.stopScans = context.WithCancel(context.Background())
	return r
}

// Interrupt handles a signal that asks for the end. If gputrace started the program, the first signal is left to
// that program, which receives it too. The next signal ends the recording in order, and one more ends it at once.
// Interrupt may be called from any goroutine.
func (r *Recorder) Interrupt(s os.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	program := r.source.Signal(s) || r.options.Command != nil
	switch {
	case program && !r.passed:
		r.passed = true
	case r.ending.Err() == nil:
		r.signal = s
		r.end()
	default:
		r.stopScans()
	}
}

// interrupted reports whether a signal ended the recording.
func (r *Recorder) interrupted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.signal != nil
}

// Look requests a comparison with the allocator's state and a holder scan, and shows both. It may be called from any goroutine.
func (r *Recorder) Look() {
	select {
	case r.look <- struct{}{}:
	default: // already requested
	}
}

// Run records until the processes end, the duration is over, or it is interrupted. When ctx is done, it stops at once, and
// the results have what was recorded until then. If attaching fails, there are no results. With Options.Forever there are none,
// and the error is why it could not continue. Close must be called afterwards.
func (r *Recorder) Run(ctx context.Context) (*Results, error) {
	defer close(r.running)
	defer r.stopScans()
	defer context.AfterFunc(ctx, func() { r.end(); r.stopScans() })()
	r.begun = r.source.Now()
	r.losses.looked = r.begun
	if _, divides := r.options.Keeper.(Divider); r.options.Forever && r.options.Keeper != nil && !divides {
		return nil, errors.New("a recorder that runs forever writes no folder of results")
	}
	if k := r.options.Keeper; k != nil {
		if err := k.Reserve(); err != nil {
			return nil, err
		}
	}
	if err := r.attach(); err != nil {
		return nil, err
	}
	r.arrive(true)
	r.begunAt = time.Now()
	if d := r.options.Duration; d > 0 {
		r.until = r.begunAt.Add(d)
		defer time.AfterFunc(d-finalCheck, r.end).Stop()
		for _, p := range r.now {
			p.scans.endAt(time.Now().Add(d), d)
		}
	}
	err := r.drain()
	var failed *readyError
	if errors.As(err, &failed) {
		for _, p := range r.all {
			p.dropFile()
		}
		return nil, failed.err
	}
	if err != nil {
		r.observer.Warning(err) // what was recorded is still written
	}
	if r.options.Forever {
		return nil, err
	}
	return r.results()
}

// attachTimeout is how long an interrupted attach may take to return.
const (
	attachTimeout    = 50 * time.Millisecond
	interruptedEarly = "interrupted during the attach: nothing was recorded"
)

// attach starts the source. If it is interrupted in the meantime, nothing is recorded, and the source ends with gputrace.
func (r *Recorder) attach() error {
	done := make(chan error, 1)
	go func() { done <- r.source.Start(r.ending) }()
	var late <-chan time.Time
	ending := r.ending.Done()
	for {
		select {
		case err := <-done:
			if err == nil && r.interrupted() {
				err = &Outcome{ErrInterrupted, interruptedEarly}
			}
			return err
		case <-ending:
			if ending = nil; r.options.Command == nil {
				late = time.After(attachTimeout)
			}
		case <-late:
			r.abandoned = true
			return &Outcome{ErrInterrupted, interruptedEarly}
		}
	}
}

// Wait waits for the started program and returns its exit code as a shell would. started is false when no program was started.
func (r *Recorder) Wait() (code int, started bool) { return r.source.Wait() }

// Close releases everything.
func (r *Recorder) Close() error {
	r.end()
	r.stopScans()
	for _, p := range r.all {
		p.target.Close()
	}
	var err error
	if k := r.options.Keeper; k != nil {
		err = k.Close()
	}
	if r.abandoned {
		return err
	}
	return errors.Join(err, r.source.Close())
}

// batch is the number of events that are read from the source at once.
const batch = 4096

// drain applies events to the live sets until the source ends.
func (r *Recorder) drain() error {
	buf := make([]event.Event, 0, batch)
	closing := closing{recorder: r}
	for {
		begun := r.source.Now()
		var err error
		buf, err = r.source.Read(buf[:0])
		r.arrive(false)
		r.dispatch(buf)
		r.losses.look(r.source, r.lose)
		for _, p := range r.now {
			p.warnLimit()
			p.reportDetail()
		}
		if err != nil {
			r.concludeAll()
			if errors.Is(err, io.EOF) {
				return r.announce(true)
			}
			return err
		}
		closing.step()
		r.advance(begun, buf)
		r.serve()
		if err := r.announce(false); err != nil {
			return err
		}
		r.show()
	}
}

// closing ends a recording.
type closing struct {
	recorder *Recorder
	begun    time.Time
	deadline time.Time // when to stop the source at the latest; zero: the end was not requested
	frozen   bool      // the recordings are over
}

// step begins the last comparisons and scans when the end is requested, ends the recordings, and stops the source when
// everything was read, when that takes too long, or immediately if requested.
func (c *closing) step() {
	r := c.recorder
	if r.ending.Err() == nil {
		return
	}
	if c.deadline.IsZero() {
		c.begun = time.Now()
		c.deadline = c.begun.Add(r.endTimeout())
		r.source.Finish()
		for _, p := range r.now {
			p.finish()
		}
		c.say()
	}
	if !c.frozen && !r.remains() && c.compared() {
		c.frozen, r.over = true, true
		for _, p := range r.now {
			p.freeze(r.source.Now())
		}
	}
	if r.scans.Err() != nil || time.Now().After(c.deadline) || c.frozen && r.settled() {
		r.source.Stop()
	}
}

// remains reports whether the duration is nearly over, and the last comparison must begin.
func (r *Recorder) remains() bool {
	left := time.Until(r.until)
	return left > 0 && left <= finalCheck
}

// compared reports whether the recordings can end without waiting for their last comparison, which is needed to correct losses.
func (c *closing) compared() bool {
	late := time.Since(c.begun) > finalCheck
	for _, p := range c.recorder.now {
		if !p.reconciler.Over() && (!late || p.reconciler.Lossy()) {
			return false
		}
	}
	return true
}

// say announces the end and what it waits for.
func (c *closing) say() {
	r := c.recorder
	recorded := time.Since(r.begunAt)
	if r.remains() {
		recorded = r.options.Duration
	}
	reading := false
	for _, p := range r.now {
		reading = reading || !p.scans.over
	}
	r.observer.Event(&Ending{recorded, reading})
}

// lastCheck is how long the end of a recording may be delayed to compare the live set with the allocator's state while
// the probes are still attached.
const lastCheck = 3 * time.Second

// endTimeout returns how long the end may be delayed in total.
func (r *Recorder) endTimeout() time.Duration {
	if r.options.NoHolders {
		return lastCheck
	}
	limit := scanTimeout
	for _, p := range r.now {
		limit = max(limit, p.scans.timeout())
	}
	return limit
}

// settled reports whether every process has made its last comparison and scan.
func (r *Recorder) settled() bool {
	for _, p := range r.now {
		if !p.settled() {
			return false
		}
	}
	return true
}

// arrive begins the recordings of new processes, after ending the recording of an earlier process with the same PID.
// first: the processes that existed when the source was started.
func (r *Recorder) arrive(first bool) {
	for _, t := range r.source.Arrived() {
		if old := r.now[t.PID()]; old != nil {
			r.conclude(old)
		}
		p := r.begin(t)
		from := r.begun
		if first {
			from = max(from, t.Found().Attached)
			r.losses.looked = max(r.losses.looked, from)
		}
		p.lose(from, r.source.Now()) // before its first event was received
		r.now[t.PID()] = p
		r.all = append(r.all, p)
		r.observer.Attached(p)
	}
}

// dispatch applies each event to its process.
func (r *Recorder) dispatch(events []event.Event) {
	for i := range events {
		if p := r.now[int(events[i].PID)]; p != nil {
			r.batches[p] = append(r.batches[p], events[i])
		}
	}
	for _, p := range r.now {
		p.take(r.batches[p])
		r.batches[p] = r.batches[p][:0]
	}
}

// lose records, for each process, its own lost events.
func (r *Recorder) lose(from, to uint64) {
	for _, p := range r.now {
		p.lose(from, to)
	}
}

// advance does the work beside the events, and ends the recordings of processes that have ended.
func (r *Recorder) advance(begun uint64, events []event.Event) {
	select {
	case <-r.look:
		for _, p := range r.now {
			p.look()
		}
	default:
	}
	for _, p := range r.now {
		p.advance(begun, events, r.source.Emptied())
		if p.target.End() != Running {
			r.conclude(p)
		}
	}
}

// conclude ends the recording of one process. Its files are written at the end of the job.
func (r *Recorder) conclude(p *Process) {
	hits, err := r.source.Hits()
	if err != nil {
		r.observer.Warning(err)
	}
	p.conclude(hits)
	if r.now[p.PID()] == p {
		delete(r.now, p.PID())
	}
	delete(r.batches, p)
	r.observer.Ended(p)
	if r.options.Forever {
		r.all = slices.DeleteFunc(r.all, func(q *Process) bool { return p == q })
		p.target.Close()
	}
}

func (r *Recorder) concludeAll() {
	for _, p := range slices.Clone(r.all) {
		if p.done == nil {
			r.conclude(p)
		}
	}
}

// firstLookTimeout is how long the announcement that the probes are live may be delayed while the allocator's state is read.
const firstLookTimeout = 2 * time.Second

// readyError wraps an error of Observer.Ready.
type readyError struct{ err error }

func (e *readyError) Error() string { return e.err.Error() }

// announce announces that the probes are live. For a program that was just started it waits for nothing.
func (r *Recorder) announce(last bool) error {
	if r.ready {
		return nil
	}
	for _, p := range r.now {
		if !last && !p.reconciler.Looked() && time.Since(p.start) < firstLookTimeout {
			return nil
		}
	}
	r.ready = true
	if err := r.observer.Ready(); err != nil {
		return &readyError{err}
	}
	return nil
}

// warnUnseen warns about processes that allocated before their libraries were hooked, although they started while being traced.
func (r *Recorder) warnUnseen() {
	for _, p := range r.all {
		totals := p.heap.Totals()
		for i := range totals.Accounts {
			if a := &totals.Accounts[i]; p.target.Began() && a.Baseline != event.Unknown && a.Baseline != 0 {
				r.observer.Warning(fmt.Errorf("%s: %s on %s were allocated before its libraries were hooked", p.Who(), size.Text(a.Baseline), a.Device))
			}
		}
	}
}

// ordered sorts processes by rank, then in the order in which they were found.
func ordered(all []*Process) []*Process {
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(x, y *Process) int {
		switch {
		case x.rank.Known() && y.rank.Known():
			return x.rank.Global - y.rank.Global
		case x.rank.Known():
			return -1
		case y.rank.Known():
			return 1
		}
		return 0
	})
	return out
}
