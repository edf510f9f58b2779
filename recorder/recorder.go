// SPDX-License-Identifier: Apache-2.0

// Package recorder records the GPU memory of one or many processes: it finds and starts them, takes their events from a source, keeps
// the live set of each, compares that with the allocator's own state, scans for holders, notes losses, and writes the results. One
// process is a job of one. It has no flags and no terminal: its user implements Observer.
//
//	Source ──events──▶ Recorder ──by PID──▶ Process: recordedHeap ──▶ recording file
//	  tracer (Linux)      │ one goroutine      Reconciler  (allocator's state, read beside)
//	  a test's own        │                    holderScans (read beside)
//	                      ├──▶ Observer: notices, warnings, once a second the State
//	                      ├──▶ State, View, Holders: asked for from other goroutines
//	                      └──▶ Results: summary, profiles, folder
package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/output"
)

// Options say what is recorded, and how.
type Options struct {
	// PIDs are processes to attach to.
	PIDs []int
	// Name finds processes by their program's name or command line, also those to come. nil: none.
	Name *regexp.Regexp
	// All has every process traced that uses CUDA, also those to come.
	All bool
	// Children has the descendants of the processes traced too.
	Children bool
	// Command is a program to start, and its arguments from the name on. nil: none.
	Command []string
	// User is as whom the program runs, a name or a number; empty: as who called sudo, if sudo started this program, else as ourselves.
	User string
	// Env has variables of the program's environment, as "NAME=value", or "NAME" for the value that this program has. The others are those of
	// who called sudo, else our own.
	Env []string
	// Starter are the arguments with which this program calls Become.
	Starter []string
	// Inject has the process load a library of ours, on macOS, where it is a Python that can be asked to. It stays there.
	Inject bool
	// Wait waits for a process that uses no CUDA yet, and for a process where none is found.
	Wait bool
	// UntilOOM ends the recording when a request for memory has failed.
	UntilOOM bool
	// Duration is when the recording ends. 0: when it is interrupted, or with the processes.
	Duration time.Duration

	// RingBytes is the size of the ring between kernel and tracer: a power of two of at least 4096. 0 means 32 MiB.
	RingBytes int
	// FreeStacks also captures the stack of every free.
	FreeStacks bool
	// MaxStacks is how many different stacks are kept of a process. 0 means the tracer's default.
	MaxStacks int
	// CacheDir holds unwind tables between runs. Empty: none are kept.
	CacheDir string
	// Memory is how the processes' memory is read, one of the tracer's ways: "auto", "copy", "in-place".
	Memory string
	// NoSteps: do not look for steps, and for what grows from one to the next.
	NoSteps bool
	// StepOn is the function with whose calls steps begin, as steps.Rules.On. Empty: found out.
	StepOn string
	// NoHolders: do not look for the holders of the live blocks.
	NoHolders bool
	// HoldersOnRequest: do not look for them at peaks and at the end, only when somebody asks, and of what grows.
	HoldersOnRequest bool

	// Output is the folder of results, and Results what it can hold. Empty: nothing is recorded, and nothing is to be written.
	Output  string
	Results *output.Results
	// MaxSize bounds a process's recording, bytes. 0: no limit.
	MaxSize int64
	// MaxAge is how far back a recording reaches. 0: to the attach.
	MaxAge time.Duration
	// FullStacks has profiles with every frame.
	FullStacks bool
	// Views makes further files of each recording. nil: there are none.
	Views *Views
	// Version is gputrace's own, for recordings and profiles.
	Version string

	// Alerts are thresholds that each process is watched for; AlertEvery is how often each is shown at most, 0: once a second.
	Alerts     []alerts.Rule
	AlertEvery time.Duration
	// Alert gets each alert, in the goroutine of Run: it must not wait. The error is shown. nil: alerts are notices only.
	Alert func(*alerts.Alert) error

	// Observer is notified of what happens. It must not be nil.
	Observer Observer
}

// Many reports whether there may be more than one process. Results of a process that cannot have another lie in the folder itself.
func (o *Options) Many() bool {
	return len(o.PIDs) != 1 || o.Name != nil || o.All || o.Children || o.Command != nil
}

// Observer is notified of what happens in a recording, by the goroutine of Run.
type Observer interface {
	// Notice is a line for people.
	Notice(text string)
	// Warning is something that went wrong without ending the recording. The same can come again.
	Warning(err error)
	// Attached tells of a process that is traced from now on.
	Attached(p *Process)
	// Ready tells that the probes are live, and what was allocated before them is known, or cannot be for now. An error ends the
	// recording.
	Ready() error
	// Live is the state, once a second while a process is traced.
	Live(s *State)
	// Holders are those that Look asked for.
	Holders(j *view.Joined)
	// Ended tells that a process's recording is over.
	Ended(p *Process)
}

// Recorder is a recording in progress.
type Recorder struct {
	options  *Options
	source   Source
	observer Observer
	reserved *output.Reservation // the folder of results; nil: there is none

	mu        sync.Mutex
	passed    bool               // a signal went to the program alone
	signal    os.Signal          // that ended the recording; nil: none did
	ending    context.Context    // done when the recording is to end
	end       context.CancelFunc // has it end
	scans     context.Context    // of all that is read beside the events
	stopScans context.CancelFunc

	look     chan struct{} // a comparison and a scan are asked for
	requests chan func()   // for the goroutine of Run
	running  chan struct{} // closed when there is no such goroutine any more

	now       map[int]*Process // by PID, those that have not ended
	all       []*Process       // in the order in which they were found
	batches   map[*Process][]event.Event
	folders   map[string]int // how often a folder was named so
	slots     chan struct{}  // for the scans
	losses    lossWatch
	begunAt   time.Time // when the first process was traced
	until     time.Time // when the recording is over by its duration; zero: it has none
	abandoned bool      // the source still starts, and is left to itself
	begun     uint64    // when Run began, on the clock of the events
	ready     bool      // it was said that the probes are live
	shown     time.Time
}

// New makes a recorder of what a source has. Nothing is attached to before Run, which closes the source.
func New(s Source, o *Options) *Recorder {
	r := &Recorder{
		options: o, source: s, observer: o.Observer, look: make(chan struct{}, 1), requests: make(chan func()), running: make(chan struct{}),
		now: map[int]*Process{}, batches: map[*Process][]event.Event{}, folders: map[string]int{}, slots: make(chan struct{}, maxScans),
	}
	r.ending, r.end = context.WithCancel(context.Background())
	r.scans, r.stopScans = context.WithCancel(context.Background())
	return r
}

// Interrupt handles a signal that asks for the end. If gputrace started the program, the first signal is left to that program, which receives
// it too. The next signal ends the recording in order, and one more ends it at once. Interrupt may be called from any goroutine.
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

// Look asks for a comparison with the allocator's state and for the holders of the live blocks, both shown. It may be called from any
// goroutine.
func (r *Recorder) Look() {
	select {
	case r.look <- struct{}{}:
	default: // one is asked for
	}
}

// Run records until the processes end, the duration is over, or it is interrupted. When ctx is done, it ends at once, and what was
// captured is in the results. After an error of attaching there are none. Close must be called afterwards.
func (r *Recorder) Run(ctx context.Context) (*Results, error) {
	defer close(r.running)
	defer r.stopScans()
	defer context.AfterFunc(ctx, func() { r.end(); r.stopScans() })()
	r.begun = r.source.Now()
	r.losses.looked = r.begun
	if err := r.reserve(); err != nil {
		return nil, err
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
		r.observer.Warning(err) // what was captured is still written
	}
	return r.results()
}

// reserve takes the folder of results, before anything is attached to.
func (r *Recorder) reserve() (err error) {
	if r.options.Output == "" {
		return nil
	}
	if r.reserved, err = output.Reserve(r.options.Output, r.options.Results); err != nil {
		return err
	}
	r.options.Output = r.reserved.Path()
	return nil
}

// attachTimeout is how long an attach that was interrupted may take to end by itself.
const (
	attachTimeout    = 50 * time.Millisecond
	interruptedEarly = "interrupted during the attach: nothing was recorded"
)

// attach starts the source. When it is interrupted meanwhile, nothing is recorded: what goes on in the source ends with the program.
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

// Wait waits for the program that was started, and returns its exit code as a shell says it. started is false when there is none.
func (r *Recorder) Wait() (code int, started bool) { return r.source.Wait() }

// Close releases everything.
func (r *Recorder) Close() error {
	r.end()
	r.stopScans()
	for _, p := range r.all {
		p.target.Close()
	}
	var err error
	if r.reserved != nil {
		err = r.reserved.Close()
	}
	if r.abandoned {
		return err
	}
	return errors.Join(err, r.source.Close())
}

// drainGC is how much garbage may pile up while we trace, percent of what is in use. The job's machine needs its memory more than
// we need the time: little garbage is made, and a collection of a small heap takes milliseconds.
const drainGC = 25

// batch is how many events are taken from the source at once.
const batch = 4096

// drain feeds the live sets until the source ends.
func (r *Recorder) drain() error {
	defer debug.SetGCPercent(debug.SetGCPercent(drainGC))
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

// closing brings a recording to its end.
type closing struct {
	recorder *Recorder
	begun    time.Time
	deadline time.Time // the source is stopped then; zero: the end was not asked for
	frozen   bool      // the recordings are over
}

// step begins the last comparisons and scans when the end is asked for, ends the recordings, and stops the source when all was read, when
// that takes too long, or at once when it is to be so.
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
		c.frozen = true
		for _, p := range r.now {
			p.freeze(r.source.Now())
		}
	}
	if r.scans.Err() != nil || time.Now().After(c.deadline) || c.frozen && r.settled() {
		r.source.Stop()
	}
}

// remains reports whether the duration is over in a moment: the last comparison began before it.
func (r *Recorder) remains() bool {
	left := time.Until(r.until)
	return left > 0 && left <= finalCheck
}

// compared reports whether the recordings need not go on for their last comparison. After losses it puts them right.
func (c *closing) compared() bool {
	late := time.Since(c.begun) > finalCheck
	for _, p := range c.recorder.now {
		if !p.reconciler.Over() && (!late || p.reconciler.Lossy()) {
			return false
		}
	}
	return true
}

// say tells that the end has come, and what it waits for.
func (c *closing) say() {
	r := c.recorder
	recorded := time.Since(r.begunAt)
	if r.remains() {
		recorded = r.options.Duration
	}
	text := fmt.Sprintf("  recorded %.1f s", recorded.Seconds())
	for _, p := range r.now {
		if !p.scans.over {
			text += ": reading who holds the blocks, Ctrl-C skips"
			break
		}
	}
	r.observer.Notice(text)
}

// lastCheck is how long the end of a recording may be put off, to compare the live set with the allocator's state while the
// probes are still there.
const lastCheck = 3 * time.Second

// endTimeout is how long the end may be put off for all that is done then.
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

// arrive begins the recordings of processes that are new, each after that of one that had its number. first: what was there when the
// source was started.
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

// dispatch applies the events, each to its process.
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

// lose notes that events were lost, of each process its own.
func (r *Recorder) lose(from, to uint64) {
	for _, p := range r.now {
		p.lose(from, to)
	}
}

// advance goes on with what is done beside the events, and ends the recordings of processes that have ended.
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
}

func (r *Recorder) concludeAll() {
	for _, p := range r.all {
		if p.done == nil {
			r.conclude(p)
		}
	}
}

// firstLookTimeout is how long it is put off to say that the probes are live, because the allocator's state is being read.
const firstLookTimeout = 2 * time.Second

// readyError is what went wrong when it was said that the probes are live.
type readyError struct{ err error }

func (e *readyError) Error() string { return e.err.Error() }

// announce says that the probes are live. Of a program that was just started there is nothing to wait for.
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

// warnUnseen tells of processes that allocated before their libraries were hooked, although they began while they were traced.
func (r *Recorder) warnUnseen() {
	for _, p := range r.all {
		totals := p.heap.Totals()
		for i := range totals.Accounts {
			if a := &totals.Accounts[i]; p.target.Began() && a.Baseline != event.Unknown && a.Baseline != 0 {
				r.observer.Warning(fmt.Errorf("%s: %s on %s were allocated before its libraries were hooked", p.Who(), table.Bytes(a.Baseline), a.Device))
			}
		}
	}
}

// ordered is processes by rank, then as they were found.
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
