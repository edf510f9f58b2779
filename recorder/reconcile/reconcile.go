// SPDX-License-Identifier: Apache-2.0

// Package reconcile compares the live set of a process with its allocator's state, again and again while it is recorded, and puts
// right what lost events left.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
)

// The live set is the sum of events, and events can be lost. The caching allocator of the process keeps the same blocks in its own
// memory, which can be read at any time but not at one instant: while it is read, from From to To, the job goes on.
//
//	events   ──a──f──a──────────────a──f────a─────────────f──a──▶ time
//	                      From├──────────reading──────────┤To
//	                      Watch: the heap notes which        │ drained > To: compare
//	                      addresses events name              ▼
//
// Invariant: a block is compared only if no event of the reading's time names its address. Of such a block the state says what was so
// at From, and at To, and at each moment between. So, once every event up to To was applied (drained > To):
//
//	in the state, not in the live set   its allocation was lost: it is added, without a stack
//	in the live set, not in the state   its free was lost: it is retired
//	in both                             nothing to do
//
// Where no event was lost nothing is ever added or retired after the first comparison; if something is, that is a bug, and is said.
// One reading can fail (the job changes what is being read): it is tried again until roundTimeout. Then it is left until the next
// time: the live set is as good as its events.
//
//	idle ──due, asked, losses over──▶ reading ──read──▶ read ──drained > To──▶ compared ──▶ idle
//	 ▲                                  │ ▲              │ not consistent, or segments open
//	 └──────── no state, too long ──────┘ └── pause ◀────┘

const (
	// checkEvery is how often the live set is compared with the allocator's state when nothing calls for it.
	checkEvery = time.Minute
	// checkSoon is when it is tried again after a state that was not there yet, or segments that were left open.
	checkSoon = 5 * time.Second
	// lossesOver is how long no event must have been lost for the losses to be over.
	lossesOver = time.Second
	// roundTimeout is how long one comparison is tried: a job that never rests leaves no moment for it.
	roundTimeout = 5 * time.Second
	// segmentTimeout is how long it goes on only because of the segments, which take a quieter moment than the blocks.
	segmentTimeout = time.Second
	roundPause     = 20 * time.Millisecond // between two tries
	// maxEventDelay is how much later than others an event can come, at most: then all before it are there. Nanoseconds.
	maxEventDelay = 100e6
	// readTimeout is how long one reading may take. A reading that was given up may take twice as long the next time, up to maxReadTimeout: a
	// job that has leaked for days has a million blocks.
	readTimeout    = 10 * time.Second
	maxReadTimeout = 160 * time.Second
)

// ErrNoState: there is no caching allocator whose state could be read: no PyTorch, not yet, or another backend.
var ErrNoState = errors.New("no allocator state")

// State is the caching allocator's state, read while the process runs.
type State struct {
	Until   uint64              // when the reading was over, on the clock of the events
	Devices []event.Observation // whose Device is CUDA's
}

// Heap is the live set of a process. Its methods are those of heap.Heap.
type Heap interface {
	Watch(pid uint32)
	Unwatch(pid uint32)
	Reconcile(o event.Observation) (heap.Result, error)
	GapCount() uint64
	Totals() heap.Totals
}

// Target is the process whose live set it is.
type Target interface {
	PID() int
	// Alive reports whether the process, or what has become of it, still runs.
	Alive() bool
	// Lost is how many of its events were lost so far.
	Lost() uint64
	// AllocatorState reads the caching allocator's blocks and segments, from any goroutine. The error wraps ErrNoState where there
	// are none. It returns soon after ctx is done.
	AllocatorState(ctx context.Context) (*State, error)
}

// Observer is notified of what a comparison finds.
type Observer interface {
	// Notice is a line for people.
	Notice(text string)
	// Warning is something that went wrong without ending the recording.
	Warning(err error)
}

// Drained tells up to which time all events are applied.
type Drained struct {
	To uint64 // on the clock of the events
}

// Applied notes which events the heap has: those of a read that began at a time and may have emptied the ring.
func (d *Drained) Applied(begun uint64, events []event.Event, emptied bool) {
	if emptied {
		d.To = begun
	} else if len(events) == 0 {
		return
	} else if last := events[len(events)-1].Time; last > maxEventDelay {
		d.To = max(d.To, last-maxEventDelay)
	}
}

// losses is what was lost so far.
type losses struct{ events, gaps uint64 }

// Reconciler compares the live set of one process with its allocator's state. The state is read beside the draining of the events;
// everything else happens in the goroutine that owns the heap, which calls its methods.
type Reconciler struct {
	ctx      context.Context
	heap     Heap
	target   Target
	observer Observer
	drained  *Drained
	checks   figures.Checks

	round   *round // in progress; nil: none
	asked   bool   // by the user
	wanted  bool   // at once
	last    bool   // the recording is about to end
	over    bool   // the last comparison was made, or none can be
	next    time.Time
	resume  time.Time // no round because of losses before
	open    int       // rounds in a row that left segments open
	absent  int       // rounds that found no state
	given   int       // readings that were given up: each may take twice as long as the one before
	settled losses
	current losses
	counted time.Time // when the losses were
	changed time.Time // when current did
}

// round is one comparison: as many readings as it takes.
type round struct {
	begun   time.Time
	pause   time.Time // no reading before
	asked   bool
	results chan reading       // of the reading in progress; nil: none
	cancel  context.CancelFunc // of the same
	state   *State             // that was read and is not compared yet
	lost    bool               // events were lost since the round before
	// compared are the devices of which the blocks were compared, and whether the segments were too.
	compared map[int]bool
	blocks   uint64
	sum      heap.Result // of all comparisons: how events and state differed
	err      error       // why the last reading was no use
}

// reading is what one look at the state gave.
type reading struct {
	state *State
	err   error
	late  bool // it was given up
}

// New makes a reconciler of a heap, to which d says what is applied. No state is read after ctx is done.
func New(ctx context.Context, h Heap, t Target, o Observer, d *Drained) *Reconciler {
	return &Reconciler{ctx: ctx, heap: h, target: t, observer: o, drained: d, wanted: true}
}

// Step goes on with what there is to do. It does not wait.
func (r *Reconciler) Step() {
	switch {
	case r.over:
	case r.round == nil:
		r.maybeBegin(time.Now())
	case r.round.results != nil:
		r.receive()
	case r.round.state != nil:
		r.join()
	case time.Now().After(r.round.pause):
		r.read()
	}
}

// Ask asks for a comparison, and for a word about it.
func (r *Reconciler) Ask() { r.asked = true }

// Finish asks for a last comparison; Over tells when it was made.
func (r *Reconciler) Finish() {
	r.last, r.wanted = true, true
}

// Looked reports whether the first comparison is over.
func (r *Reconciler) Looked() bool { return r.over || r.round == nil && !r.wanted }

// Over reports whether the last comparison was made, or none can be.
func (r *Reconciler) Over() bool { return r.over }

// Idle reports whether no comparison is in progress.
func (r *Reconciler) Idle() bool { return r.round == nil }

// Stop ends it, also in the middle.
func (r *Reconciler) Stop() {
	if r.round != nil && r.round.cancel != nil {
		r.round.cancel()
	}
	r.round, r.over = nil, true
}

// Report is what the summary says; nil where there is no state to compare with.
func (r *Reconciler) Report() *figures.Checks {
	if r.checks == (figures.Checks{}) {
		return nil
	}
	return &r.checks
}

// maybeBegin begins a round when there is a reason.
func (r *Reconciler) maybeBegin(now time.Time) {
	r.count(now)
	lost := r.current != r.settled && now.Sub(r.changed) >= lossesOver && now.After(r.resume)
	if !r.asked && !r.wanted && !lost && now.Before(r.next) {
		return
	}
	r.round = &round{begun: now, asked: r.asked, compared: map[int]bool{}}
	r.wanted, r.asked = false, false
	r.read()
}

// count counts the losses, once a second.
func (r *Reconciler) count(now time.Time) {
	if now.Sub(r.counted) < time.Second {
		return
	}
	r.counted = now
	if l := r.losses(); l != r.current {
		r.current, r.changed = l, now
	}
}

// Lossy reports whether events were lost that no comparison has put right.
func (r *Reconciler) Lossy() bool { return r.losses() != r.settled }

func (r *Reconciler) losses() losses {
	return losses{r.target.Lost(), r.heap.GapCount()}
}

// read begins to read the state. The heap notes from here on which addresses events name.
func (r *Reconciler) read() {
	r.heap.Watch(uint32(r.target.PID()))
	limit := min(readTimeout<<r.given, maxReadTimeout)
	ctx, cancel := context.WithTimeoutCause(r.ctx, limit, Timeout(limit))
	results, target := make(chan reading, 1), r.target
	r.round.results, r.round.cancel = results, cancel
	go func() {
		defer cancel()
		state, err := target.AllocatorState(ctx)
		results <- reading{state, err, ctx.Err() != nil}
	}()
}

// Timeout is why a reading of a process was given up: it is large, or the machine is busy.
func Timeout(limit time.Duration) error {
	return fmt.Errorf("it took longer than %v: the process has much to read, or the machine is busy", limit)
}

// receive takes what was read, once it is there.
func (r *Reconciler) receive() {
	var got reading
	select {
	case got = <-r.round.results:
	default:
		return
	}
	r.round.results, r.round.cancel = nil, nil
	switch {
	case got.err == nil:
		r.round.state = got.state
	case errors.Is(got.err, ErrNoState), !r.target.Alive():
		r.end(min(checkSoon<<min(r.absent, 8), checkEvery)) // there is none, perhaps not yet
		r.absent++
	default:
		r.round.err = got.err
		if got.late && readTimeout<<r.given < maxReadTimeout {
			r.given++
			r.giveUp(checkSoon)
			return
		}
		r.retry()
	}
}

// join compares, once all events of the time of the reading are there.
func (r *Reconciler) join() {
	state := r.round.state
	if r.drained.To <= state.Until {
		return
	}
	r.round.state, r.round.err = nil, nil
	r.round.lost = r.round.lost || r.losses().events != r.settled.events
	open := false
	for i := range state.Devices {
		if !r.round.compared[i] {
			r.compare(i, &state.Devices[i])
		}
		open = open || !r.round.compared[i]
	}
	switch {
	case r.round.err != nil:
		r.retry()
	case open && time.Since(r.round.begun) < segmentTimeout:
		r.round.pause = time.Now().Add(roundPause)
	default:
		r.conclude(open)
	}
}

// compare joins what was read of one device with the heap.
func (r *Reconciler) compare(i int, o *event.Observation) {
	_, again := r.round.compared[i] // because of the segments
	result, err := r.heap.Reconcile(r.named(o))
	switch {
	case err != nil && !again:
		r.round.err = err
	case err == nil:
		r.round.compared[i] = result.SegmentsProved
		addDifference(&r.round.sum, &result)
		if !again {
			r.round.blocks += result.Kept + result.Dirty + result.Added.Objects
		}
	}
}

// retry reads once more, unless it was tried for long enough.
func (r *Reconciler) retry() {
	now := time.Now()
	if now.Sub(r.round.begun) < roundTimeout {
		r.round.pause = now.Add(roundPause)
		return
	}
	r.giveUp(checkEvery)
}

// giveUp ends a round that came to nothing; the next one comes after some time.
func (r *Reconciler) giveUp(next time.Duration) {
	r.checks.Failed++
	if r.round.asked || r.last {
		r.observer.Notice(fmt.Sprintf("the live set could not be compared with the allocator state: %v", r.round.err))
	}
	r.resume = time.Now().Add(checkSoon)
	r.end(next)
}

// conclude says what the comparison found.
func (r *Reconciler) conclude(open bool) {
	r.checks.Made++
	text := difference(&r.round.sum)
	switch {
	case text == "" && r.round.asked:
		r.observer.Notice(fmt.Sprintf("live = allocator state: %d blocks compared", r.round.blocks))
	case text == "":
	case r.round.lost:
		r.checks.Differences++
		r.observer.Notice(fmt.Sprintf("  events were lost; the allocator state put the live set right: %s", text))
	default:
		r.checks.Differences++
		r.observer.Warning(fmt.Errorf("the live set differed from the allocator state, although no event was lost: %s. It was put right; please report it", text))
	}
	r.settled = r.losses()
	r.current = r.settled
	if r.open++; !open {
		r.open = 0
	}
	if open && r.open < 5 {
		r.end(checkSoon)
		return
	}
	r.end(checkEvery)
}

// end closes a round; the next one comes after some time.
func (r *Reconciler) end(next time.Duration) {
	r.heap.Unwatch(uint32(r.target.PID()))
	r.round = nil
	r.next = time.Now().Add(next)
	r.over = r.last && !r.wanted
}

// addDifference adds one comparison to others, but for what was found at the first look.
func addDifference(sum, x *heap.Result) {
	sum.Retired, sum.SegmentsRetired = plus(sum.Retired, x.Retired), plus(sum.SegmentsRetired, x.SegmentsRetired)
	sum.Missing += x.Missing
	if !x.First {
		sum.Added = plus(sum.Added, x.Added)
	}
	if !x.SegmentsFirst {
		sum.SegmentsAdded = plus(sum.SegmentsAdded, x.SegmentsAdded)
	}
}

func plus(x, y heap.Count) heap.Count {
	return heap.Count{Objects: x.Objects + y.Objects, Bytes: x.Bytes + y.Bytes}
}

// difference puts into words how live set and state differed; empty when they did not.
func difference(r *heap.Result) string {
	var parts []string
	for _, p := range []struct {
		count heap.Count
		text  string
	}{
		{r.Added, "blocks that it lacked: %d (%s)"}, {r.Retired, "blocks that were freed: %d (%s)"},
		{r.SegmentsAdded, "segments that it lacked: %d (%s)"}, {r.SegmentsRetired, "segments that were freed: %d (%s)"},
	} {
		if p.count.Objects > 0 {
			parts = append(parts, fmt.Sprintf(p.text, p.count.Objects, table.Bytes(p.count.Bytes)))
		}
	}
	if r.Missing != 0 {
		parts = append(parts, fmt.Sprintf("the allocator's total without an event: %+d B", r.Missing))
	}
	return strings.Join(parts, ", ")
}

// named is what was read of one device, with the device named as the events name it: PyTorch for ROCm reports its devices as CUDA's or
// as HIP's.
func (r *Reconciler) named(o *event.Observation) event.Observation {
	out := *o
	totals := r.heap.Totals()
	for i := range totals.Accounts {
		if a := &totals.Accounts[i]; a.Device.Index == o.Device.Index && a.Device.Type == event.DeviceHIP {
			out.Device = a.Device
		}
	}
	return out
}
