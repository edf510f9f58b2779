//go:build amd64

package main

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// maxArguments is how much of a command line an expression is compared with.
const maxArguments = 256

// searchEvery is how often --name and --all look for processes that have come since.
const searchEvery = time.Second

// searchShare is the part of the time that looking may take: on a machine with very many processes it is done less often.
const searchShare = 0.01

// search finds the processes that --name and --all mean.
type search struct {
	opts   *recordOptions
	wanted *regexp.Regexp
	seen   map[int]sight
	next   time.Time // when to look again; zero: there was no look

	preparing map[int]bool // processes whose tables are being made
	prepared  chan *process.Process
	turn      sync.Mutex     // one at a time
	failed    map[int]uint64 // processes that could not be attached to, with their start times: it is said once
}

// sight is what was seen of a process.
type sight struct {
	pages uint64 // of code: they tell what it has loaded
	begun bool   // since the first look
}

// newSearch is nil where the command line asks for none.
func newSearch(o *recordOptions) (*search, error) {
	if o.name == "" && !o.all {
		return nil, nil
	}
	wanted, err := regexp.Compile(o.name)
	if err != nil {
		return nil, usage("--name: %w", err)
	}
	return &search{
		opts: o, wanted: wanted, seen: map[int]sight{}, preparing: map[int]bool{}, prepared: make(chan *process.Process),
		failed: map[int]uint64{},
	}, nil
}

// look finds what is new since the last look: processes that began, and those that have loaded code.
func (s *search) look() ([]*process.Process, error) {
	begin := time.Now()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	seen := make(map[int]sight, len(s.seen))
	var out []*process.Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := process.Open(pid)
		if err != nil {
			continue // it has just ended
		}
		last, ok := s.seen[pid]
		now := sight{p.CodePages(), last.begun || !ok && !s.next.IsZero()}
		if (!ok || last != now) && s.means(p, now.begun) {
			out = append(out, p)
		}
		seen[pid] = now
	}
	s.seen = seen
	end := time.Now()
	s.next = end.Add(max(searchEvery, time.Duration(float64(end.Sub(begin))/searchShare)))
	return out, nil
}

// means reports whether the command line means a process. --name means one that uses no CUDA when it is waited for, or has just begun.
func (s *search) means(p *process.Process, begun bool) bool {
	if s.opts.name != "" && matches(s.wanted, p) {
		return begun || s.opts.wait || s.opts.children || tracer.Traceable(p)
	}
	return s.opts.all && tracer.Traceable(p)
}

// searchAgain attaches to the processes that have come since the last look.
func (j *job) searchAgain() {
	s := j.search
	if s == nil {
		return
	}
	select {
	case p := <-s.prepared:
		delete(s.preparing, p.PID)
		j.addFound(p)
	default:
	}
	if s.next.After(time.Now()) {
		return
	}
	targets, err := s.look()
	if err != nil {
		j.screen.warn(err)
	}
	for _, p := range targets {
		switch {
		case s.preparing[p.PID], j.tracer.Knows(p.PID):
		case tracer.Traceable(p):
			s.preparing[p.PID] = true
			go s.prepare(p)
		default:
			j.addFound(p)
		}
	}
}

// prepare makes what takes long before a process can be attached to, beside the reading of events.
func (s *search) prepare(p *process.Process) {
	s.turn.Lock()
	tracer.Prepare(p, s.opts.cacheDir)
	s.turn.Unlock()
	s.prepared <- p
}

// addFound attaches to a process that has come, or follows it until it uses CUDA.
func (j *job) addFound(p *process.Process) {
	if j.tracer.Knows(p.PID) {
		return
	}
	t, err := j.tracer.Add(p)
	if errors.Is(err, tracer.ErrNoCUDA) {
		err = j.tracer.Expect(p)
	}
	switch one := j.opts; {
	case err == nil:
		j.screen.say("  pid %d %s", p.PID, commandLine(p.Cmdline(32), p.Name()))
	case p.Alive() && j.search.failed[p.PID] != p.StartTime:
		j.search.failed[p.PID] = p.StartTime
		one.pid = p.PID
		j.screen.warn(explain(err, one))
	}
	if t != nil {
		j.arrive(t)
	}
}

// matches reports whether an expression finds a process: its program's name, or its command line with a space between arguments.
func matches(e *regexp.Regexp, p *process.Process) bool {
	return e.MatchString(p.Name()) || e.MatchString(strings.Join(p.Cmdline(maxArguments), " "))
}
