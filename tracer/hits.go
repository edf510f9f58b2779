// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"path"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/tracer/internal/kernel"
)

// quietOutcomes and droppedOutcomes name the numbers of bpf/records.h. Every outcome but OUT_EMITTED is in one of them;
// a test checks that.
var quietOutcomes = map[bpf.TraceOutcome]string{
	bpf.TraceOutcomeOUT_ENTERED:     "call entered",
	bpf.TraceOutcomeOUT_RETURNED:    "free returned",
	bpf.TraceOutcomeOUT_NESTED:      "counted in a lower layer",
	bpf.TraceOutcomeOUT_CALL_FAILED: "call failed",
	bpf.TraceOutcomeOUT_NOTHING:     "nothing to count",
	bpf.TraceOutcomeOUT_NOT_DEVICE:  "host memory",
	bpf.TraceOutcomeOUT_OTHER:       "not about memory",
	bpf.TraceOutcomeOUT_CHOSEN:      "device chosen",
	bpf.TraceOutcomeOUT_OUTSIDE:     "began before or after the trace",
}

var droppedOutcomes = map[bpf.TraceOutcome]string{
	bpf.TraceOutcomeDROP_RING_FULL:   "ring full",
	bpf.TraceOutcomeDROP_RING_LOCKED: "ring locked",
	bpf.TraceOutcomeDROP_NO_SCRATCH:  "no scratch memory",
	bpf.TraceOutcomeDROP_DEPTH:       "calls nested too deep",
	bpf.TraceOutcomeDROP_UNREADABLE:  "result not readable",
	bpf.TraceOutcomeDROP_UNPAIRED:    "return without entry",
}

// Hits reads the counters of every probe.
func (tr *Tracer) Hits() ([]figures.Hits, error) {
	var out []figures.Hits
	for _, p := range tr.probes.All {
		name := path.Base(p.File) + " " + p.Label()
		rows := []string{name}
		if p.Returns() {
			rows = append(rows, name+" return")
		}
		for i, name := range rows {
			row := p.Index + uint32(i)
			counted, err := tr.kernel.Stats(row)
			if err != nil {
				return nil, err
			}
			out = append(out, hitsOf(name, &counted, tr.decoder.Received(row)))
		}
	}
	return out, nil
}

func hitsOf(name string, r *bpf.TraceHookStats, received uint64) figures.Hits {
	h := figures.Hits{
		Probe: name, Hits: r.Hits, Emitted: r.Outcome[bpf.TraceOutcomeOUT_EMITTED], Received: received,
		Quiet: map[string]uint64{}, Dropped: map[string]uint64{},
	}
	for o, reason := range quietOutcomes {
		if n := r.Outcome[o]; n > 0 {
			h.Quiet[reason] = n
		}
	}
	for o, reason := range droppedOutcomes {
		h.Dropped[reason] = r.Outcome[o]
	}
	return h
}

// Lost returns the number of lost events so far, over all probes. It is used at every read, and must be called from the
// reading goroutine.
func (tr *Tracer) Lost() uint64 {
	if c, err := tr.kernel.Counters(); err == nil {
		tr.lost = c.EventsLost
	}
	return tr.lost
}

// Lost returns this process's share of Tracer.Lost. It is valid after the process has ended.
func (t *Target) Lost() uint64 { return t.countLost().events }

// StackRecordsLost returns the number of this process's stacks that did not fit the ring; their events have StatusLost.
// It is valid after the process has ended.
func (t *Target) StackRecordsLost() uint64 { return t.countLost().stacks }

func (t *Target) countLost() losses {
	if t.state == stateHooked {
		now := t.lostNow()
		t.lost = losses{max(t.lost.events, now.events), max(t.lost.stacks, now.stacks)}
	}
	return t.lost
}

// StacksOverLimit returns the number of events whose stack was not kept, because there were already Options.MaxStacks stacks.
func (t *Target) StacksOverLimit() uint64 { return t.records.StacksOverLimit() }

// Walks reads the counters of stack walks.
func (tr *Tracer) Walks() (w kernel.Walks, err error) { return tr.probes.Walks(tr.kernel) }

// warnLimits warns about limits of the kernel side that were reached.
func (tr *Tracer) warnLimits() {
	reached, err := tr.probes.Limits(tr.kernel)
	if err != nil {
		tr.warn(err)
	}
	tr.warnings = append(tr.warnings, reached...)
}

// RawStacks counts the stacks that the kernel could not unwind, by outcome.
func (tr *Tracer) RawStacks() figures.RawStacks {
	c := tr.decoder.RawStacks()
	c.Sent, c.OverRate, c.NoRoom = tr.kernel.RawStacks()
	return c
}

// RawStacks is Tracer.RawStacks; in a job, it counts only what was read of this process.
func (t *Target) RawStacks() figures.RawStacks {
	if !t.tracer.options.Job {
		return t.tracer.RawStacks()
	}
	return t.records.RawStacks()
}
