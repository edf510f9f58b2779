// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/recording"
)

// madeTarget is a process that never was.
type madeTarget struct {
	pid     int
	about   process.About
	found   Found
	end     End
	ended   bool // the process does not run any more
	paused  string
	began   bool
	lost    uint64
	over    uint64
	cost    figures.Cost
	before  []Totals
	noState error // why there is no allocator state; nil: there is
	memory  *Memory
	stacks  map[event.StackID]*event.Stack // nil: every stack is one line

	mu    sync.Mutex
	state func(ctx context.Context) (*reconcile.State, error)
	scan  func(ctx context.Context) (*Scan, error)
}

func (t *madeTarget) PID() int                   { return t.pid }
func (t *madeTarget) About() *process.About      { return &t.about }
func (t *madeTarget) NameNow() string            { return t.about.Name }
func (t *madeTarget) UID() (int, error)          { return 0, errors.New("none") }
func (t *madeTarget) Alive() bool                { return !t.ended }
func (t *madeTarget) Paused() string             { return t.paused }
func (t *madeTarget) Found() *Found              { return &t.found }
func (t *madeTarget) Began() bool                { return t.began }
func (t *madeTarget) End() End                   { return t.end }
func (t *madeTarget) Lost() uint64               { return t.lost }
func (t *madeTarget) OverLimit() uint64          { return t.over }
func (t *madeTarget) Stacks() Stacks             { return Stacks{} }
func (t *madeTarget) Cost() figures.Cost         { return t.cost }
func (t *madeTarget) File(string) io.Reader      { return nil }
func (t *madeTarget) Close()                     {}
func (t *madeTarget) Driver() (string, []string) { return "", nil }

func (t *madeTarget) Stack(id event.StackID) *event.Stack {
	if t.stacks != nil {
		return t.stacks[id]
	}
	return &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, Func: "train", File: "/app/train.py", Line: int(id)}}}
}

func (t *madeTarget) Totals(context.Context) ([]Totals, error) { return t.before, t.noState }

func (*madeTarget) Allocators() int { return 0 }

func (t *madeTarget) AllocatorState(ctx context.Context) (*reconcile.State, error) {
	t.mu.Lock()
	state := t.state
	t.mu.Unlock()
	if state == nil {
		return nil, noStateHere
	}
	return state(ctx)
}

func (t *madeTarget) Holders(ctx context.Context) (*Scan, error) {
	t.mu.Lock()
	scan := t.scan
	t.mu.Unlock()
	if scan == nil {
		return nil, noStateHere
	}
	return scan(ctx)
}

func (t *madeTarget) Memory(context.Context) *Memory {
	if t.memory == nil {
		return &Memory{DriverErr: errors.New("no driver")}
	}
	return t.memory
}

var noStateHere = &Outcome{reconcile.ErrNoState, "no PyTorch here"}

// madeSource is a Source whose events a test writes. A batch is applied at each Read.
type madeSource struct {
	start   []Target // that are there when it starts
	startBy func(ctx context.Context) error
	program bool

	mu       sync.Mutex
	batches  []madeBatch
	arrived  []Target
	stopped  bool
	passed   []os.Signal
	finished bool
	closed   bool
	lost     uint64
	clock    uint64
	ended    bool
	noHits   error // why hits cannot be read
	code     int
	hang     bool // it never ends by itself
}

// madeBatch is what one Read gives.
type madeBatch struct {
	events []event.Event
	arrive []Target
	lost   uint64
	then   func() // when it is read
}

func (s *madeSource) Start(ctx context.Context) error {
	if s.startBy != nil {
		if err := s.startBy(ctx); err != nil {
			return err
		}
	}
	s.arrived = append(s.arrived, s.start...)
	return nil
}

func (s *madeSource) Read(buf []event.Event) ([]event.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock += 1e6
	if len(s.batches) == 0 {
		if s.stopped || !s.hang {
			return buf, io.EOF
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
		s.mu.Lock()
		return buf, nil
	}
	b := s.batches[0]
	s.batches = s.batches[1:]
	s.arrived = append(s.arrived, b.arrive...)
	s.lost += b.lost
	for _, e := range b.events {
		s.clock = max(s.clock, e.Time)
	}
	if b.then != nil {
		b.then()
	}
	return append(buf, b.events...), nil
}

// more adds batches, and returns how many are not read yet.
func (s *madeSource) more(batches []madeBatch) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.batches = append(s.batches, batches...)
	return len(s.batches)
}

func (s *madeSource) Arrived() []Target {
	a := s.arrived
	s.arrived = nil
	return a
}

func (s *madeSource) Emptied() bool { return true }

func (s *madeSource) Now() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock
}

func (s *madeSource) Lost() uint64 { return s.lost }

func (s *madeSource) Hits() ([]figures.Hits, error) {
	if s.noHits != nil {
		return nil, s.noHits
	}
	return []figures.Hits{{Probe: "libc10.so report", Hits: 3, Emitted: 3}}, nil
}

func (s *madeSource) Ended() bool { return s.ended }
func (s *madeSource) Finish()     { s.finished = true }

func (s *madeSource) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

func (s *madeSource) Signal(sig os.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program {
		s.passed = append(s.passed, sig)
	}
	return s.program
}

func (s *madeSource) Wait() (int, bool) { return s.code, s.program }

func (s *madeSource) Close() error {
	s.closed = true
	return nil
}

// noted is an Observer that keeps what it gets.
type noted struct {
	mu       sync.Mutex
	notices  []string
	lost     []event.Loss
	warnings []string
	attached []int
	ended    []int
	states   int
	shown    []*view.Joined
	ready    int
	readyErr error
	onReady  func()
}

func (n *noted) Notice(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notices = append(n.notices, text)
}

// Event keeps what happened in a few words; those for people are package notice's.
func (n *noted) Event(e Event) {
	switch e := e.(type) {
	case *Finding:
		n.Notice(map[News]string{
			Growing:   fmt.Sprintf("growing: %s by %.0f", e.Leak.Name(), e.Leak.Requested),
			HeldBy:    "held by: " + e.Leak.Holder,
			FullIn:    fmt.Sprintf("full in: %.1f s", e.Leak.Seconds),
			Further:   "further lines",
			Withdrawn: "withdrawn: " + e.Leak.Name(),
		}[e.News])
	case *OutOfMemory:
		n.Notice(fmt.Sprintf("out of memory: %d %s", e.Bytes, e.Kept))
	case *Survived:
		n.Notice("survived")
	case *Alert:
		n.Notice("alert: " + e.Alert.Rule.Text)
	case *Loss:
		n.lost = append(n.lost, e.Loss)
	case *Comparison:
		n.Notice(fmt.Sprintf("compared: %d", e.Outcome.Blocks))
	case *HoldersUnread:
		n.Notice("holders: " + e.Err.Error())
	case *Unused:
		n.Notice("unused: " + e.Process.Who())
	case *Ending:
		n.Notice(fmt.Sprintf("ending: %.1f s %t", e.Recorded.Seconds(), e.Reading))
	}
}

func (n *noted) Warning(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.warnings = append(n.warnings, err.Error())
}

func (n *noted) Attached(p *Process) { n.attached = append(n.attached, p.PID()) }

func (n *noted) Ready() error {
	n.ready++
	if n.onReady != nil {
		n.onReady()
	}
	return n.readyErr
}

func (n *noted) Live(*State) { n.states++ }
func (n *noted) Holders(j *view.Joined) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = append(n.shown, j)
}

func (n *noted) Ended(p *Process) { n.ended = append(n.ended, p.PID()) }

var cuda0 = event.Device{Type: event.DeviceCUDA}

// alloc and free are events of the caching allocator.
func alloc(pid int, at, addr, size, total uint64) event.Event {
	return event.Event{
		Time: at, PID: uint32(pid), TID: uint32(pid), Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Addr: addr, Size: size,
		Requested: size, Stack: 1, Allocated: total, Reserved: 1 << 30, Handle: event.Unknown, Context: event.Unknown,
	}
}

func free(pid int, at, addr, size, total uint64) event.Event {
	e := alloc(pid, at, addr, size, total)
	e.Kind, e.Stack = event.KindFree, 0
	return e
}

// madeScan holds nothing, at a time.
func madeScan(until uint64) *Scan {
	return &Scan{Until: until, Join: func(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
		j := &view.Joined{}
		for b := range blocks {
			j.Bytes += b.Size
		}
		return j
	}}
}

// madeKeeper keeps recordings in a folder of the test's own.
type madeKeeper struct {
	dir     string
	files   map[*Process]string
	writers map[*Process]*recording.Writer
	dropped []int
	kept    []*madeKept
	failed  error // why requests cannot be explained; nil: they can
	closed  bool
}

func newMadeKeeper(t *testing.T) *madeKeeper {
	return &madeKeeper{dir: t.TempDir(), files: map[*Process]string{}, writers: map[*Process]*recording.Writer{}}
}

func (k *madeKeeper) Reserve() error { return nil }

func (k *madeKeeper) Create(p *Process, info *recording.Info, stack func(event.StackID) *event.Stack) (*recording.Writer, error) {
	path := fmt.Sprintf("%s/%d.gputrace", k.dir, len(k.files))
	w, err := recording.Create(path, info, stack, nil)
	k.files[p], k.writers[p] = path, w
	return w, err
}

func (k *madeKeeper) Keep(_ *Process, failure int) (Kept, error) {
	one := &madeKept{name: fmt.Sprintf("kept%d", failure), failed: k.failed}
	k.kept = append(k.kept, one)
	return one, nil
}

func (k *madeKeeper) Finish(p *Process, end *recording.End) error { return k.writers[p].Close(end) }

func (k *madeKeeper) Drop(p *Process) error {
	k.dropped = append(k.dropped, p.PID())
	return nil
}

func (k *madeKeeper) Close() error {
	k.closed = true
	return nil
}

// fileOf is the recording of a process.
func fileOf(p *Process) string { return p.options.Keeper.(*madeKeeper).files[p] }

// madeKept counts what is done with a saved recording.
type madeKept struct {
	name                string
	failed              error
	followed, explained atomic.Int64
}

func (k *madeKept) Name() string { return k.name }

func (k *madeKept) Follow() error {
	k.followed.Add(1)
	return nil
}

func (k *madeKept) Explain() error {
	k.explained.Add(1)
	return k.failed
}

// newMade is a recorder of a made source, whose recordings are kept by a madeKeeper.
func newMade(t *testing.T, s *madeSource, change func(*Options)) (*Recorder, *noted, *Options) {
	t.Helper()
	n := &noted{}
	o := &Options{PIDs: []int{7}, Keeper: newMadeKeeper(t), Observer: n, Version: "test", MaxStacks: 10}
	if change != nil {
		change(o)
	}
	r := New(s, o)
	t.Cleanup(func() { _ = r.Close() })
	return r, n, o
}
