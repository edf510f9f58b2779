// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// trace is a tracer in this process, with a goroutine that reads it.
type trace struct {
	*tracer.Tracer
	target *tracer.Target
	events []event.Event // complete when finish has returned
	seen   atomic.Int64  // events so far
	err    error
	ended  chan struct{}
}

func options() *tracer.Options { return &tracer.Options{CacheDir: env.cache} }

// attach starts to trace a target. When gate is not nil, nothing is read from the kernel until it is closed.
func attach(t *testing.T, pid int, o *tracer.Options, gate <-chan struct{}) *trace {
	t.Helper()
	p, err := process.Open(pid)
	require.NoError(t, err)
	live := tracer.Open(o)
	t.Cleanup(func() { _ = live.Close() })
	target, err := live.Add(p)
	require.NoError(t, err)
	tr := &trace{Tracer: live, target: target, ended: make(chan struct{})}
	go func() {
		defer close(tr.ended)
		if gate != nil {
			<-gate
		}
		tr.read()
	}()
	return tr
}

func (tr *trace) read() {
	buf := make([]event.Event, 0, 4096)
	for tr.err == nil {
		buf, tr.err = tr.Read(buf[:0])
		tr.events = append(tr.events, buf...)
		tr.seen.Add(int64(len(buf)))
	}
	if errors.Is(tr.err, io.EOF) {
		tr.err = nil
	}
}

// finish ends the trace and checks that every run of every probe is accounted for.
func (tr *trace) finish(t *testing.T) {
	t.Helper()
	tr.Stop()
	<-tr.ended
	require.NoError(t, tr.err)
	require.Empty(t, tr.Warnings())
	var emitted, received uint64
	for _, h := range tr.hits(t) {
		sum := h.Emitted + h.Lost()
		for _, n := range h.Quiet {
			sum += n
		}
		require.Equal(t, h.Hits, sum, "%+v", h)
		emitted += h.Emitted
		received += h.Received
	}
	require.Equal(t, emitted, received)
	require.Equal(t, received, uint64(len(tr.events)))
}

// awaitAll waits until every event is read that the kernel has handed out so far.
func (tr *trace) awaitAll(t *testing.T) {
	t.Helper()
	eventually(t, "an empty ring", func() bool {
		emitted, received := uint64(0), uint64(0)
		for _, h := range tr.hits(t) {
			emitted, received = emitted+h.Emitted, received+h.Received
		}
		return emitted == received
	})
}

// finishWhole is finish for a trace that must have lost nothing.
func (tr *trace) finishWhole(t *testing.T) {
	t.Helper()
	tr.finish(t)
	for _, h := range tr.hits(t) {
		require.Zero(t, h.Lost(), "%+v", h)
	}
	require.Zero(t, tr.target.StackRecordsLost())
	known := map[event.StackID]bool{0: true}
	for i := range tr.events {
		if id := tr.events[i].Stack; !known[id] {
			require.NotNil(t, tr.target.Stack(id), "event %d", i)
			known[id] = true
		}
	}
}

func (tr *trace) hits(t *testing.T) []figures.Hits {
	t.Helper()
	hits, err := tr.Hits()
	require.NoError(t, err)
	require.NotEmpty(t, hits)
	return hits
}

// layer returns the events of one layer.
func (tr *trace) layer(l event.Layer) []event.Event {
	var out []event.Event
	for _, e := range tr.events {
		if e.Layer == l {
			out = append(out, e)
		}
	}
	return out
}

// python returns the Python frames of a stack as the oracles do.
func (tr *trace) python(id event.StackID) []pyFrame {
	out := []pyFrame{}
	st := tr.target.Stack(id)
	if st == nil {
		return out
	}
	for _, f := range st.Frames {
		if f.Kind == event.FramePython {
			out = append(out, pyFrame{File: f.File, Line: f.Line, Name: lastComponent(f.Func), Qualname: f.Func})
		}
	}
	return out
}

// lastComponent is a function's own name: what co_name has of co_qualname.
func lastComponent(qualname string) string { return qualname[strings.LastIndexByte(qualname, '.')+1:] }

// sameFrames compares with an oracle, by qualified names where that knows them.
func sameFrames(ours, want []pyFrame) bool {
	if len(ours) != len(want) {
		return false
	}
	for i, w := range want {
		o := ours[i]
		if o.File != w.File || o.Line != w.Line || o.Name != w.Name || w.Qualname != "" && o.Qualname != w.Qualname {
			return false
		}
	}
	return true
}

// quality counts stacks, for the log.
type quality struct {
	events, complete int
	unique           map[event.StackID]bool
}

func (tr *trace) quality(events []event.Event) quality {
	q := quality{unique: map[event.StackID]bool{}}
	for _, e := range events {
		if e.Stack == 0 {
			continue
		}
		q.events++
		q.unique[e.Stack] = true
		if st := tr.target.Stack(e.Stack); st != nil && st.Status.Complete() {
			q.complete++
		}
	}
	return q
}
