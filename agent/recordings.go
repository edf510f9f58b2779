// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"github.com/gputrace/gputrace/agent/ring"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

// The paths of a recording and of its page.
const (
	recordingPath     = "/recordings/{id}/{segment}/" + export.TraceName
	recordingPagePath = "/recordings/{id}/{segment}/page"
)

const (
	// leastSegment is the least recordings.segment_size, and segmentsOf how often it must fit into recordings.target_size, so that most
	// of a ring is left when its oldest segment is removed.
	leastSegment = 64 << 10
	segmentsOf   = 4
	// mostSegment bounds the memory that the page of a segment needs.
	mostSegment = 64 << 20
)

// check reports a value that cannot be used.
func (c *RecordingsConfig) check() error {
	switch {
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("dir: %s must be an absolute path", c.Dir)
	case time.Duration(c.Segment) < time.Second:
		return errors.New("segment: must be at least 1s")
	case c.SegmentSize < leastSegment || c.SegmentSize > mostSegment:
		return errors.New("segment_size: must be from 64KiB to 64MiB, with its unit")
	case c.TargetSize < segmentsOf*c.SegmentSize:
		return fmt.Errorf("target_size: must be at least %d times segment_size", segmentsOf)
	case c.MaxSize < c.TargetSize:
		return errors.New("max_size: must be at least target_size")
	case time.Duration(c.MaxAge) < time.Minute:
		return errors.New("max_age: must be at least 1m")
	}
	return nil
}

// newRing returns the ring of an agent's recordings; nil: the configuration has none.
func (a *Agent) newRing(c *RecordingsConfig, log *slog.Logger) *ring.Ring {
	if c.Dir == "" {
		return nil
	}
	return ring.New(&ring.Options{
		Dir: c.Dir, SegmentSize: int64(c.SegmentSize), SegmentAge: time.Duration(c.Segment), TargetSize: int64(c.TargetSize),
		MaxSize: int64(c.MaxSize), MaxAge: time.Duration(c.MaxAge), Describe: a.describe, Log: log,
	})
}

// describe returns what the ring keeps of a process beside its recordings. It may be called from any goroutine.
func (a *Agent) describe(p *recorder.Process) ring.Target {
	out := ring.Target{PID: p.PID(), Program: p.Script(), Labels: p.Labels()}
	a.mu.Lock()
	t := a.targets[p]
	a.mu.Unlock()
	start := uint64(0)
	switch own, err := process.Open(p.PID()); {
	case t != nil:
		out.Namespace = t.namespace()
	case err == nil: // it has just been attached to
		start, out.Namespace = own.StartTime, a.labeler.namespace(own.Cgroups())
	}
	out.ID = ring.ID(p.PID(), start)
	return out
}

var errNoRing = errors.New("this agent keeps no recordings: set recordings.dir in its configuration")

// serveRecordings lists the recordings of the processes that a request asks for and may see.
func (a *Agent) serveRecordings(w http.ResponseWriter, r *http.Request) {
	if a.ring == nil {
		http.Error(w, errNoRing.Error(), http.StatusNotFound)
		return
	}
	g, query := a.grantOf(r), r.URL.Query()
	out := struct {
		Version string        `json:"version"`
		Targets []ring.Listed `json:"targets"`
	}{a.version, []ring.Listed{}}
	for _, t := range a.ring.List() {
		if g.sees(t.Namespace) && matches(t.Labels, t.PID, query) {
			out.Targets = append(out.Targets, t)
		}
	}
	writeJSON(w, out)
}

// recordingOf returns the recording that a request names. One that it may not see does not exist for it.
func (a *Agent) recordingOf(r *http.Request) (*ring.Listed, error) {
	if a.ring == nil {
		return nil, errNoRing
	}
	l, err := a.ring.Find(r.PathValue("id"), r.PathValue("segment"))
	if err == nil && !a.grantOf(r).sees(l.Namespace) {
		return nil, ring.ErrNone
	}
	return l, err
}

// serveRecording sends a recording.
func (a *Agent) serveRecording(w http.ResponseWriter, r *http.Request) {
	l, err := a.recordingOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	f, err := a.ring.Open(l)
	if err != nil {
		http.Error(w, ring.ErrNone.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	name := l.ID + "-" + l.Segments[0].Name + ".gputrace"
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	http.ServeContent(w, r, "", time.Time{}, f)
}

// policyOfPages is the Content-Security-Policy of the page of a recording. Its script runs without an origin, so that names from a
// traced program could request nothing from the agent.
const policyOfPages = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// serveRecordingPage sends the page of a recording, unless the agent has no memory left to make it.
func (a *Agent) serveRecordingPage(w http.ResponseWriter, r *http.Request) {
	l, err := a.recordingOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	if residentMemory() > uint64(a.config.MemoryLimit) || l.Segments[0].Bytes > mostSegment {
		http.Error(w, "the agent has no memory for this page: make the page from "+export.TraceName+" with gputrace export -f html",
			http.StatusServiceUnavailable)
		return
	}
	page, err := a.ring.Page(r.Context(), l, a.version)
	switch {
	case errors.Is(err, ring.ErrNone):
		http.Error(w, ring.ErrNone.Error(), http.StatusNotFound)
		return
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policyOfPages)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if _, err := w.Write(page); err != nil {
		a.log.Warn("a page was not sent", "error", err)
	}
}
