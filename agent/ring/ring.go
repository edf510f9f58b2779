// SPDX-License-Identifier: Apache-2.0

// Package ring keeps the recordings of an agent's processes on disk: for each process a folder with segments, of which the oldest are
// removed. Each segment is a recording of its own that begins with the live set.
//
//	DIR/pid4242-8812345/target.json                                   the process, its labels and its namespace
//	DIR/pid4242-8812345/20261129T005203.000000Z/trace.gputrace        a segment, by the time at which it begins
//
// A directory that cannot be written never stops the agent: the process is traced and not recorded until a later attempt succeeds.
package ring

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recording"
)

// Options configure a Ring.
type Options struct {
	// Dir is the directory of the ring, which is made.
	Dir string
	// SegmentSize, in bytes, and SegmentAge are the size and the age at which a segment ends. A segment is at least twice as large as the
	// live set at its beginning.
	SegmentSize int64
	SegmentAge  time.Duration
	// TargetSize limits the segments of each process, and MaxSize the segments of all, in bytes. Up to a second of events can exceed them.
	TargetSize, MaxSize int64
	// MaxAge is the time after which a segment that has ended is removed.
	MaxAge time.Duration
	// Describe returns what is known of a process. It is called from any goroutine.
	Describe func(p *recorder.Process) Target
	// Log receives failures.
	Log *slog.Logger
	// Now returns the time; nil: time.Now.
	Now func() time.Time
}

// Counts are a ring's metrics.
type Counts struct {
	Segments atomic.Uint64 // segments that were begun
	Removed  atomic.Uint64 // segments that were removed because of a bound
	Failures atomic.Uint64 // errors of the directory: a segment could not be begun, written or removed
	Paused   atomic.Uint64 // times that a process was not recorded for pauseTooLarge, because its live set alone exceeds a bound
}

// Pauses before a segment is begun after a failure: from pauseFirst, doubled up to pauseLast.
const (
	pauseFirst    = time.Second
	pauseLast     = time.Minute
	pauseTooLarge = 10 * time.Minute
	// tickEvery is how often bounds are applied, and the files of current segments are looked for.
	tickEvery = time.Second
	// sayAgain is the shortest time between two log lines about the same failure.
	sayAgain = 10 * time.Minute
)

// Ring keeps recordings. It implements recorder.Divider. Its other methods may be called from any goroutine.
type Ring struct {
	Counts  Counts
	options Options
	closing sync.WaitGroup
	pages   chan struct{} // holds a value while a page is made
	waiting atomic.Int64  // requests for pages

	mu      sync.Mutex // is not held while a file is read or written
	targets map[string]*kept
	live    map[*recorder.Process]*live
	failing bool // the last attempt to begin a segment failed
	stale   bool // segments may have been removed by others, or come back
	said    string
	saidAt  time.Time
}

var _ recorder.Divider = (*Ring)(nil)

// kept is a process with its segments, the oldest first.
type kept struct {
	id       string
	about    Target
	segments []*segment
}

// segment is a recording on disk.
type segment struct {
	target *kept
	name   string
	bytes  int64
	began  time.Time
	ended  time.Time // zero: it is being written
}

// live is a process that is traced.
type live struct {
	target  *kept
	segment *segment // nil: it is not recorded now
	writer  *recording.Writer
	file    os.FileInfo
	base    int64         // size at the beginning, bytes
	over    bool          // the segment must end
	large   bool          // and exceeds a bound alone
	retry   time.Time     // when the next segment may begin
	pause   time.Duration // after the next failure
}

// New returns a ring. Nothing is read or written before Run.
func New(o *Options) *Ring {
	r := &Ring{options: *o, targets: map[string]*kept{}, live: map[*recorder.Process]*live{}, pages: make(chan struct{}, 1)}
	if r.options.Now == nil {
		r.options.Now = time.Now
	}
	return r
}

// Run finds the segments of an earlier agent, and applies the bounds until ctx is done.
func (r *Ring) Run(ctx context.Context) {
	r.scan()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		r.tick()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Wait waits until the segments that have ended are on the disk. No process may be recorded any more.
func (r *Ring) Wait() { r.closing.Wait() }

// Reserve implements recorder.Keeper.
func (*Ring) Reserve() error { return nil }

// Create implements recorder.Keeper.
func (r *Ring) Create(p *recorder.Process, info *recording.Info, stack func(event.StackID) *event.Stack) (*recording.Writer, error) {
	about := r.options.Describe(p)
	if !targetName.MatchString(about.ID) {
		return nil, fmt.Errorf("recordings: %q is not the name of a process", about.ID)
	}
	r.mu.Lock()
	t := r.targets[about.ID]
	if t == nil {
		t = &kept{id: about.ID}
		r.targets[about.ID] = t
	}
	t.about = about
	l := &live{target: t, pause: pauseFirst}
	r.live[p] = l
	r.mu.Unlock()
	return r.begin(l, info, stack, nil)
}

// Due implements recorder.Divider.
func (r *Ring) Due(p *recorder.Process, written int64) bool {
	now := r.options.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.live[p]
	switch {
	case l == nil:
		return false
	case written < 0 || l.segment == nil:
		return !now.Before(l.retry)
	}
	l.segment.bytes = written
	return l.over || now.Sub(l.segment.began) >= r.options.SegmentAge || written >= max(r.options.SegmentSize, 2*l.base)
}

// Divide implements recorder.Divider.
func (r *Ring) Divide(p *recorder.Process, s *recorder.Segment) (*recording.Writer, error) {
	r.mu.Lock()
	l := r.live[p]
	large := l.large
	l.over, l.large = false, false
	if large {
		l.retry = r.options.Now().Add(pauseTooLarge)
	}
	r.mu.Unlock()
	if s.End != nil {
		r.finish(p, l, s.End, false)
	}
	if large {
		r.Counts.Paused.Add(1)
		return nil, fmt.Errorf("recordings: %s is not recorded for %s: its live set is too large for the bounds", l.target.id, pauseTooLarge)
	}
	return r.begin(l, s.Info, s.Stack, s.Before)
}

// begin begins a segment.
func (r *Ring) begin(
	l *live, info *recording.Info, stack func(event.StackID) *event.Stack, before *recording.Before,
) (*recording.Writer, error) {
	now := r.options.Now()
	s := &segment{target: l.target, name: now.UTC().Format(segmentLayout), began: now}
	dir := filepath.Join(r.options.Dir, l.target.id, s.name)
	path := filepath.Join(dir, export.TraceName)
	w, file, err := r.create(l, path, info, stack, before)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed(l)
		_ = os.Remove(dir) // it is left only if it is not empty
		return nil, fmt.Errorf("recordings: %w: again in %s", err, l.retry.Sub(now))
	}
	s.bytes = w.Size()
	l.segment, l.writer, l.file, l.base, l.over = s, w, file, w.Size(), false
	if l.target.segments = append(l.target.segments, s); r.failing {
		r.failing = false
		r.options.Log.Info("recordings are written again", "directory", r.options.Dir)
	}
	r.targets[l.target.id] = l.target
	r.Counts.Segments.Add(1)
	return w, nil
}

// create makes the folders and the file of a segment.
func (r *Ring) create(
	l *live, path string, info *recording.Info, stack func(event.StackID) *event.Stack, before *recording.Before,
) (*recording.Writer, os.FileInfo, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	about := l.target.about
	r.mu.Unlock()
	if err := r.describe(&about); err != nil {
		return nil, nil, err
	}
	w, err := recording.Create(path, info, stack, &recording.Options{Before: before})
	if err != nil {
		return nil, nil, err
	}
	file, err := os.Lstat(path)
	if err != nil {
		_ = w.Close(&recording.End{Reason: recording.ReasonStopped}) // it has no name any more
		return nil, nil, err
	}
	return w, file, nil
}

// failed counts a failure of a process's segment, and delays its next one. r.mu is held.
func (r *Ring) failed(l *live) {
	r.Counts.Failures.Add(1)
	r.failing, r.stale = true, true
	l.retry, l.pause = r.options.Now().Add(l.pause), min(2*l.pause, pauseLast)
}

// finish completes the current segment of a process. What takes time is done in another goroutine. last: the process has ended, so that
// a segment without events is not kept if it is the only one.
func (r *Ring) finish(p *recorder.Process, l *live, end *recording.End, last bool) {
	r.mu.Lock()
	s, w := l.segment, l.writer
	l.segment, l.writer, l.file = nil, nil, nil
	alone := len(l.target.segments) == 1
	r.mu.Unlock()
	if s == nil {
		return
	}
	_ = w.Seal() // Close returns the error
	report, unused := p.Leaks(), alone && last && w.Size() == l.base
	r.closing.Go(func() {
		var verdict strings.Builder
		if report != nil {
			_ = table.Verdict(&verdict, report) // a Builder returns no error
		}
		end.Verdict = verdict.String()
		err := w.Close(end)
		r.mu.Lock()
		s.bytes, s.ended = w.Size(), r.options.Now()
		if err == nil {
			l.pause = pauseFirst
		}
		r.mu.Unlock()
		if unused {
			err = r.remove(s)
		} else if _, missing := os.Lstat(r.path(s)); missing != nil {
			r.drop(s) // it was removed while it was written
		}
		if err != nil && end.Error == "" { // otherwise Failed has reported it
			r.complain("a recording cannot be completed", err)
		}
	})
}

// Failed implements recorder.Divider.
func (r *Ring) Failed(p *recorder.Process, err error) {
	r.mu.Lock()
	l := r.live[p]
	if l != nil {
		r.failed(l)
		r.options.Log.Warn("a recording cannot be written", "process", l.target.id, "error", err, "again at", l.retry)
	}
	r.mu.Unlock()
	if l != nil {
		r.finish(p, l, &recording.End{Reason: recording.ReasonStopped}, false)
	}
}

// Finish implements recorder.Keeper. A process that used no memory leaves nothing.
func (r *Ring) Finish(p *recorder.Process, end *recording.End) error {
	r.mu.Lock()
	l := r.live[p]
	r.mu.Unlock()
	r.Forget(p)
	if l != nil {
		r.finish(p, l, end, true)
	}
	return nil
}

// Forget lets go of a process that has ended.
func (r *Ring) Forget(p *recorder.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.live, p)
}

// Keep implements recorder.Keeper. A ring saves no recording of a failed request: the segment contains it.
func (*Ring) Keep(*recorder.Process, int) (recorder.Kept, error) { return nil, nil }

// Drop implements recorder.Keeper.
func (r *Ring) Drop(p *recorder.Process) error {
	return r.Finish(p, &recording.End{Reason: recording.ReasonStopped})
}

// Close implements recorder.Keeper. It completes the segments of a recorder that could not end in order.
func (r *Ring) Close() error {
	r.mu.Lock()
	all := make([]*recorder.Process, 0, len(r.live))
	for p := range r.live {
		all = append(all, p)
	}
	r.mu.Unlock()
	for _, p := range all {
		_ = r.Finish(p, &recording.End{Reason: recording.ReasonStopped}) // it returns no error
	}
	return nil
}
