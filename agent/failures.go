// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/size"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recorder"
)

// failure is a failed request for memory, with the process as it was then.
type failure struct {
	Node      string            `json:"node,omitempty"`
	PID       int               `json:"pid"`
	Program   string            `json:"program"`
	Labels    map[string]string `json:"labels"`
	Failed    time.Time         `json:"failed"`
	Device    string            `json:"device"`
	Requested uint64            `json:"requested_bytes"`
	Line      string            `json:"requested_at"` // the line of the program that made the request
	Text      string            `json:"text"`         // what failed, in one sentence
	// Continued reports whether the program has allocated again since; nil: not so far.
	Continued *bool      `json:"continued"`
	Ended     *time.Time `json:"ended"` // when the process ended; nil: it runs
	*summary             // nil: too many requests failed at once to compute it

	process   *recorder.Process
	allocs    uint64 // number of allocations before it
	namespace string // as target.namespace
}

const (
	// maxFailures is the number of failed requests that are kept, and maxPerProcess the limit for one process. The oldest are dropped.
	maxFailures   = 100
	maxPerProcess = 10
	// maxFailed is how many failed requests may wait for their summary.
	maxFailed = 16
)

// failures keeps the last failed requests, also of processes that have ended.
type failures struct {
	mu   sync.Mutex
	last []*failure // the oldest first
}

// failed is a failed request that waits for its summary.
type failed struct {
	*failure
	target *target
	moment *recorder.Moment
}

// fail notes a failed request. It is called in the goroutine of the recorder, so that the summary is computed elsewhere.
func (a *Agent) fail(e *recorder.OutOfMemory) {
	p := e.Process
	a.mu.Lock()
	t := a.targets[p]
	a.mu.Unlock()
	if t == nil {
		return
	}
	m := e.Moment()
	f := &failure{
		Node: a.labeler.node, PID: p.PID(), Program: p.Script(), Labels: p.Labels(), Failed: m.Time, Device: e.Device.String(),
		Requested: e.Bytes, Line: lineName(e.Site), process: p, allocs: allocationsOf(m.Totals()),
		namespace: t.namespace(),
	}
	f.Text = fmt.Sprintf("a request for %s at %s failed", size.Text(f.Requested), f.Line)
	a.failures.add(f)
	select {
	case a.failed <- failed{f, t, m}:
	default:
		a.counts.unjudged.Add(1)
	}
}

// allocationsOf returns the number of allocations since the attach.
func allocationsOf(t *heap.Totals) (n uint64) {
	for i := range t.Accounts {
		n += t.Accounts[i].Allocs
	}
	for i := range t.Drivers {
		n += t.Drivers[i].Allocs
	}
	return n
}

// judge adds the summary of a failed request, and hands it to the webhooks.
func (a *Agent) judge(f failed) {
	s := a.newSummary(f.target, f.moment)
	text := f.Text + " with " + size.Text(s.Now) + " in use"
	if len(s.Lines) > 0 && s.Lines[0].Name != otherLines && s.Lines[0].Bytes > 0 {
		text += fmt.Sprintf(", %s of it from %s", size.Text(uint64(s.Lines[0].Bytes)), s.Lines[0].Name)
	}
	if len(s.Findings) > 0 {
		text += "; the verdict before that: " + words.Line(s.Verdict+" "+s.Sentence)
	}
	a.failures.mu.Lock()
	f.failure.summary, f.Text = s, text
	copied := *f.failure
	a.failures.mu.Unlock()
	a.log.Warn("out of memory", "pid", copied.PID, "program", copied.Program, "labels", fmt.Sprint(copied.Labels), "text", text)
	a.hooks.send(&message{Event: failedRequest, Text: text, Failure: &copied})
}

func (l *failures) add(f *failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = append(l.last, f)
	own := 0
	for _, x := range l.last {
		if x.process == f.process {
			own++
		}
	}
	switch {
	case own > maxPerProcess:
		k := slices.IndexFunc(l.last, func(x *failure) bool { return x.process == f.process })
		l.last = slices.Delete(l.last, k, k+1)
	case len(l.last) > maxFailures:
		l.last = slices.Delete(l.last, 0, 1)
	}
}

// see notes whether a process has allocated since its failed requests.
func (l *failures) see(p *recorder.Process, allocs uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.last {
		if f.process == p && allocs > f.allocs {
			yes := true
			f.Continued = &yes
		}
	}
}

// end notes that a process has ended. What is kept of its failed requests does not refer to it.
func (l *failures) end(p *recorder.Process, allocs uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, f := range l.last {
		if f.process == p {
			continued := allocs > f.allocs || f.Continued != nil && *f.Continued
			f.Continued, f.Ended, f.process = &continued, &now, nil
		}
	}
}

// forget ends the notes of all processes, because what they do is no longer known.
func (l *failures) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.last {
		f.process = nil
	}
}

// all returns the failed requests of the processes that were asked for and that a request may see, the newest first.
func (l *failures) all(query url.Values, g *grant) []failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := []failure{}
	for _, f := range slices.Backward(l.last) {
		if g.sees(f.namespace) && matches(f.Labels, f.PID, query) {
			out = append(out, *f)
		}
	}
	return out
}

// Afterwards returns what the program did after the failed request, in words.
func (f *failure) Afterwards() string {
	switch {
	case f.Continued != nil && *f.Continued:
		return "the program went on"
	case f.Ended != nil:
		return "the process ended"
	}
	return "the program has allocated nothing since"
}

func (a *Agent) serveFailures(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, struct {
		Version  string    `json:"version"`
		Failures []failure `json:"failures"`
	}{a.version, a.failures.all(r.URL.Query(), a.grantOf(r))})
}
