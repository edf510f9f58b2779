// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
)

// maxArguments is how much of a command line is matched with an expression.
const maxArguments = 256

// searchEvery is the interval at which --name and --all look for new processes.
const searchEvery = time.Second

// searchShare is the maximum share of the time for the search: on a machine with very many processes it runs less often, but not
// less often than every searchLatest. A search that had to wait for a CPU must not delay the next one for long.
const (
	searchShare  = 0.01
	searchLatest = 5 * time.Second
)

// search finds the processes that Options.Name and All select.
type search struct {
	opts *recorder.Options
	seen map[int]seenProcess
	next time.Time // when to search next; zero: not searched yet

	preparing map[int]bool // processes whose tables are being built
	prepared  chan *process.Process
	slot      chan struct{}  // one at a time
	failed    map[int]uint64 // processes that could not be attached to, by PID with their start times: the error is shown once
}

// seenProcess is what is known of a process from earlier searches.
type seenProcess struct {
	pages uint64 // number of code pages, which shows whether code was loaded
	begun bool   // it began after the first search
	// refused: Options.Select does not want it for now, so that it is asked again at the next search.
	refused bool
}

// newSearch returns nil if the options select no processes to search for.
func newSearch(o *recorder.Options) *search {
	if o.Name == nil && !o.All {
		return nil
	}
	return &search{
		opts: o, seen: map[int]seenProcess{}, preparing: map[int]bool{}, prepared: make(chan *process.Process),
		slot: make(chan struct{}, 1), failed: map[int]uint64{},
	}
}

// scan returns processes that began, or loaded code, since the last scan.
func (s *search) scan() ([]*process.Process, error) {
	begin := time.Now()
	all, err := running()
	if err != nil {
		return nil, err
	}
	seen := make(map[int]seenProcess, len(all))
	var out []*process.Process
	for _, p := range all {
		last, ok := s.seen[p.PID]
		now := seenProcess{pages: p.CodePages(), begun: last.begun || !ok && !s.next.IsZero()}
		if (!ok || last != now || last.refused) && s.means(p, now.begun) {
			if now.refused = !s.selects(p); !now.refused {
				out = append(out, p)
			}
		}
		seen[p.PID] = now
	}
	s.seen = seen
	s.forget()
	end := time.Now()
	s.next = end.Add(min(searchLatest, max(searchEvery, time.Duration(float64(end.Sub(begin))/searchShare))))
	return out, nil
}

// running lists the processes of this machine, except this one.
func running() ([]*process.Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	var out []*process.Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if p, err := process.Open(pid); err == nil { // otherwise it has just ended
			out = append(out, p)
		}
	}
	return out, nil
}

// means reports whether a process is selected. A process that uses no CUDA is selected by Name only with Wait
// or Children, or if it has just begun.
func (s *search) means(p *process.Process, begun bool) bool {
	if s.opts.Name != nil && matches(s.opts.Name, p) {
		return begun || s.opts.Wait || s.opts.Children || tracer.Traceable(p)
	}
	return s.opts.All && tracer.Traceable(p)
}

// selects reports whether Options.Select wants a process.
func (s *search) selects(p *process.Process) bool { return s.opts.Select == nil || s.opts.Select(p) }

// forget drops what is known of attaches that failed to processes that have ended.
func (s *search) forget() {
	for pid := range s.failed {
		if _, ok := s.seen[pid]; !ok {
			delete(s.failed, pid)
		}
	}
}

// matches reports whether the expression matches the process: its program's name, or its command line with a space
// between arguments.
func matches(e *regexp.Regexp, p *process.Process) bool {
	return e.MatchString(p.Name()) || e.MatchString(strings.Join(p.Cmdline(maxArguments), " "))
}

// prepare does the slow preparation for attaching to a process, concurrently with the reading of events. It ends with ctx.
func (s *search) prepare(ctx context.Context, p *process.Process) {
	select {
	case s.slot <- struct{}{}:
	case <-ctx.Done():
		return
	}
	tracer.Prepare(p, s.opts.CacheDir)
	<-s.slot
	select {
	case s.prepared <- p:
	case <-ctx.Done():
	}
}

// addAll attaches to the processes that the options select.
func (l *live) addAll() error {
	targets, err := l.findTargets()
	if err != nil {
		return err
	}
	found := l.search != nil // then a process that cannot be attached to does not prevent the others
	var failed error
	for _, p := range targets {
		err := l.add(p)
		if err != nil && !found {
			return err
		}
		if err != nil {
			l.warn(err)
			failed = err
		}
	}
	if len(targets) == 0 {
		l.tracer.Await()
		l.say("  waiting for a process")
		return nil
	}
	waiting := l.tracer.Waiting()
	if len(l.arrived) == 0 && waiting == 0 && !l.options.Forever {
		return failed
	}
	if waiting > 0 {
		l.say("  following %s with nothing to trace so far", recorder.Processes(waiting))
	}
	return nil
}

// findTargets lists the processes that the options select, and prints which ones they are if the options do not name them.
func (l *live) findTargets() ([]*process.Process, error) {
	var out []*process.Process
	for _, pid := range l.options.PIDs {
		p, err := process.Open(pid)
		if err != nil {
			return nil, &recorder.AttachError{PID: pid, Err: err}
		}
		out = append(out, p)
	}
	if l.search = newSearch(l.options); l.search != nil {
		found, err := l.search.scan()
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			if !slices.ContainsFunc(out, func(q *process.Process) bool { return q.PID == p.PID }) {
				l.sayFound(p)
				out = append(out, p)
			}
		}
	}
	if len(out) == 0 && !l.options.Wait && !l.options.Forever {
		return nil, &recorder.Outcome{Kind: recorder.ErrNoProcess,
			Text: "no process that uses CUDA was found: start it, wait for it (--wait), or see gputrace run --help"}
	}
	return out, nil
}

func (l *live) sayFound(p *process.Process) {
	l.say("  pid %d %s", p.PID, words.CommandLine(p.Cmdline(32), p.Name()))
}

// add attaches to a process; if it has nothing to trace yet and Wait is set, it is followed.
func (l *live) add(p *process.Process) error {
	t, err := l.tracer.Add(p)
	if errors.Is(err, tracer.ErrNoCUDA) && l.options.Many() && (l.options.Children || l.options.Wait) {
		err = l.tracer.Expect(p)
	}
	switch {
	case err != nil && l.waited && !p.Alive():
		return endedUnused(p.PID)
	case err != nil:
		return &recorder.AttachError{PID: p.PID, Err: p.Blame(err)}
	}
	if t != nil {
		l.arrive(t)
	}
	return nil
}

// searchAgain attaches to processes that are new since the last search.
func (l *live) searchAgain() {
	s := l.search
	if s == nil {
		return
	}
	select {
	case p := <-s.prepared:
		delete(s.preparing, p.PID)
		l.addFound(p)
	default:
	}
	if s.next.After(time.Now()) {
		return
	}
	targets, err := s.scan()
	if err != nil {
		l.warn(fmt.Errorf("look for processes: %w", err))
	}
	for _, p := range targets {
		switch {
		case s.preparing[p.PID], l.tracer.Knows(p.PID):
		case tracer.Traceable(p):
			s.preparing[p.PID] = true
			go s.prepare(l.ctx, p)
		default:
			l.addFound(p)
		}
	}
}

// addFound attaches to a new process, or follows it until it uses CUDA.
func (l *live) addFound(p *process.Process) {
	if l.tracer.Knows(p.PID) {
		return
	}
	t, err := l.tracer.Add(p)
	if errors.Is(err, tracer.ErrNoCUDA) {
		err = l.tracer.Expect(p)
	}
	switch {
	case err == nil:
		l.sayFound(p)
	case p.Alive() && l.search.failed[p.PID] != p.StartTime:
		l.search.failed[p.PID] = p.StartTime
		l.warn(&recorder.AttachError{PID: p.PID, Err: err})
	}
	if t != nil {
		l.arrive(t)
	}
}
