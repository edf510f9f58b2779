// SPDX-License-Identifier: Apache-2.0

// Package reconcile regularly compares the live set of a process with its allocator's state while it is recorded, and
// corrects the effect of lost events.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/size"
)

// The live set is the sum of events, and events can be lost. The caching allocator of the process keeps the same blocks in its
// own memory, which can be read at any time, but not at one instant: between From and To, while it is read, the job continues.
//
//	events   ──a──f──a──────────────a──f────a─────────────f──a──▶ time
//	                      From├──────────reading──────────┤To
//	                      Watch: the heap notes which        │ drained > To: compare
//	                      addresses events name              ▼
//
// Invariant: a block is compared only if no event during the reading names its address. For such a block, the state is
// true at From, at To, and at each moment in between. So, once every event up to To was applied (drained > To):
//
//	in the state, not in the live set   its allocation was lost: it is added, without a stack
//	in the live set, not in the state   its free was lost: it is retired
//	in both                             nothing to do
//
// If no event was lost, nothing is added or retired after the first comparison; otherwise there is a bug, which is
// reported. A reading can fail because the job changes what is being read; it is repeated until roundTimeout, and then
// postponed to the next check: until then the live set is as good as its events.
//
//	idle ──due, asked, losses over──▶ reading ──read──▶ read ──drained > To──▶ compared ──▶ idle
//	 ▲                                  │ ▲              │ not consistent, or segments open
//	 └──────── no state, too long ──────┘ └── pause ◀────┘

const (
	// checkEvery is the interval between comparisons with the allocator's state if there is no reason for one.
	checkEvery = time.Minute
	// checkSoon is the time until the next try if there was no state yet, or segments were left open.
	checkSoon = 5 * time.Second
	// lossesOver is the time without a loss after which the losses count as over.
	lossesOver = time.Second
	// roundTimeout limits one comparison: the state of a job that never pauses cannot be read consistently.
	roundTimeout = 5 * time.Second
	// segmentTimeout limits how long a comparison continues only for the segments, which need a quieter moment than the blocks.
	segmentTimeout = time.Second
	roundPause     = 20 * time.Millisecond // between two tries
	// maxEventDelay is the longest delay of an event behind others; after that time, all earlier events have arrived. Nanoseconds.
	maxEventDelay = 100e6
	// readTimeout limits one reading. After a timeout, the next reading may take twice as long, up to maxReadTimeout: a
	// job that has leaked for days has a million blocks.
	readTimeout    = 10 * time.Second
	maxReadTimeout = 160 * time.Second
)

// ErrNoState means that there is no caching allocator to read: no PyTorch, not yet, or another backend.
var ErrNoState = errors.New("no allocator state")

// State is the state of the process's allocators, read while it runs.
type State struct {
	Until   uint64              // when the reading ended, on the clock of the events
	Devices []event.Observation // each Device of PyTorch is CUDA's
	Unread  error               // why an allocator is missing from Devices; nil: none is
}

// Heap is the live set of a process, with methods of heap.Heap.
type Heap interface {
	Watch(pid uint32)
	Unwatch(pid uint32)
	Reconcile(o event.Observation) (heap.Result, error)
	GapCount() uint64
	Totals() heap.Totals
}

// Target is the process of the live set.
type Target interface {
	PID() int
	// Alive reports whether the process, possibly as another program, still runs.
	Alive() bool
	// Lost returns the number of its events that were lost so far.
	Lost() uint64
	// Allocators returns the number of allocators that only events show, and whose state can be read from then on.
	Allocators() int
	// AllocatorState reads the caching allocator's blocks and segments; it may be called from any goroutine. The error
	// wraps ErrNoState when there are none. It returns soon after ctx is done.
	AllocatorState(ctx context.Context) (*State, error)
}

// Observer is notified of the outcome of comparisons.
type Observer interface {
	// Compared receives the outcome of a comparison that was requested, or that corrected the live set after a loss.
	Compared(o *Outcome)
	// Warning receives an error that does not end the recording.
	Warning(err error)
}

// Outcome is the outcome of a comparison.
type Outcome struct {
	Blocks    uint64       // number that were compared
	Corrected *heap.Result // what was corrected; nil: nothing
	Err       error        // why they could not be compared
}

// Drained is the time up to which all events are applied.
type Drained struct {
	To uint64 // on the clock of the events
}

// Applied updates the time after events were applied. begun is when the read of the events began; emptied means that
// the read may have emptied the ring.
func (d *Drained) Applied(begun uint64, events []event.Event, emptied bool) {
	if emptied {
		d.To = begun
	} else if len(events) == 0 {
		return
	} else if last := events[len(events)-1].Time; last > maxEventDelay {
		d.To = max(d.To, last-maxEventDelay)
	}
}

// losses counts what was lost so far.
type losses struct{ events, gaps uint64 }

// Reconciler compares the live set of one process with its allocator's state. It reads the state in the background;
// everything else runs in the goroutine that owns the heap, which calls the methods.
type Reconciler struct {
	ctx      context.Context
	heap     Heap
	target   Target
	observer Observer
	drained  *Drained
	checks   figures.Checks

	round   *round // the comparison in progress; nil: none
	asked   bool   // requested by the user
	wanted  bool   // compare at once
	last    bool   // the recording is about to end
	over    bool   // the last comparison was made, or none is possible
	next    time.Time
	resume  time.Time // no round because of losses before this time
	open    int       // number of rounds in a row that left segments open
	absent  int       // number of rounds that found no state
	shown   int       // number of allocators that events had shown when the last round began
	unread  bool      // the warning about an allocator that cannot be read was shown
	given   int       // number of readings that timed out; each doubles the next timeout
	settled losses
	current losses
	counted time.Time // when the losses were counted
	changed time.Time // when current changed
}

// round is one comparison, which may need several readings.
type round struct {
	begun   time.Time
	pause   time.Time // no reading before this time
	asked   bool
	results chan reading       // result of the reading in progress; nil: none
	cancel  context.CancelFunc // cancels the reading in progress
	state   *State             // a finished reading that is not compared yet
	lost    bool               // events were lost since the previous round
	// compared has the devices whose blocks were compared; the value reports whether the segments were too.
	compared map[int]bool
	blocks   uint64
	sum      heap.Result // differences found by all comparisons of the round
	err      error       // why the last reading failed
}

// reading is the result of one reading of the state.
type reading struct {
	state *State
	err   error
	late  bool // it timed out
}

// New returns a reconciler of a heap; d is the progress of the heap's events. It reads no state after ctx is done.
func New(ctx context.Context, h Heap, t Target, o Observer, d *Drained) *Reconciler {
	return &Reconciler{ctx: ctx, heap: h, target: t, observer: o, drained: d, wanted: true}
}

// Step does the work that is due, without waiting.
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

// Ask requests a comparison whose outcome is reported.
func (r *Reconciler) Ask() { r.asked = true }

// Finish requests a last comparison; Over reports when it was made.
func (r *Reconciler) Finish() {
	r.last, r.wanted = true, true
}

// Looked reports whether the first comparison is over.
func (r *Reconciler) Looked() bool { return r.over || r.round == nil && !r.wanted }

// Over reports whether the last comparison was made, or none is possible.
func (r *Reconciler) Over() bool { return r.over }

// Idle reports whether no comparison is in progress.
func (r *Reconciler) Idle() bool { return r.round == nil }

// Stop cancels the comparison in progress.
func (r *Reconciler) Stop() {
	if r.round != nil && r.round.cancel != nil {
		r.round.cancel()
	}
	r.round, r.over = nil, true
}

// Report returns the counts for the summary; nil when there is no state to compare with.
func (r *Reconciler) Report() *figures.Checks {
	if r.checks == (figures.Checks{}) {
		return nil
	}
	return &r.checks
}

// maybeBegin begins a round if there is a reason.
func (r *Reconciler) maybeBegin(now time.Time) {
	r.count(now)
	lost := r.current != r.settled && now.Sub(r.changed) >= lossesOver && now.After(r.resume)
	shown := r.target.Allocators()
	if !r.asked && !r.wanted && !lost && shown == r.shown && now.Before(r.next) {
		return
	}
	if shown != r.shown {
		r.shown, r.absent = shown, 0
	}
	r.round = &round{begun: now, asked: r.asked, compared: map[int]bool{}}
	r.wanted, r.asked = false, false
	r.read()
}

// count updates the losses, once a second.
func (r *Reconciler) count(now time.Time) {
	if now.Sub(r.counted) < time.Second {
		return
	}
	r.counted = now
	if l := r.losses(); l != r.current {
		r.current, r.changed = l, now
	}
}

// Lossy reports whether events were lost that no comparison has corrected.
func (r *Reconciler) Lossy() bool { return r.losses() != r.settled }

func (r *Reconciler) losses() losses {
	return losses{r.target.Lost(), r.heap.GapCount()}
}

// read starts a reading of the state. From here on the heap logs which addresses events name.
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

// Timeout returns the error of a reading that timed out: the process is large, or the machine is busy.
func Timeout(limit time.Duration) error {
	return fmt.Errorf("it took longer than %v: the process has much to read, or the machine is busy", limit)
}

// receive stores a finished reading.
func (r *Reconciler) receive() {
	var got reading
	select {
	case got = <-r.round.results:
	default:
		return
	}
	r.round.results, r.round.cancel = nil, nil
	if got.err == nil && got.state.Unread != nil {
		r.warnUnread(got.state.Unread)
		if len(got.state.Devices) == 0 {
			got.err = ErrNoState
		}
	}
	switch {
	case got.err == nil:
		r.round.state = got.state
	case errors.Is(got.err, ErrNoState), !r.target.Alive():
		r.end(min(checkSoon<<min(r.absent, 8), checkEvery)) // no state, perhaps not yet
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

// warnUnread reports, once, why the blocks from before are not known.
func (r *Reconciler) warnUnread(err error) {
	if !r.unread {
		r.unread = true
		r.observer.Warning(fmt.Errorf("blocks from before the attach are unknown: %w", err))
	}
}

// join compares, once all events of the time of the reading are applied.
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

// compare compares the reading of one device with the heap.
func (r *Reconciler) compare(i int, o *event.Observation) {
	_, again := r.round.compared[i] // compared again for the segments
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

// retry reads once more, unless roundTimeout is over.
func (r *Reconciler) retry() {
	now := time.Now()
	if now.Sub(r.round.begun) < roundTimeout {
		r.round.pause = now.Add(roundPause)
		return
	}
	r.giveUp(checkEvery)
}

// giveUp ends a round without a result; the next one begins after the given time.
func (r *Reconciler) giveUp(next time.Duration) {
	r.checks.Failed++
	if r.round.asked || r.last {
		r.observer.Compared(&Outcome{Err: r.round.err})
	}
	r.resume = time.Now().Add(checkSoon)
	r.end(next)
}

// conclude reports the outcome of the comparison.
func (r *Reconciler) conclude(open bool) {
	r.checks.Made++
	text := Difference(&r.round.sum)
	switch {
	case text == "" && r.round.asked:
		r.observer.Compared(&Outcome{Blocks: r.round.blocks})
	case text == "":
	case r.round.lost:
		r.checks.Differences++
		corrected := r.round.sum
		r.observer.Compared(&Outcome{Blocks: r.round.blocks, Corrected: &corrected})
	default:
		r.checks.Differences++
		r.observer.Warning(fmt.Errorf("the live set differed from the allocator state, although no event was lost: %s. It was put right; "+
			"please report it", text))
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

// end closes a round; the next one begins after the given time.
func (r *Reconciler) end(next time.Duration) {
	r.heap.Unwatch(uint32(r.target.PID()))
	r.round = nil
	r.next = time.Now().Add(next)
	r.over = r.last && !r.wanted
}

// addDifference adds the result of one comparison to a sum, except for what the first one found.
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

// Difference describes how live set and state differed; empty when they did not.
func Difference(r *heap.Result) string {
	var parts []string
	for _, p := range []struct {
		count heap.Count
		text  string
	}{
		{r.Added, "blocks that it lacked: %d (%s)"}, {r.Retired, "blocks that were freed: %d (%s)"},
		{r.SegmentsAdded, "segments that it lacked: %d (%s)"}, {r.SegmentsRetired, "segments that were freed: %d (%s)"},
	} {
		if p.count.Objects > 0 {
			parts = append(parts, fmt.Sprintf(p.text, p.count.Objects, size.Text(p.count.Bytes)))
		}
	}
	if r.Missing != 0 {
		parts = append(parts, fmt.Sprintf("the allocator's total without an event: %+d B", r.Missing))
	}
	return strings.Join(parts, ", ")
}

// named returns the reading of one device under the device name that the events use: PyTorch for ROCm reports its
// devices as CUDA's or as HIP's.
func (r *Reconciler) named(o *event.Observation) event.Observation {
	out := *o
	totals := r.heap.Totals()
	for i := range totals.Accounts {
		if a := &totals.Accounts[i]; a.Device.Index == o.Device.Index && a.Device.Type == event.DeviceHIP && o.Device.Type == event.DeviceCUDA {
			out.Device = a.Device
		}
	}
	return out
}
