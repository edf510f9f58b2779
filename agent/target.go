// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

// target is a process that is traced.
type target struct {
	process *recorder.Process
	began   time.Time
	start   uint64 // process.Process.StartTime; 0: not known

	// In the goroutine of summarize:
	next     time.Time           // when the next summary is due
	complete bool                // no label is missing
	lines    map[string]bool     // lines that have had a metric
	driver   time.Time           // when the driver may be asked again, after it did not answer
	uses     []figures.DriverUse // as last read; nil: not known
	keepNext time.Time           // when the dataset gets the next moment
	growing  bool                // a verdict was GROWING

	mu      sync.Mutex
	peak    uint64 // highest peak in the dataset, bytes
	found   *recorder.Found
	summary *summary // nil: not made yet
	space   string   // see namespace
}

// namespace returns the namespace of the process's pod, by its control group and the API server, whatever its labels are. Empty: it is in
// no pod, or the API server has not answered yet.
func (t *target) namespace() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.space
}

// setNamespace sets the namespace unless it is known: a process stays in its pod.
func (t *target) setNamespace(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.space == "" {
		t.space = name
	}
}

// newTarget is called in the goroutine of the recorder.
func newTarget(p *recorder.Process) *target {
	return &target{process: p, began: time.Now(), lines: map[string]bool{}, found: p.Found()}
}

// summary is what is computed of a process once an interval.
type summary struct {
	Time     time.Time           `json:"time"`
	Verdict  string              `json:"verdict"`  // one of verdict's words
	Sentence string              `json:"sentence"` // that follows it
	Notes    []string            `json:"notes,omitempty"`
	Findings []finding           `json:"findings"`     // what grows, the most bytes per step first
	Lines    []line              `json:"lines"`        // with the most live memory, the largest first
	Now      uint64              `json:"in_use_bytes"` // with device memory outside the framework
	Peak     uint64              `json:"peak_bytes"`
	Driver   []figures.DriverUse `json:"driver,omitempty"`
	Tracing  *figures.Cost       `json:"tracing,omitempty"` // what tracing costs the process

	phases map[string]int64 // live bytes by the phase in which they were allocated
}

// finding is a line that grows.
type finding struct {
	Line   string  `json:"line"`
	Bytes  float64 `json:"bytes_per_step"`
	Live   uint64  `json:"live_bytes"`
	Holder string  `json:"holder,omitempty"`
	Advice string  `json:"advice,omitempty"`
}

// line is a line of the program with live memory.
type line struct {
	Name   string `json:"line"`
	Bytes  int64  `json:"live_bytes"`
	Blocks uint64 `json:"blocks"`
}

// otherLines is the name of the sum of all lines without a metric of their own.
const otherLines = "(other lines)"

const (
	// summaryShare limits the computation of summaries to 1/summaryShare of one CPU.
	summaryShare = 20
	// driverTimeout is how long the driver may take to answer, and driverAgain when it is asked again after it did not.
	driverTimeout = 3 * time.Second
	driverAgain   = 5 * time.Minute
	maxFindings   = 20
)

// summarize makes a summary of each target once an interval, one after the other, until ctx is done.
func (a *Agent) summarize(ctx context.Context) {
	for ctx.Err() == nil {
		var due *target
		for _, t := range a.all() {
			if due == nil || t.next.Before(due.next) {
				due = t
			}
		}
		wait := time.Second / 4
		select {
		case f := <-a.failed:
			began := time.Now()
			a.judge(f)
			took := time.Since(began)
			a.counts.viewNanos.Add(took.Nanoseconds())
			if due = nil; took > 0 {
				wait = took * (summaryShare - 1)
			}
		default:
		}
		if due != nil && !due.next.After(time.Now()) {
			due.next = time.Now().Add(time.Duration(a.config.Interval))
			took := a.summarizeOne(ctx, due)
			a.counts.summaries.Add(1)
			a.counts.viewNanos.Add(took.Nanoseconds())
			wait = took * (summaryShare - 1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(wait, time.Duration(a.config.Interval))):
		}
	}
}

// summarizeOne makes the summary of a target, and returns how long the computation took.
func (a *Agent) summarizeOne(ctx context.Context, t *target) time.Duration {
	r, err := a.current()
	if err != nil {
		return 0
	}
	if !t.complete {
		a.relabel(t)
	}
	t.readDriver(ctx)
	m, err := r.Moment(ctx, t.process)
	if err != nil {
		return 0 // it has just ended
	}
	began := time.Now()
	s := a.newSummary(t, m)
	a.store.keep(t, m, s, a.config.MaxLines)
	a.failures.see(t.process, allocationsOf(m.Totals()))
	t.mu.Lock()
	t.summary, t.found = s, m.Found
	t.mu.Unlock()
	if s.Verdict == verdict.Growing && !t.growing {
		t.growing = true
		file := t.file()
		a.hooks.send(&message{Event: startsToGrow, Text: s.Sentence, Target: &file})
	}
	return time.Since(began)
}

// relabel adds names that have become known to the labels of a target.
func (a *Agent) relabel(t *target) {
	p, err := process.Open(t.process.PID())
	if err != nil || p.StartTime != t.start { // another process has its id
		return
	}
	uid, _ := p.UID()
	cgroups := p.Cgroups()
	labels, keep, complete := a.labeler.labels(p.PID, p.About(), cgroups, uid)
	t.setNamespace(a.labeler.namespace(cgroups)) // known, if the labels are complete
	if t.complete = complete; keep {
		t.process.SetLabels(labels)
	}
}

// readDriver asks the driver what the process uses. A driver that does not answer is not asked again for a while.
func (t *target) readDriver(ctx context.Context) {
	if time.Now().Before(t.driver) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	m := t.process.Memory(ctx)
	if t.uses = m.Driver; ctx.Err() != nil {
		t.driver = time.Now().Add(driverAgain)
	}
}

// newSummary computes the summary of a moment.
func (a *Agent) newSummary(t *target, m *recorder.Moment) *summary {
	v, answer := m.View(), m.Answer()
	s := &summary{Time: m.Time, Verdict: verdict.Unknown, Now: answer.Now, Peak: answer.Peak, Driver: t.uses, phases: map[string]int64{}}
	s.Tracing = m.Cost
	if text := verdict.Of(answer); text != nil {
		s.Verdict, s.Sentence = text.Word, words.Line(text.Text)
		for _, n := range text.Notes {
			s.Notes = append(s.Notes, words.Line(n.Name+": "+n.Text))
		}
	}
	if m.Leaks != nil {
		s.Findings = findings(m.Leaks)
	}
	s.Lines = t.topLines(v, a.config.TopLines, a.config.MaxLines)
	for i := range v.Sites {
		if site := &v.Sites[i]; site.Counted() && site.Inuse.Bytes > 0 {
			s.phases[string(v.Phase(site))] += int64(site.Inuse.Bytes)
		}
	}
	return s
}

// rises reports whether a peak is higher than the last one that is in the dataset, and remembers it.
func (t *target) rises(peak uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if peak <= t.peak {
		return false
	}
	t.peak = peak
	return true
}

// topLines returns the lines with the most live memory, the largest first, and the sum of the others.
func (t *target) topLines(v *view.View, top, most int) []line {
	sum := map[string]*line{}
	for p := range v.Samples(view.InUse, nil) {
		name := lineName(p.Name)
		if sum[name] == nil {
			sum[name] = &line{Name: name}
		}
		sum[name].Bytes, sum[name].Blocks = sum[name].Bytes+p.Bytes, sum[name].Blocks+uint64(p.Objects)
	}
	all, rest := make([]line, 0, len(sum)), line{Name: otherLines}
	for _, l := range sum {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(x, y line) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	out := make([]line, 0, top+1)
	for _, l := range all {
		if len(out) < top && t.names(l.Name, most) {
			out = append(out, l)
		} else {
			rest.Bytes, rest.Blocks = rest.Bytes+l.Bytes, rest.Blocks+l.Blocks
		}
	}
	if rest.Bytes != 0 {
		out = append(out, rest)
	}
	return out
}

// names reports whether a line may have a metric: a program that makes up names for its lines has no more than most.
func (t *target) names(name string, most int) bool {
	if name == stacks.BeforeAttach || name == stacks.LostEvents || t.lines[name] {
		return true
	}
	if len(t.lines) >= most {
		return false
	}
	t.lines[name] = true
	return true
}

func lineName(name string) string { return words.Cut(words.Line(words.Valid(name)), maxValue) }

func findings(r *leaks.Report) []finding {
	var out []finding
	for i := range r.Findings[:min(len(r.Findings), maxFindings)] {
		f := &r.Findings[i]
		out = append(out, finding{lineName(f.Name()), f.Bytes, f.LiveBytes, lineName(f.Holder), words.Line(f.Advice())})
	}
	return out
}

// file returns the target in JSON.
func (t *target) file() targetFile {
	last, _ := t.last()
	return targetFile{t.process.PID(), t.process.Script(), t.process.Labels(), t.began, last}
}

// last returns the last summary, nil: none yet, and what was found in the process.
func (t *target) last() (*summary, *recorder.Found) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.summary, t.found
}

// all returns the targets in the order in which they were found.
func (a *Agent) all() []*target {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*target, 0, len(a.targets))
	for _, t := range a.targets {
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y *target) int {
		return cmp.Or(x.began.Compare(y.began), x.process.PID()-y.process.PID())
	})
	return out
}

// moments returns the current moments of some targets, at most a profile's worth.
func (a *Agent) moments(ctx context.Context, all []*target) ([]*recorder.Moment, error) {
	r, err := a.current()
	if err != nil {
		return nil, err
	}
	processes := make([]*recorder.Process, 0, len(all))
	for _, t := range all {
		processes = append(processes, t.process)
	}
	out, err := r.Moments(ctx, processes)
	if err != nil {
		return nil, fmt.Errorf("read the live sets: %w", err)
	}
	return out, nil
}

// views makes the views of moments, at their peak or now.
func views(all []*recorder.Moment, peak bool) []*view.View {
	var out []*view.View
	for _, m := range all {
		v := m.View()
		if peak {
			v = v.AtPeak()
		}
		out = append(out, v)
	}
	return out
}

// residentMemory returns the agent's own memory, without files that it maps, bytes; 0: not known.
func residentMemory() uint64 {
	b, _ := os.ReadFile("/proc/self/statm") // 0 where there is no such file
	f := bytes.Fields(b)
	if len(f) < 3 {
		return 0
	}
	all, _ := strconv.ParseUint(string(f[1]), 10, 64)
	files, _ := strconv.ParseUint(string(f[2]), 10, 64)
	return (all - min(all, files)) * uint64(os.Getpagesize())
}
