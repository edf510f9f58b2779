//go:build amd64

package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/who"
)

const (
	// peakAfter is how long a recording lasts before the holders at a new peak are read, and peakPause how long there is none
	// after a reading: it takes about a second of a core.
	peakAfter = 10 * time.Second
	peakPause = 10 * time.Second
	// peakGrowth is how much higher than the last one a peak is whose holders are read anew: one part in so many.
	peakGrowth = 20
	// lastNames is how long the end of a recording may be put off for the who.
	lastNames = 15 * time.Second
)

// naming reads beside a recording who holds the live blocks: at a new peak, when it is asked for (SIGUSR1), and at the end.
// Everything but the reading happens in the goroutine that owns the heap.
type naming struct {
	session *session
	asked   chan os.Signal
	results chan whoNames // of the reading in progress; nil: none
	read    *who.Report   // done, but not all events of its time are applied
	show    bool          // the reading was asked for
	peak    bool          // it is that of a peak
	wanted  bool          // at once
	last    bool          // the recording is about to end
	over    bool          // the last reading was made, or none can be
	next    time.Time     // no reading of a peak before
	looked  time.Time     // when the live bytes were last looked at
	height  uint64        // of highest, bytes
	sought  uint64        // live bytes at which the holders of a peak were last sought
	latest  *holders.Index
	highest *view.Joined // at height
	err     error        // why there was no reading, last
}

// whoNames is what one reading gave.
type whoNames struct {
	report *who.Report
	err    error
}

func newNaming(s *session) *naming {
	n := &naming{session: s, asked: make(chan os.Signal, 1), over: s.opts.noNames, next: s.start.Add(peakAfter)}
	if !n.over {
		signal.Notify(n.asked, syscall.SIGUSR1)
	}
	return n
}

// step goes on with what there is to do. It does not wait.
func (n *naming) step() {
	switch {
	case n.over:
	case n.read != nil:
		n.join()
	case n.results != nil:
		n.receive()
	default:
		n.maybeBegin(time.Now())
	}
}

// finish asks for a last reading; over tells when it was made.
func (n *naming) finish() { n.last, n.wanted = true, true }

// maybeBegin begins to read when there is a reason.
func (n *naming) maybeBegin(now time.Time) {
	select {
	case <-n.asked:
		n.show, n.wanted = true, true
	default:
	}
	n.peak = !n.wanted && n.higher(now)
	if !n.wanted && !n.peak {
		return
	}
	n.wanted = false
	results, target, turns := make(chan whoNames, 1), n.session.target, n.session.turns
	n.results = results
	go func() {
		if turns != nil {
			turns <- struct{}{}
			defer func() { <-turns }()
		}
		report, err := who.Read(target, nil)
		results <- whoNames{report, err}
	}()
}

// higher reports whether more is live than at the peak before, and takes it down. What is joined later can be less: a job that
// goes up and down with every step must not be read again and again.
func (n *naming) higher(now time.Time) bool {
	if now.Before(n.next) || now.Sub(n.looked) < time.Second {
		return false
	}
	n.looked = now
	live := n.session.allocated()
	if live <= n.sought+n.sought/peakGrowth {
		return false
	}
	n.sought = live
	return true
}

// allocated is what the allocators of all devices have handed out, bytes, as far as it is known.
func (s *session) allocated() uint64 {
	var sum uint64
	books := s.heap.Totals()
	for i := range books.Accounts {
		if a := &books.Accounts[i]; a.Allocated != event.Unknown {
			sum += a.Allocated
		}
	}
	return sum
}

// receive takes what was read, once it is there.
func (n *naming) receive() {
	select {
	case got := <-n.results:
		n.results = nil
		n.read, n.err = got.report, got.err
		if got.err != nil {
			n.failed()
		}
	default:
	}
}

// failed says that holders which were asked for could not be read. Where there is no allocator there is nothing to say.
func (n *naming) failed() {
	if n.show {
		n.session.screen.say("who holds the live blocks could not be read: %v", n.err)
	}
	if errors.Is(n.err, inspect.ErrNoAllocator) || errors.Is(n.err, inspect.ErrOtherBackend) {
		n.err = nil
	}
	n.end()
}

func (n *naming) end() {
	n.read, n.show = nil, false
	n.next = time.Now().Add(peakPause)
	if n.over = n.last && !n.wanted; !n.over {
		go debug.FreeOSMemory() // a reading takes a hundred megabytes; events must not wait
	}
}

// join brings holders and events together, once all events up to the end of the reading are there.
func (n *naming) join() {
	report := n.read
	if n.session.resync.drained <= report.Time+uint64(report.Stats.Confirm) {
		return
	}
	n.latest = holders.New(report)
	if n.peak || n.show {
		joined := n.joined(n.session.view())
		if joined.Bytes > n.height {
			n.height, n.highest = joined.Bytes, joined
		}
		if n.show {
			n.session.screen.endLive()
			if err := table.Held(n.session.screen.out, table.HeldInput{Title: "live in torch", Joined: joined}); err != nil {
				n.session.screen.warn(err)
			}
		}
	}
	n.end()
}

// joined is the live blocks with the holders of the latest reading; nil when there was none.
func (n *naming) joined(v *view.View) *view.Joined {
	if n.latest == nil {
		return nil
	}
	return n.latest.Join(v, n.session.heap.Blocks())
}

// stop ends it, also in the middle. The process may be gone: what was read of it before stays.
func (n *naming) stop() {
	if n.read != nil {
		n.latest = holders.New(n.read)
	}
	n.read, n.over = nil, true
}

// tables are the holders at the end and, where more was live then, at the highest peak that was looked into.
func (n *naming) tables(now *view.Joined) []table.HeldInput {
	if n.err != nil {
		n.session.screen.warn(fmt.Errorf("who holds the live blocks could not be read: %w", n.err))
	}
	var out []table.HeldInput
	live := uint64(0)
	if now != nil {
		live = now.Bytes
		out = append(out, table.HeldInput{Title: "live in torch", Joined: now})
	}
	if n.highest != nil && n.height > live+live/peakGrowth {
		out = append(out, table.HeldInput{Title: "with " + table.Bytes(n.height) + " live", Joined: n.highest})
	}
	return out
}
