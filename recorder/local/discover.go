// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

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

// maxArguments is how much of a command line an expression is compared with.
const maxArguments = 256

// searchEvery is how often --name and --all look for processes that have come since.
const searchEvery = time.Second

// searchShare is the part of the time that looking may take: on a machine with very many processes it is done less often.
const searchShare = 0.01

// search finds the processes that Options.Name and All mean.
type search struct {
	opts *recorder.Options
	seen map[int]seenProcess
	next time.Time // when to look again; zero: there was no look

	preparing map[int]bool // processes whose tables are being made
	prepared  chan *process.Process
	slot      chan struct{}  // one at a time
	failed    map[int]uint64 // processes that could not be attached to, with their start times: it is said once
}

// seenProcess is what was seen of a process.
type seenProcess struct {
	pages uint64 // of code: they tell what it has loaded
	begun bool   // since the first look
}

// newSearch is nil where options ask for none.
func newSearch(o *recorder.Options) *search {
	if o.Name == nil && !o.All {
		return nil
	}
	return &search{
		opts: o, seen: map[int]seenProcess{}, preparing: map[int]bool{}, prepared: make(chan *process.Process),
		slot: make(chan struct{}, 1), failed: map[int]uint64{},
	}
}

// scan finds what is new since the last time: processes that began, and those that have loaded code.
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
		now := seenProcess{p.CodePages(), last.begun || !ok && !s.next.IsZero()}
		if (!ok || last != now) && s.means(p, now.begun) {
			out = append(out, p)
		}
		seen[p.PID] = now
	}
	s.seen = seen
	end := time.Now()
	s.next = end.Add(max(searchEvery, time.Duration(float64(end.Sub(begin))/searchShare)))
	return out, nil
}

// running lists the processes of this machine but this one.
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
		if p, err := process.Open(pid); err == nil { // else it has just ended
			out = append(out, p)
		}
	}
	return out, nil
}

// means reports whether a process is meant. Name means one that uses no CUDA when it is waited for, or has just begun.
func (s *search) means(p *process.Process, begun bool) bool {
	if s.opts.Name != nil && matches(s.opts.Name, p) {
		return begun || s.opts.Wait || s.opts.Children || tracer.Traceable(p)
	}
	return s.opts.All && tracer.Traceable(p)
}

// matches reports whether the expression matches the process: its program's name, or its command line with a space between arguments.
func matches(e *regexp.Regexp, p *process.Process) bool {
	return e.MatchString(p.Name()) || e.MatchString(strings.Join(p.Cmdline(maxArguments), " "))
}

// prepare makes what takes long before a process can be attached to, beside the reading of events. It ends with ctx.
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

// addAll attaches to the processes that the options name.
func (l *live) addAll() error {
	targets, err := l.findTargets()
	if err != nil {
		return err
	}
	found := l.search != nil // then one that cannot be attached to is no reason to do without the others
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
	if len(l.arrived) == 0 && waiting == 0 {
		return failed
	}
	if waiting > 0 {
		l.say("  following %s with nothing to trace so far", recorder.Processes(waiting))
	}
	return nil
}

// findTargets lists the processes that the options mean, and says which they are when these do not name them.
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
	if len(out) == 0 && !l.options.Wait {
		return nil, &recorder.Outcome{Kind: recorder.ErrNoProcess, Text: "no process that uses CUDA was found: start it, wait for it (--wait), or see gputrace run --help"}
	}
	return out, nil
}

func (l *live) sayFound(p *process.Process) {
	l.say("  pid %d %s", p.PID, words.CommandLine(p.Cmdline(32), p.Name()))
}

// add attaches to a process; when it has nothing to trace yet and that is waited for, it is followed.
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

// searchAgain attaches to the processes that have come since the last look.
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

// addFound attaches to a process that has come, or follows it until it uses CUDA.
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
