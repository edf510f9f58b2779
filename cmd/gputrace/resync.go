//go:build linux && amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
)

const (
	// checkEvery is how often the live set is compared with the allocator's books when nothing calls for it.
	checkEvery = time.Minute
	// checkSoon is when it is tried again after books that were not there yet, or segments that were left open.
	checkSoon = 5 * time.Second
	// lossesOver is how long no event must have been lost for the losses to be over.
	lossesOver = time.Second
	// roundPatience is how long one comparison is tried: a job that never rests leaves no moment for it.
	roundPatience = 5 * time.Second
	// segmentPatience is how long it goes on only because of the segments, which take a quieter moment than the blocks.
	segmentPatience = time.Second
	roundPause      = 20 * time.Millisecond // between two tries
	// lateBy is how much later than others an event can come, at most: then all before it are there. Nanoseconds.
	lateBy = 100e6
)

// losses is what was lost so far.
type losses struct{ events, gaps uint64 }

// resync compares the live set with the allocator's books, again and again, and puts right what lost events left. The books
// are read beside the draining of the events; everything else happens in the goroutine that owns the heap.
type resync struct {
	session *session
	asked   chan os.Signal // SIGUSR1: compare now
	checks  table.Checks

	round   *round // in progress; nil: none
	wanted  bool   // at once
	last    bool   // the recording is about to end
	over    bool   // the last comparison was made, or none can be
	next    time.Time
	resume  time.Time // no round because of losses before
	open    int       // rounds in a row that left segments open
	absent  int       // rounds that found no books
	settled losses
	current losses
	counted time.Time // when the losses were
	changed time.Time // when current did

	drained uint64 // all events up to this time are applied, CLOCK_BOOTTIME nanoseconds
}

// round is one comparison: as many readings as it takes.
type round struct {
	begun   time.Time
	pause   time.Time // no reading before
	asked   bool
	results chan reading // of the reading in progress; nil: none
	swept   *inspect.Sweep
	lost    bool // events were lost since the round before
	// compared are the devices of which the blocks were compared, and whether the segments were too.
	compared map[int]bool
	blocks   uint64
	sum      heap.Result // of all comparisons: how events and books differed
	err      error       // why the last reading was no use
}

// reading is what one look at the books gave.
type reading struct {
	allocator *inspect.Allocator
	sweep     *inspect.Sweep
	err       error
}

func newResync(s *session) *resync {
	r := &resync{session: s, asked: make(chan os.Signal, 1), wanted: true}
	signal.Notify(r.asked, syscall.SIGUSR1)
	return r
}

// bootNanos is the clock of the events.
func bootNanos() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail with a known clock
	return uint64(ts.Nano())
}

// applied takes down which events the heap has: those of a read that began at a time and may have emptied the ring.
func (r *resync) applied(begun uint64, events []event.Event, emptied bool) {
	if emptied {
		r.drained = begun
	} else if len(events) == 0 {
		return
	} else if last := events[len(events)-1].Time; last > lateBy {
		r.drained = max(r.drained, last-lateBy)
	}
}

// step goes on with what there is to do. It does not wait.
func (r *resync) step() {
	switch {
	case r.over:
	case r.round == nil:
		r.maybeBegin(time.Now())
	case r.round.results != nil:
		r.receive()
	case r.round.swept != nil:
		r.join()
	case time.Now().After(r.round.pause):
		r.read()
	}
}

// finish asks for a last comparison; over tells when it was made.
func (r *resync) finish() {
	r.last, r.wanted = true, true
}

// looked reports whether the first comparison is over.
func (r *resync) looked() bool { return r.over || r.round == nil && !r.wanted }

// stop ends it, also in the middle.
func (r *resync) stop() {
	if r.round != nil && r.round.results != nil {
		<-r.round.results
	}
	r.round, r.over = nil, true
}

// report is what the summary says; nil where there are no books to compare with.
func (r *resync) report() *table.Checks {
	if r.checks == (table.Checks{}) {
		return nil
	}
	return &r.checks
}

// maybeBegin begins a round when there is a reason.
func (r *resync) maybeBegin(now time.Time) {
	asked := false
	select {
	case <-r.asked:
		asked = true
	default:
	}
	r.count(now)
	lost := r.current != r.settled && now.Sub(r.changed) >= lossesOver && now.After(r.resume)
	if !asked && !r.wanted && !lost && now.Before(r.next) {
		return
	}
	r.wanted = false
	r.round = &round{begun: now, asked: asked, compared: map[int]bool{}}
	r.read()
}

// count counts the losses, once a second.
func (r *resync) count(now time.Time) {
	if now.Sub(r.counted) < time.Second {
		return
	}
	r.counted = now
	if l := r.losses(); l != r.current {
		r.current, r.changed = l, now
	}
}

func (r *resync) losses() losses {
	return losses{r.session.tracer.Lost(), r.session.heap.GapCount()}
}

// read begins to read the books.
func (r *resync) read() {
	s := r.session
	s.heap.Watch(uint32(s.target.PID))
	results := make(chan reading, 1)
	r.round.results = results
	allocator, target := s.books.allocator, s.target
	go func() {
		if allocator == nil {
			var err error
			if allocator, err = inspect.Find(target); err != nil {
				results <- reading{err: err}
				return
			}
		}
		sweep, err := allocator.Sweep()
		results <- reading{allocator, sweep, err}
	}()
}

// receive takes what was read, once it is there.
func (r *resync) receive() {
	var got reading
	select {
	case got = <-r.round.results:
	default:
		return
	}
	r.round.results = nil
	if got.allocator != nil {
		r.session.books.allocator = got.allocator
	}
	switch {
	case got.err == nil:
		r.round.swept = got.sweep
	case errors.Is(got.err, inspect.ErrNoAllocator), errors.Is(got.err, inspect.ErrOtherBackend), !r.session.target.Alive():
		r.end(min(checkSoon<<r.absent, checkEvery)) // there are no books, perhaps not yet
		r.absent++
	default:
		r.round.err = got.err
		r.retry()
	}
}

// join compares, once all events of the time of the reading are there.
func (r *resync) join() {
	sweep := r.round.swept
	if r.drained <= sweep.To {
		return
	}
	r.round.swept, r.round.err = nil, nil
	r.round.lost = r.round.lost || r.losses().events != r.settled.events
	open := false
	for i := range sweep.Devices {
		if !r.round.compared[i] {
			r.compare(i, &sweep.Devices[i])
		}
		open = open || !r.round.compared[i]
	}
	switch {
	case r.round.err != nil:
		r.retry()
	case open && time.Since(r.round.begun) < segmentPatience:
		r.round.pause = time.Now().Add(roundPause)
	default:
		r.conclude(open)
	}
}

// compare joins what was read of one device with the heap.
func (r *resync) compare(i int, d *inspect.DeviceSweep) {
	_, again := r.round.compared[i] // because of the segments
	result, err := r.session.heap.Reconcile(r.session.observation(d))
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
func (r *resync) retry() {
	now := time.Now()
	if now.Sub(r.round.begun) < roundPatience {
		r.round.pause = now.Add(roundPause)
		return
	}
	r.checks.Failed++
	if r.round.asked || r.last {
		r.session.screen.say("the live set could not be compared with the allocator's books: %v", r.round.err)
	}
	r.resume = now.Add(checkSoon)
	r.end(checkEvery)
}

// conclude says what the comparison found.
func (r *resync) conclude(open bool) {
	r.checks.Made++
	text := difference(&r.round.sum)
	screen := r.session.screen
	switch {
	case text == "" && r.round.asked:
		screen.say("live = books: %d blocks compared", r.round.blocks)
	case text == "":
	case r.round.lost:
		r.checks.Differences++
		screen.say("  events were lost; the allocator's books put the live set right: %s", text)
	default:
		r.checks.Differences++
		screen.warn(fmt.Errorf("the live set differed from the allocator's books, although no event was lost: %s. It was put right; please report it", text))
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
func (r *resync) end(next time.Duration) {
	r.session.heap.Unwatch(uint32(r.session.target.PID))
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

// difference puts into words how live set and books differed; empty when they did not.
func difference(r *heap.Result) string {
	var parts []string
	for _, p := range []struct {
		count heap.Count
		text  string
	}{
		{r.Added, "blocks that it lacked: %d (%s)"}, {r.Retired, "blocks that were gone: %d (%s)"},
		{r.SegmentsAdded, "segments that it lacked: %d (%s)"}, {r.SegmentsRetired, "segments that were gone: %d (%s)"},
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

// observation puts what was read of one device into the heap's form.
func (s *session) observation(d *inspect.DeviceSweep) event.Observation {
	o := event.Observation{
		PID: uint32(s.target.PID), Device: s.torchDevice(d.Before.Device), From: d.Window.From, To: d.Window.To,
		Allocated: event.Unknown, Reserved: event.Unknown,
	}
	if d.Window.Settled && d.Before == d.After {
		o.Allocated, o.Reserved = d.Before.Allocated, d.Before.Reserved
	}
	for i := range d.Segments {
		g := &d.Segments[i]
		if d.Balanced { // otherwise a segment can be there in parts
			o.Segments = append(o.Segments, event.ObservedSegment{Addr: g.Addr, Size: g.Size, Expandable: g.Expandable})
		}
		for _, b := range g.Blocks {
			if b.State == inspect.StateAllocated {
				o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: b.Addr, Size: b.Size, Requested: b.Requested, Stream: b.Stream})
			}
		}
	}
	if !d.Balanced {
		o.Reserved = event.Unknown
	}
	return o
}

// torchDevice is a device of the books as the events name it: PyTorch for ROCm reports its devices as CUDA's or as HIP's.
func (s *session) torchDevice(index int) event.Device {
	d := event.Device{Type: event.DeviceCUDA, Index: int8(index)}
	books := s.heap.Totals()
	for i := range books.Accounts {
		if a := &books.Accounts[i]; a.Device.Index == d.Index && a.Device.Type == event.DeviceHIP {
			return a.Device
		}
	}
	return d
}
