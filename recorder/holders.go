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
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

const (
	// peakAfter is how long after the first block the holders at a peak are first read, so that a program of a second has some; peakPause is
	// how long there is no other reading of a peak at least, and lookEvery how often it is looked whether there is one.
	peakAfter = 500 * time.Millisecond
	peakPause = time.Second
	lookEvery = 250 * time.Millisecond
	// peakShare: readings at peaks take at most 1/peakShare of the time. A reading takes a second of a core, or more.
	peakShare = 50
	// peakGrowth: holders are read again at a peak that exceeds the last one by 1/peakGrowth.
	peakGrowth = 20
	// scanTimeout is how long one reading may take, and how long the end of a recording may be put off for the last one; scanBlock is what
	// it may take more for each live block: a job that has leaked for days has a million, of which a quiet core reads one in 40 us.
	scanTimeout = 30 * time.Second
	scanBlock   = 100 * time.Microsecond
	// maxScans is how many processes are scanned at a time: each takes a core and a hundred megabytes.
	maxScans = 2
)

// holderScans reads beside a recording who holds the live blocks: at a new peak, when it is asked for, and at the end. Everything but
// the reading happens in the goroutine that owns the heap.
type holderScans struct {
	ctx      context.Context
	heap     *recordedHeap
	blocks   func() iter.Seq[heap.Block]
	target   Target
	observer Observer
	drained  *reconcile.Drained
	view     func() *view.View // of now
	slots    chan struct{}     // bounds how many processes are scanned at a time

	first   time.Time              // when something was live first
	take    func(*view.Joined)     // sees each reading that was joined; nil: nobody does
	results chan scanned           // of the reading in progress; nil: none
	cancel  context.CancelFunc     // of the same
	read    *Scan                  // done, but not all events of its time are applied
	show    bool                   // the reading was asked for
	waiting []chan<- holdersAnswer // who asked for the result of a reading that has not begun
	serving []chan<- holdersAnswer // who had asked when the one in progress began
	peak    bool                   // it is that of a peak
	wanted  bool                   // at once
	asked   bool                   // only what is asked for is read
	last    bool                   // the recording is about to end
	over    bool                   // the last reading was made, or none can be
	next    time.Time              // no reading of a peak before
	took    time.Duration          // the last reading
	looked  time.Time              // when the live bytes were last looked at
	height  uint64                 // of highest, bytes
	sought  uint64                 // live bytes at which the holders of a peak were last sought
	early   time.Time              // when holders are read before the end; zero: then, or they are read
	soon    bool                   // the reading in progress, or the last one, is that
	latest  *Scan
	highest *view.Joined // at height
	err     error        // why there was no reading, last
	garbage answer.GarbageReadings
}

// scanned is what one reading gave.
type scanned struct {
	scan *Scan
	err  error
	took time.Duration
}

// holdersAnswer is the reply to one who has asked.
type holdersAnswer struct {
	joined *view.Joined
	err    error
}

// newHolderScans begins the scans of a process. Options.NoHolders: there is none.
func newHolderScans(p *Process, slots chan struct{}, o *Options) *holderScans {
	return &holderScans{
		ctx: p.ctx, heap: p.heap, blocks: p.present, target: p.target, observer: p.observer, drained: &p.drained, view: p.View, slots: slots,
		over: o.NoHolders, asked: o.HoldersOnRequest,
	}
}

// step goes on with what there is to do. It does not wait.
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

// ask asks for a reading that is shown.
func (s *holderScans) ask() { s.show, s.wanted = true, true }

// request asks for a reading whose result is sent to a channel that has room for it.
func (s *holderScans) request(to chan<- holdersAnswer) {
	if s.over {
		to <- holdersAnswer{err: ErrOver}
		return
	}
	s.waiting, s.wanted = append(s.waiting, to), true
}

// finish asks for a last reading; over tells when it was made. One that was begun just before is the last, and where nobody asks there is none.
func (s *holderScans) finish() {
	needed := !s.soon && !s.asked || s.waiting != nil
	s.last, s.wanted = true, needed
	s.over = s.over || !needed && s.results == nil && s.read == nil
}

// earlyShare is the part of a recording's time, at its end, in which holders are read before it is over, and earlyMost the most of it:
// what is allocated later has no holder.
const (
	earlyShare = 4
	earlyMost  = 3 * time.Second
)

// endAt says when the recording will be over.
func (s *holderScans) endAt(end time.Time, duration time.Duration) {
	if s.asked {
		return
	}
	s.early = end.Add(-min(duration/earlyShare, earlyMost))
}

// maybeBegin begins to read when there is a reason.
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
	s.heap.passing.begin()
	s.serving, s.waiting = append(s.serving, s.waiting...), nil
	limit := s.timeout()
	ctx, cancel := context.WithTimeoutCause(s.ctx, limit, reconcile.Timeout(limit))
	results, target, slots := make(chan scanned, 1), s.target, s.slots
	s.results, s.cancel = results, cancel
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

// higher reports whether more is live than at the peak before, and notes it. What is joined later can be less: a job that
// goes up and down with every step must not be read again and again.
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

// allocated is what the allocators of all devices have handed out, bytes, as far as it is known.
func (h *recordedHeap) allocated() uint64 {
	var sum uint64
	totals := h.Totals()
	for i := range totals.Accounts {
		if a := &totals.Accounts[i]; a.Allocated != event.Unknown {
			sum += a.Allocated
		}
	}
	return sum
}

// timeout is how long a reading of what is live now may take.
func (s *holderScans) timeout() time.Duration {
	return scanTimeout + time.Duration(s.heap.liveBlocks())*scanBlock
}

// liveBlocks is how many blocks of the allocators are known.
func (h *recordedHeap) liveBlocks() (n uint64) {
	totals := h.Totals()
	for i := range totals.Accounts {
		n += totals.Accounts[i].Live.Objects + totals.Accounts[i].BeforeBlocks.Objects
	}
	return n
}

// receive takes what was read, once it is there.
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

// failed says that holders which were asked for could not be read. Where there is no allocator there is nothing to say.
func (s *holderScans) failed() {
	s.soon = false
	if s.show && !errors.Is(s.err, context.Canceled) {
		s.observer.Notice(fmt.Sprintf("who holds the live blocks could not be read: %v", s.err))
	}
	s.answer(holdersAnswer{err: s.err})
	if errors.Is(s.err, reconcile.ErrNoState) || errors.Is(s.err, context.Canceled) {
		s.err = nil
	}
	s.end()
}

// answer answers those who had asked when the reading began: one that was under way says nothing of what came later.
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
		go debug.FreeOSMemory() // a reading takes a hundred megabytes; events must not wait
	}
}

// pause is how long there is no reading of a peak after one. What a reading took bounds it; at the beginning, when most of a program's
// memory comes, the time since its first block does: the last reading of a program that ends by itself is not much older than half of it.
func (s *holderScans) pause(now time.Time) time.Duration {
	return max(peakPause, min(now.Sub(s.first), peakShare*s.took))
}

// join brings holders and events together, once all events up to the end of the reading are there.
func (s *holderScans) join() {
	if s.drained.To <= s.read.Until {
		return
	}
	s.latest = s.read
	s.latest.freed = s.heap.passing.take(s.latest)
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

// joined is the live blocks with the holders of the latest reading; nil when there was none.
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

// noPython says why no Python could be read by the latest reading; empty: it could, or there was none.
func (s *holderScans) noPython() string {
	if s.latest == nil {
		return ""
	}
	return s.latest.NoPython
}

// stop ends it, also in the middle. The process may have ended: what was read of it before stays.
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

// tables are the holders at the end and, where more was live then, at the highest peak that was looked into.
func (s *holderScans) tables(now *view.Joined) []table.HeldInput {
	if s.err != nil && s.latest == nil {
		s.observer.Warning(fmt.Errorf("who holds the live blocks could not be read: %w", s.err))
	}
	var out []table.HeldInput
	live := uint64(0)
	if now != nil {
		live = now.Bytes
		out = append(out, table.HeldInput{Title: table.HeldNow, Joined: now})
	}
	if s.highest != nil && s.height > live+live/peakGrowth {
		out = append(out, table.HeldInput{Title: "with " + table.Bytes(s.height) + " live", Joined: s.highest})
	}
	return out
}
