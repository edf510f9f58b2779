// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

const (
	// peakAfter is the time from the first block to the first scan at a peak, so that even a program of one second gets
	// one. peakPause is the shortest time between scans at peaks, and lookEvery the interval of checks for a new peak.
	peakAfter = 500 * time.Millisecond
	peakPause = time.Second
	lookEvery = 250 * time.Millisecond
	// peakShare limits scans at peaks to 1/peakShare of the time, because a scan takes a second of a core or more.
	peakShare = 50
	// peakGrowth: a peak that exceeds the last one by 1/peakGrowth is scanned again.
	peakGrowth = 20
	// scanTimeout limits one scan, and how long the last one may delay the end of a recording. scanBlock is added for
	// each live block: a job that has leaked for days has a million, and a quiet core reads one in 40 us.
	scanTimeout = 30 * time.Second
	scanBlock   = 100 * time.Microsecond
	// maxScans is the number of processes that are scanned at a time: each takes a core and a hundred megabytes.
	maxScans = 2
)

// holderScans scans for the holders of the live blocks during a recording: at new peaks, on request, and at the end.
// Everything except the scan runs in the goroutine that owns the heap.
type holderScans struct {
	process  *Process
	ctx      context.Context
	heap     *recordedHeap
	blocks   func() iter.Seq[heap.Block]
	target   Target
	observer Observer
	drained  *reconcile.Drained
	view     func() *view.View // the current one
	slots    chan struct{}     // limits how many processes are scanned at a time

	first   time.Time              // when the first block was live
	take    func(*view.Joined)     // called with each joined scan; nil: not called
	results chan scanned           // result of the scan in progress; nil: none
	cancel  context.CancelFunc     // cancels the scan in progress
	read    *Scan                  // a finished scan, before all events of its time are applied
	show    bool                   // show the result to the observer
	waiting []chan<- holdersAnswer // requests that wait for a scan to begin
	serving []chan<- holdersAnswer // requests that the scan in progress answers
	peak    bool                   // the scan is for a peak
	wanted  bool                   // scan at once
	asked   bool                   // scan only on request
	last    bool                   // the recording is about to end
	over    bool                   // the last scan was made, or none is possible
	tried   bool                   // a scan was begun
	next    time.Time              // no scan for a peak before this time
	took    time.Duration          // duration of the last scan
	looked  time.Time              // when the live bytes were last checked
	height  uint64                 // of highest, bytes
	sought  uint64                 // live bytes at the last search for holders at a peak
	early   time.Time              // when to scan before the end; zero: at the end, or the scan was made
	soon    bool                   // the scan in progress, or the last one, is the early one
	latest  *Scan
	highest *view.Joined // the joined scan with the most bytes, height
	err     error        // why the last scan failed
	garbage answer.GarbageReadings
}

// scanned is the result of one scan.
type scanned struct {
	scan *Scan
	err  error
	took time.Duration
}

// holdersAnswer is the answer to a request for holders.
type holdersAnswer struct {
	joined *view.Joined
	err    error
}

// newHolderScans prepares the scans of a process. With Options.NoHolders it makes none.
func newHolderScans(p *Process, slots chan struct{}, o *Options) *holderScans {
	return &holderScans{
		process: p, ctx: p.ctx, heap: p.heap, blocks: p.present, target: p.target, observer: p.observer,
		drained: &p.drained, view: p.View, slots: slots,
		over: o.NoHolders, asked: o.HoldersOnRequest,
	}
}

// step does the work that is due, without waiting.
func (s *holderScans) step() {
	switch {
	case s.over:
	case s.read != nil:
		s.join()
	case s.results != nil:
		s.receive()
	default:
		s.maybeBegin(time.Now())
	}
}

// ask requests a scan whose result is shown.
func (s *holderScans) ask() { s.show, s.wanted = true, true }

// request requests a scan whose result is sent to a channel, which must have room for it.
func (s *holderScans) request(to chan<- holdersAnswer) {
	if s.over {
		to <- holdersAnswer{err: ErrOver}
		return
	}
	s.waiting, s.wanted = append(s.waiting, to), true
}

// finish requests the last scan; over is set once it was made. A scan that has just begun counts as the last, and
// without a request there is none.
func (s *holderScans) finish() {
	needed := !s.soon && !s.asked || s.waiting != nil
	s.last, s.wanted = true, needed
	s.over = s.over || !needed && s.results == nil && s.read == nil
}

// earlyShare: the scan before the end begins in the last 1/earlyShare of the recording's time, and at most earlyMost
// before the end. Memory that is allocated later has no holder.
const (
	earlyShare = 4
	earlyMost  = 3 * time.Second
)

// endAt sets the time at which the recording will end.
func (s *holderScans) endAt(end time.Time, duration time.Duration) {
	if s.asked {
		return
	}
	s.early = end.Add(-min(duration/earlyShare, earlyMost))
}

// maybeBegin begins a scan if there is a reason.
func (s *holderScans) maybeBegin(now time.Time) {
	early := !s.early.IsZero() && now.After(s.early)
	s.peak = !s.wanted && !early && s.higher(now)
	if !s.wanted && !s.peak && !early {
		return
	}
	if early {
		s.early, s.soon = time.Time{}, true
	}
	s.wanted = false
	s.heap.passing.Begin()
	s.serving, s.waiting = append(s.serving, s.waiting...), nil
	limit := s.timeout()
	ctx, cancel := context.WithTimeoutCause(s.ctx, limit, reconcile.Timeout(limit))
	results, target, slots := make(chan scanned, 1), s.target, s.slots
	s.results, s.cancel, s.tried = results, cancel, true
	go func() {
		defer cancel()
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			results <- scanned{err: context.Cause(ctx)}
			return
		}
		began := time.Now()
		scan, err := target.Holders(ctx)
		results <- scanned{scan, err, time.Since(began)}
	}()
}

// higher reports whether more memory is live than at the last peak, and records it. The joined scan can have less, and
// a job that grows and shrinks in every step must not be scanned again and again.
func (s *holderScans) higher(now time.Time) bool {
	if s.asked || now.Before(s.next) || now.Sub(s.looked) < lookEvery {
		return false
	}
	s.looked = now
	live := s.heap.allocated()
	if live > 0 && s.first.IsZero() {
		s.first, s.next = now, now.Add(peakAfter)
		return false
	}
	if live <= s.sought+s.sought/peakGrowth {
		return false
	}
	s.sought = live
	return true
}

// allocated returns the bytes that the allocators of all devices have handed out, as far as known. Of an allocator that reports no total
// it counts the known blocks, if their holders can be found.
func (h *recordedHeap) allocated() uint64 {
	var sum uint64
	totals := h.Totals()
	for i := range totals.Accounts {
		switch a := &totals.Accounts[i]; {
		case a.Allocated != event.Unknown:
			sum += a.Allocated
		case a.Device.Allocator().Held():
			sum += a.Live.Bytes
		}
	}
	return sum
}

// timeout returns the time limit of a scan of the blocks that are live now.
func (s *holderScans) timeout() time.Duration {
	return scanTimeout + time.Duration(s.heap.liveBlocks())*scanBlock
}

// liveBlocks returns the number of known blocks of the allocators.
func (h *recordedHeap) liveBlocks() (n uint64) {
	totals := h.Totals()
	for i := range totals.Accounts {
		n += totals.Accounts[i].Live.Objects + totals.Accounts[i].BeforeBlocks.Objects
	}
	return n
}

// receive stores a finished scan.
func (s *holderScans) receive() {
	select {
	case got := <-s.results:
		s.results, s.cancel = nil, nil
		s.read, s.err, s.took = got.scan, got.err, got.took
		if got.err != nil {
			s.failed()
		}
	default:
	}
}

// failed reports that a requested scan failed. A process without an allocator is no reason to report.
func (s *holderScans) failed() {
	s.soon = false
	if s.show && !errors.Is(s.err, context.Canceled) {
		s.observer.Event(&HoldersUnread{s.process, s.err})
	}
	s.answer(holdersAnswer{err: s.err})
	if errors.Is(s.err, reconcile.ErrNoState) || errors.Is(s.err, context.Canceled) {
		s.err = nil
	}
	s.end()
}

// answer answers the requests that existed when the scan began; a scan in progress does not cover later memory.
func (s *holderScans) answer(a holdersAnswer) {
	for _, to := range s.serving {
		to <- a
	}
	s.serving = nil
}

func (s *holderScans) end() {
	s.read, s.show = nil, false
	now := time.Now()
	s.next = now.Add(s.pause(now))
	if s.over = s.last && !s.wanted; !s.over {
		go debug.FreeOSMemory() // a scan takes a hundred megabytes; events must not wait
	}
}

// pause returns the time without scans after a scan for a peak: peakShare times its duration, but at first no more than
// the time since the first block. Most of a program's memory is allocated at its beginning; so the last scan of a
// program that ends by itself is from its second half.
func (s *holderScans) pause(now time.Time) time.Duration {
	return max(peakPause, min(now.Sub(s.first), peakShare*s.took))
}

// join combines holders and events, once all events up to the end of the scan are applied.
func (s *holderScans) join() {
	if s.drained.To <= s.read.Until {
		return
	}
	s.latest = s.read
	s.latest.freed = s.heap.passing.Take(s.latest.Held)
	now := s.view()
	joined := s.joined(now)
	s.garbage.See(joined, now)
	if s.peak || s.show || s.serving != nil {
		if joined.Bytes > s.height {
			s.height, s.highest = joined.Bytes, joined
		}
		if s.take != nil {
			s.take(joined)
		}
		if s.show {
			s.observer.Holders(joined)
		}
		s.answer(holdersAnswer{joined: joined})
	}
	s.end()
}

// joined returns the live blocks with the holders of the latest scan; nil without a scan.
func (s *holderScans) joined(v *view.View) *view.Joined {
	if s.latest == nil {
		return nil
	}
	j := s.latest.Join(v, s.blocks())
	if s.latest.Passing != nil {
		j.Passing = s.latest.Passing(v, s.latest.freed)
	}
	return j
}

// noPython returns why the latest scan could read no Python; empty: it could, or there was no scan. A program of Python's whose request
// failed and that ended before a scan has a reason, too.
func (s *holderScans) noPython() string {
	switch p := s.process; {
	case s.latest != nil:
		return s.latest.NoPython
	case s.tried && !s.asked && p.failures.count > 0 && p.End() == Exited && p.Found().Python != "":
		return "the program ended before they were read"
	}
	return ""
}

// stop cancels the scan in progress. The process may have ended: results of earlier scans stay.
func (s *holderScans) stop() {
	if s.cancel != nil {
		s.cancel()
	}
	if s.read != nil {
		s.latest = s.read
	}
	s.serving, s.waiting = append(s.serving, s.waiting...), nil
	s.answer(holdersAnswer{err: ErrOver})
	s.read, s.over = nil, true
}

// tables returns the holders at the end and, if more was live then, at the highest scanned peak.
func (s *holderScans) tables(now *view.Joined) []trailer.Table {
	if s.err != nil && s.latest == nil && !errors.Is(s.err, process.ErrEnded) { // a program that has ended is no fault
		s.observer.Warning(fmt.Errorf("who holds the live blocks could not be read: %w", s.err))
	}
	var out []trailer.Table
	live := uint64(0)
	if now != nil {
		live = now.Bytes
		out = append(out, trailer.Table{Title: trailer.HeldNow, Joined: now})
	}
	if s.highest != nil && s.height > live+live/peakGrowth {
		out = append(out, trailer.Table{Title: "with " + size.Text(s.height) + " live", Joined: s.highest})
	}
	return out
}
