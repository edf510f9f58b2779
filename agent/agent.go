// SPDX-License-Identifier: Apache-2.0

// Package agent is the node agent: it traces every GPU process of a machine for as long as it runs, and serves what it knows of
// them over HTTP: metrics, profiles, verdicts and service discovery. It is a consumer of package recorder and captures nothing
// itself.
//
//	recorder (one for all processes) ── Attached, Ended ──▶ targets ◀── control group, environment, API server
//	     ▲ State at each scrape                        │
//	     │ Moment once an interval ──▶ its summary ────┤ (and, less often, rows of the dataset)
//	     │ events ──▶ ring, the recordings on disk ────┤
//	     └── Moment at each request for a profile ─────┴──▶ /metrics, /sd, ..., and the same sent to servers
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gputrace/gputrace/agent/kube"
	"github.com/gputrace/gputrace/agent/ring"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/dataset"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/notice"
)

// Source opens the source of a recorder's events: local.Open, except in tests.
type Source func(o *recorder.Options) (recorder.Source, error)

// Agent traces the processes of a machine and serves what it knows of them.
type Agent struct {
	config  *Config
	version string
	source  Source
	log     *slog.Logger
	labeler *labeler
	pattern *regexp.Regexp // of Config.Processes; nil: all
	counts  counts
	store   *store      // nil: no dataset is written
	started atomic.Bool // a recorder has begun to trace
	began   time.Time   // when the agent's own counters were 0
	hooks   hooks
	pushers []*pusher
	slots   chan struct{} // bounds how many profiles are written at a time
	failed  chan failed   // receives failed requests for memory

	failures failures
	ring     *ring.Ring // nil: no recordings are kept
	access   *access    // nil: every request may see everything

	mu       sync.Mutex
	recorder *recorder.Recorder // nil: it is starting
	targets  map[*recorder.Process]*target
	pending  map[processKey]time.Time // processes that were chosen and are not attached to yet
	dropped  map[processKey]bool      // processes that the rules drop
	busy     time.Time                // when a process was last traced, or when the recorder was started
	used     bool                     // the recorder has traced a process
}

// processKey identifies a process.
type processKey struct {
	pid   int
	start uint64
}

// counts are the agent's own counters since it was started.
type counts struct {
	attached, ended, refused, warnings, restarts atomic.Uint64
	summaries, profiles, unjudged                atomic.Uint64
	viewNanos                                    atomic.Int64
}

// New returns an agent. It does nothing before Run.
func New(c *Config, version string, source Source, log *slog.Logger) (*Agent, error) {
	a := &Agent{
		config: c, version: version, source: source, log: log, labeler: &labeler{config: c}, pattern: c.pattern(),
		targets: map[*recorder.Process]*target{}, pending: map[processKey]time.Time{}, dropped: map[processKey]bool{},
		failed: make(chan failed, maxFailed), slots: make(chan struct{}, maxProfiles), began: time.Now(),
	}
	a.ring = a.newRing(&c.Recordings, log)
	var err error
	if a.hooks, err = newHooks(c.Webhooks, log); err != nil {
		return nil, err
	}
	if a.pushers, err = newPushers(c.Push, log); err != nil {
		return nil, err
	}
	if a.access, err = newAccess(c.Access, log); err != nil {
		return nil, err
	}
	if k := &c.Kubernetes; k.Names {
		names, err := kube.New(&kube.Options{
			Server: k.APIServer, TokenFile: k.TokenFile, CAFile: k.CAFile, Node: k.Node,
			Warn: func(err error) { log.Warn(err.Error()) },
		})
		if err != nil {
			return nil, err
		}
		a.labeler.names, a.labeler.node = names, names.Node()
	}
	if a.labeler.node == "" {
		if a.labeler.node = os.Getenv("NODE_NAME"); a.labeler.node == "" {
			a.labeler.node, _ = os.Hostname() // empty: the label is left out
		}
	}
	if a.store = newStore(c, version, a.labeler.node, log); a.store != nil {
		if _, err := dataset.Open(c.Dataset.Dir); err != nil {
			return nil, fmt.Errorf("dataset.dir: %w: give a folder in which the agent may write", err)
		}
	}
	return a, nil
}

// Run traces and serves until ctx is done, or until the server fails.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := a.listen()
	if err != nil {
		return err
	}
	var beside sync.WaitGroup
	if a.labeler.names != nil {
		beside.Go(func() { a.labeler.names.Run(ctx) })
	}
	var failed error // of the first recorder
	beside.Go(func() {
		if failed = a.record(ctx); failed != nil {
			cancel()
		}
	})
	beside.Go(func() { a.summarize(ctx) })
	beside.Go(func() { a.hooks.run(ctx) })
	beside.Go(func() { a.push(ctx) })
	if a.ring != nil {
		beside.Go(func() { a.ring.Run(ctx) })
		defer a.ring.Wait()
	}
	stored := a.startStore()
	err = server(ctx)
	cancel()
	beside.Wait()
	stored()
	return cmp.Or(failed, err)
}

// startStore begins to write the dataset. What it returns writes the rest.
func (a *Agent) startStore() (stop func()) {
	if a.store == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		a.store.run(ctx)
		close(done)
	}()
	return func() {
		cancel()
		<-done
	}
}

// record runs one recorder after the other until ctx is done. The error is why the first one could not begin, for example a
// missing right; later ones are tried again.
func (a *Agent) record(ctx context.Context) error {
	const shortest, longest = time.Second, time.Minute
	pause := shortest
	for ctx.Err() == nil {
		began := time.Now()
		err := a.recordOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !a.started.Load() {
			return err
		}
		a.counts.restarts.Add(1)
		if err == nil {
			continue // it was ended to start anew
		}
		a.log.Error("the recorder ended and starts again", "error", err, "after", pause)
		if time.Since(began) > longest {
			pause = shortest
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
	return nil
}

// recordOnce runs a recorder until it ends.
func (a *Agent) recordOnce(ctx context.Context) error {
	o := a.options()
	source, err := a.source(o)
	if err != nil {
		return err
	}
	r := recorder.New(source, o)
	defer func() {
		a.mu.Lock()
		a.recorder = nil
		clear(a.targets)
		clear(a.pending)
		a.mu.Unlock()
		a.failures.forget()
		if err := r.Close(); err != nil {
			a.log.Warn(err.Error())
		}
	}()
	watch, stop := context.WithCancel(ctx)
	defer stop()
	a.mu.Lock()
	a.recorder, a.busy, a.used = r, time.Now(), false
	a.mu.Unlock()
	go a.limit(watch, r)
	_, err = r.Run(ctx)
	return err
}

// options returns the options of a recorder of everything that the configuration selects.
func (a *Agent) options() *recorder.Options {
	c := a.config
	o := &recorder.Options{
		All: true, Forever: true, Select: a.selects, Labels: a.labels, RingBytes: int(c.RingSize),
		MaxStacks: c.MaxStacks, CacheDir: c.CacheDir, Memory: "auto", StepOn: c.StepOn, NoHolders: !c.Holders, HoldersOnRequest: true,
		CPUBudget: float64(c.CPUBudget.Process), NodeCPUBudget: float64(c.CPUBudget.Node),
		Version: a.version, Observer: &observer{agent: a, said: map[string]time.Time{}},
	}
	if a.ring != nil {
		o.Keeper = a.ring
	}
	return o
}

const (
	// pendingFor is how long a process that was chosen counts before it is attached to.
	pendingFor = 30 * time.Second
	// maxArguments is how much of a command line is matched with Config.Processes.
	maxArguments = 256
)

// selects decides whether a process is traced. It is called in the goroutine of the recorder.
func (a *Agent) selects(p *process.Process) bool {
	key := processKey{p.PID, p.StartTime}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dropped[key] {
		return false
	}
	if e := a.pattern; e != nil && !e.MatchString(p.Name()) && !e.MatchString(strings.Join(p.Cmdline(maxArguments), " ")) {
		a.dropped[key] = true
		return false
	}
	uid, _ := p.UID()
	if _, keep, complete := a.labeler.labels(p.PID, p.About(), p.Cgroups(), uid); !keep {
		if complete {
			a.dropped[key] = true
		}
		return false
	}
	for k, t := range a.pending {
		if time.Since(t) > pendingFor {
			delete(a.pending, k)
		}
	}
	if len(a.targets)+len(a.pending) >= a.config.MaxTargets || residentMemory() > uint64(a.config.MemoryLimit) {
		a.counts.refused.Add(1)
		return false
	}
	a.pending[key] = time.Now()
	return true
}

// labels returns the labels of a process that is attached to.
func (a *Agent) labels(pid int, about *process.About) map[string]string {
	cgroups, uid := "", -1
	if p, err := process.Open(pid); err == nil {
		cgroups = p.Cgroups()
		uid, _ = p.UID()
	}
	out, _, _ := a.labeler.labels(pid, about, cgroups, uid)
	return out
}

const limitEvery = 5 * time.Second

// limit ends a recorder that has nothing to trace, and one that makes the agent too large.
func (a *Agent) limit(ctx context.Context, r *recorder.Recorder) {
	tick := time.NewTicker(limitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.mu.Lock()
		if len(a.targets) > 0 {
			a.busy = time.Now()
		}
		idle := a.used && time.Since(a.busy) > time.Duration(a.config.IdleRestart)
		for key := range a.dropped {
			if p, err := process.Open(key.pid); err != nil || p.StartTime != key.start {
				delete(a.dropped, key)
			}
		}
		a.mu.Unlock()
		switch memory := residentMemory(); {
		case idle:
			a.log.Info("nothing is traced: the recorder starts anew to free the tables of libraries")
		case memory > uint64(a.config.MemoryLimit)*3/2:
			a.log.Warn("the recorder starts anew, because the agent is too large", "memory", memory, "limit", a.config.MemoryLimit)
		default:
			continue
		}
		r.Interrupt(os.Interrupt)
		return
	}
}

// current returns the recorder, or an error while it is starting.
func (a *Agent) current() (*recorder.Recorder, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.recorder == nil {
		return nil, errStarting
	}
	return a.recorder, nil
}

var errStarting = errors.New("the recorder is starting")

// observer receives the notices of a recorder, in its goroutine.
type observer struct {
	agent *Agent
	said  map[string]time.Time
}

// sayAgain is the shortest time between two log lines with the same text.
const (
	sayAgain = 10 * time.Minute
	maxSaid  = 1000
)

// repeats reports whether a text was logged recently.
func (o *observer) repeats(text string) bool {
	if t, ok := o.said[text]; ok && time.Since(t) < sayAgain {
		return true
	}
	if len(o.said) >= maxSaid {
		clear(o.said)
	}
	o.said[text] = time.Now()
	return false
}

// Event implements recorder.Observer.
func (o *observer) Event(e recorder.Event) {
	if e, ok := e.(*recorder.OutOfMemory); ok {
		o.agent.fail(e)
	}
	for _, line := range notice.Lines(e, true) {
		o.Notice(line)
	}
}

// Notice implements recorder.Observer.
func (o *observer) Notice(text string) {
	if text = words.Line(strings.TrimSpace(text)); !o.repeats(text) {
		o.agent.log.Info(text)
	}
}

// Warning implements recorder.Observer.
func (o *observer) Warning(err error) {
	o.agent.counts.warnings.Add(1)
	if text := words.Line(err.Error()); !o.repeats(text) {
		o.agent.log.Warn(text)
	}
}

// Attached implements recorder.Observer.
func (o *observer) Attached(p *recorder.Process) {
	a := o.agent
	a.counts.attached.Add(1)
	t := newTarget(p)
	if own, err := process.Open(p.PID()); err == nil {
		t.start = own.StartTime
		t.setNamespace(a.labeler.namespace(own.Cgroups()))
	}
	a.mu.Lock()
	a.targets[p], a.used = t, true
	for key := range a.pending {
		if key.pid == p.PID() {
			delete(a.pending, key)
		}
	}
	a.mu.Unlock()
	a.log.Info("attached", "pid", p.PID(), "program", p.Script(), "labels", fmt.Sprint(p.Labels()), "took", p.Found().Took)
}

// Ended implements recorder.Observer.
func (o *observer) Ended(p *recorder.Process) {
	a := o.agent
	a.counts.ended.Add(1)
	a.mu.Lock()
	t := a.targets[p]
	delete(a.targets, p)
	a.mu.Unlock()
	totals := p.Totals()
	a.failures.end(p, allocationsOf(&totals))
	a.store.end(t, p)
	if a.ring != nil {
		a.ring.Forget(p)
	}
	a.log.Info("ended", "pid", p.PID(), "program", p.Script())
}

// Ready implements recorder.Observer.
func (o *observer) Ready() error {
	o.agent.started.Store(true)
	return nil
}

// Live implements recorder.Observer.
func (o *observer) Live(*recorder.State) {}

// Holders implements recorder.Observer.
func (o *observer) Holders(*view.Joined) {}
