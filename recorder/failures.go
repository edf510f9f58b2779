// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

const (
	// readFirst is when the driver and the allocator's pools are first read, and readEvery the initial interval after
	// that. A process that is killed by a failed request cannot be read any more, so a recent reading must exist.
	readFirst = time.Second
	readEvery = 10 * time.Second
	// fullShare: if less than 1/fullShare of a device is free, holders are read every holdersEvery, before a request fails.
	fullShare = 10
	// contextBytes is the approximate size of the driver's own memory for a process, used where the driver itself cannot be asked.
	contextBytes = 512 << 20
	holdersEvery = time.Minute
	// keptFailures is the number of failed requests that get a folder. Later ones get a reading every laterEvery.
	keptFailures = 5
	laterEvery   = time.Minute
)

// failures handles failed requests for memory. It first writes the recording to the disk, then reads the driver, the pools
// and the holders while the exception propagates, and writes a folder next to the results that explains the failure.
type failures struct {
	process *Process
	end     context.CancelFunc // ends the recording
	seen    bool               // next found a failure
	last    event.Event        // the last failure; Kind 0: its thread has allocated since

	due     time.Time            // when the next reading is due
	pause   time.Duration        // interval between the last two readings
	held    time.Time            // when holders were last requested
	reading chan figures.Reading // in progress; nil: none
	answers chan holdersAnswer   // the same for holders
	failure uint64               // time of the request that caused them; 0: none
	count   int
	later   time.Time // time of the last reading for a failure without a folder
	kept    Kept      // of the last failure; nil: none
	writing chan error
	again   bool // the folder must be written again
	fills   fills
	hurried bool // a reading was begun at once for a device of unknown size
}

func newFailures(p *Process, end context.CancelFunc) *failures {
	return &failures{process: p, end: end}
}

// next returns how many of the events to apply before the next check: those up to a failure, in which case it sets seen.
func (f *failures) next(events []event.Event) int {
	for i := range events {
		e := &events[i]
		f.fills.see(e)
		if e.Kind == event.KindAlloc && e.TID == f.last.TID {
			f.last.Kind = 0
		}
		if e.Kind == event.KindOutOfMemory && f.fails(e) && !f.repeats(e) {
			f.seen, f.last = true, *e
			return i + 1
		}
	}
	f.seen = false
	return len(events)
}

// fails reports whether a request of the program failed, as far as that is known at once. A request that the driver
// refused to the caching allocator is not counted, because the allocator retries it.
func (f *failures) fails(e *event.Event) bool {
	if e.Layer == event.LayerAllocator {
		return true
	}
	st := f.process.joiner.Stack(e.Stack)
	return e.Layer == event.LayerDevice && (st == nil || !stacks.IsSegment(st) || stacks.IsAsyncBackend(st, e.Call))
}

// repeats reports whether PyTorch's backend cudaMallocAsync repeats, from another call site of its own, a request that
// was just refused (view.Refusals).
func (f *failures) repeats(e *event.Event) bool {
	l := &f.last
	same := e.Kind == l.Kind && e.Layer == l.Layer && e.TID == l.TID && e.Call == l.Call && e.Size == l.Size && e.Stack != l.Stack
	return same && e.Layer == event.LayerDevice && stacks.IsAsyncBackend(f.process.joiner.Stack(e.Stack), e.Call)
}

// failed handles a failed request, after the events up to it were applied.
func (f *failures) failed(e *event.Event) {
	f.seen = false
	if f.count++; f.hasNoFolder() {
		if time.Since(f.later) < laterEvery {
			return
		}
		f.later = time.Now()
	}
	p := f.process
	f.failure = e.Time
	if joined := p.scans.joined(p.View()); joined != nil {
		f.markHeld(p.scans.latest.Until, joined)
	}
	if !f.hasNoFolder() {
		f.keep()
	}
	f.read()
	f.askHolders()
	failed := &OutOfMemory{Process: p, Time: e.Time, Device: e.Device, Site: p.siteName(e.Stack), Bytes: e.Size}
	if !f.hasNoFolder() {
		failed.Kept = nameOf(f.kept)
	}
	p.observer.Event(failed)
}

// siteName returns the line of the program after which a stack is named.
func (p *Process) siteName(id event.StackID) string {
	st := p.joiner.Stack(id)
	if id == 0 {
		return stacks.NoStack
	}
	if st == nil || len(st.Frames) == 0 {
		return stacks.UnknownStack
	}
	return stacks.Name(st.Frames, stacks.OwnFrame(st.Frames, p.torchFolders()))
}

// hasNoFolder reports whether the last failure came after keptFailures others.
func (f *failures) hasNoFolder() bool { return f.count > keptFailures }

// markHeld records the holders at a time. It ignores a process that has ended, which has no holders any more.
func (f *failures) markHeld(at uint64, joined *view.Joined) {
	if held := trailer.HeldAt(joined); len(held) > 0 {
		f.mark(&figures.Reading{Time: at, Failed: f.failure, Held: held, Calls: trailer.CallsAt(joined)})
	}
}

// askHolders requests a scan for the holders of the live blocks.
func (f *failures) askHolders() {
	if p := f.process; !p.options.NoHolders && f.answers == nil {
		f.answers, f.held = make(chan holdersAnswer, 1), time.Now()
		p.scans.request(f.answers)
	}
}

// foresee requests a holder scan when a device is nearly full, because after a failed request it can be too late.
func (f *failures) foresee(r *figures.Reading) {
	if isNearlyFull(r) && time.Since(f.held) > holdersEvery {
		f.askHolders()
	}
}

// isNearlyFull reports whether a device is nearly full, according to the driver or, if it cannot be asked, to the size of the device.
func isNearlyFull(r *figures.Reading) bool {
	for i := range r.Driver {
		d := &r.Driver[i]
		if d.Used != figures.Unknown && d.Total != figures.Unknown && d.All != figures.Unknown && d.All > d.Total-d.Total/fullShare {
			return true
		}
	}
	if len(r.Driver) > 0 {
		return false
	}
	for i := range r.Sizes {
		for k := range r.Torch {
			d, t := &r.Sizes[i], &r.Torch[k]
			if t.Device == d.Device && t.Reserved != figures.Unknown && t.Reserved+contextBytes > d.Bytes-d.Bytes/fullShare {
				return true
			}
		}
	}
	return false
}

// keep writes the recording to the disk and saves it up to here.
func (f *failures) keep() {
	p := f.process
	if _, divides := p.options.Keeper.(Divider); divides || p.heap.writer == nil {
		return
	}
	if err := p.heap.writer.Flush(); err != nil {
		p.observer.Warning(err)
		return
	}
	saved, err := p.options.Keeper.Keep(p, f.count)
	if err != nil {
		p.observer.Warning(err)
		return
	}
	f.kept = saved
	f.write()
}

// nameOf returns the name of a saved recording; empty for nil.
func nameOf(k Kept) string {
	if k == nil {
		return ""
	}
	return k.Name()
}

// follow adds what was recorded since.
func (f *failures) follow() { f.process.heap.check(f.kept.Follow()) }

// write explains the failed request in the folder, while the recording continues.
func (f *failures) write() {
	if f.kept == nil {
		return
	}
	if f.writing != nil {
		f.again = true
		return
	}
	f.follow()
	done, saved := make(chan error, 1), f.kept
	f.writing, f.again = done, false
	go func() { done <- saved.Explain() }()
}

// read starts a reading of the driver and the pools.
func (f *failures) read() {
	if f.reading != nil {
		return
	}
	f.pause = min(max(2*f.pause, readFirst), readEvery)
	f.due = time.Now().Add(f.pause)
	ctx, cancel := context.WithTimeoutCause(f.process.ctx, totalsTimeout, reconcile.Timeout(totalsTimeout))
	results, target, failure := make(chan figures.Reading, 1), f.process.target, f.failure
	f.reading = results
	go func() {
		defer cancel()
		m := target.Memory(ctx)
		results <- figures.Reading{
			Time: m.Time, Failed: failure, Driver: m.Driver, Others: m.Others, Moved: m.Moved, Private: m.Private, Limits: m.Limits,
			Sizes: m.Sizes, Fresh: m.Fresh, Torch: m.Torch,
		}
	}()
}

// step does the work that is due, without waiting.
func (f *failures) step() {
	select {
	case r := <-f.reading:
		f.reading = nil
		if r.Time != 0 {
			f.mark(&r)
			f.fills.read(&r)
			f.foresee(&r)
		}
		if r.Failed != f.failure { // a request failed in the meantime
			f.read()
		} else {
			f.settle()
		}
	case a := <-f.answers:
		f.answers = nil
		if a.err == nil {
			f.markHeld(f.process.heap.Totals().Time, a.joined)
		}
		f.settle()
	case err := <-f.writing:
		f.writing = nil
		if err != nil {
			f.process.observer.Warning(err)
		}
		if f.again {
			f.write()
		}
	default:
		f.lookAhead()
	}
}

// lookAhead reads what will be wanted when a request fails.
func (f *failures) lookAhead() {
	if f.failure != 0 || f.process.options.Keeper == nil {
		return
	}
	if f.fills.reached() {
		f.askHolders()
	}
	if isNew := f.fills.isNew(); time.Now().After(f.due) || isNew && !f.hurried {
		f.hurried = f.hurried || isNew
		f.read()
	}
}

// settle writes the folder again once everything was read, and ends the recording if Options.UntilOOM is set. It does
// not end it if the thread has allocated since, and so has caught the failure.
func (f *failures) settle() {
	p := f.process
	if f.failure == 0 || f.answers != nil || f.reading != nil {
		return
	}
	if p.heap.writer != nil {
		p.heap.check(p.heap.writer.Flush())
	}
	if !f.hasNoFolder() {
		f.write()
	}
	f.failure = 0
	switch {
	case !p.options.UntilOOM:
	case f.last.Kind == 0:
		p.observer.Event(&Survived{p})
	default:
		f.end()
	}
}

// await waits at most totalsTimeout for the reading that a failure requested, if the recording ends first: a process
// that ends with the failure leaves no time for it.
func (f *failures) await() {
	for f.failure != 0 && f.reading != nil && f.process.frozen.until == 0 {
		r := <-f.reading
		f.reading = nil
		if r.Time != 0 {
			f.mark(&r)
		}
		if r.Failed != f.failure {
			f.read()
		}
	}
}

// conclude waits for the folder, once the recording is complete.
func (f *failures) conclude() {
	if f.kept == nil {
		return
	}
	if f.writing != nil {
		<-f.writing
		f.writing = nil
	}
	f.follow()
	err := f.kept.Explain()
	if err != nil {
		f.process.observer.Warning(err)
	}
}

func (f *failures) mark(r *figures.Reading) {
	text, err := json.Marshal(r)
	if err != nil {
		f.process.observer.Warning(err)
		return
	}
	f.process.heap.mark(event.Annotation{Kind: event.AnnotationReading, PID: uint32(f.process.PID()), Reading: text})
}
