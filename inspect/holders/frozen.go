// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/process"
)

const (
	// freezeTries is how often a process is stopped: it may be in the middle of an allocation, when its blocks do not add
	// up.
	freezeTries = 5
	// freezeSpare is the part of the bound that is kept for letting the process go, and minSpare the least of it: threads must
	// be woken on a busy machine, and a virtual one may be without its processor for some milliseconds.
	freezeSpare = 5
	minSpare    = 5 * time.Millisecond
	// spareProcs are processors of the Go runtime for the thread that ends the stop: it must not wait for those that copy.
	spareProcs = 2
	// copySpeed is more than a copy does, bytes a microsecond.
	copySpeed = 4 << 10
	// runAgain is how long it runs between two stops.
	runAgain = 2 * time.Millisecond
)

// copyFrozen stops the process for the copy. From the first stop to the last continue it takes no longer than the bound: the
// copy is cut off then, what it has is used, and the rest is read of the running process, as without a stop.
func (r *reading) copyFrozen(p *process.Process) (*liveBlocks, error) {
	begun := time.Now()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + spareProcs))
	bound := r.options.Freeze
	pages := uint64(bound.Microseconds()) * copySpeed >> memory.PageShift
	if err := r.im.Populate(min(pages, r.pages)); err != nil { // before the stop: it takes as long as the copy
		r.note("no memory was set aside for the copy: %v", err)
	}
	first := time.Now()
	deadline := first.Add(bound - max(bound/freezeSpare, min(minSpare, bound/2)))
	for n := range freezeTries {
		s, err := stop.All(p, deadline)
		if s == nil {
			return nil, err
		}
		if n == 0 {
			first = s.Started()
		}
		if err != nil {
			r.report.Stats.Frozen = s.Ended().Sub(first)
			if errors.Is(err, ErrFreeze) {
				return nil, err
			}
			r.note("%v: it was read as it runs", err)
			return r.copyNow()
		}
		live, again, err := r.copyStopped(s.Over, n+1 < freezeTries)
		r.frozen = !s.End() && err == nil && r.im.Whole() && !live.changing()
		r.report.Stats.Frozen = s.Ended().Sub(first)
		r.report.Stats.Copy = time.Since(begun)
		if r.ctx.Err() != nil {
			return nil, context.Cause(r.ctx)
		}
		if !again && err == nil {
			return live, nil
		}
		if !again || time.Now().Add(bound/freezeTries).After(deadline) {
			break
		}
		time.Sleep(runAgain)
	}
	return r.copyNow()
}

// copyStopped copies what the stop leaves time for. again says that the process stood in the middle of an allocation and should
// be stopped once more; that is only said when it may be.
func (r *reading) copyStopped(over func() bool, may bool) (live *liveBlocks, again bool, err error) {
	live, err = r.live(0)
	if may && (err != nil || live.changing()) {
		return live, true, err
	}
	if err != nil {
		return nil, false, err
	}
	l, err := r.list()
	if err != nil {
		return nil, false, err
	}
	l.present = r.limit(l.present)
	r.begin(l)
	pages := present.Pages(l.present)
	if copied := r.im.CopyHeap(r.im.BuffersLast(l.present), over); copied < pages {
		r.note("of %d MiB of its memory %d were copied while the process was stopped, for %v at most: what is said is confirmed as of a "+
			"running one",
			pages>>8, copied>>8, r.options.Freeze)
	}
	return live, false, nil
}
