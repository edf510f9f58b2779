// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"maps"
	"slices"

	"github.com/gputrace/gputrace/analysis/refusals"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Failure returns the time of the failed request that ended the program, CLOCK_BOOTTIME nanoseconds; 0: none did.
func Failure(t *view.Trace, table *steps.Table) uint64 {
	failed, _ := t.Refusals()
	if len(failed) == 0 {
		return 0
	}
	last := &failed[len(failed)-1]
	goesOn := table.Source != steps.SourcePeriod && table.Last() > table.At(last.Event.Time)+1
	if last.WentOn || goesOn {
		return 0
	}
	return last.Event.Time
}

// roomAtFailure sets what the device of the failed request has left for what grows from step to step: all that PyTorch had, and less than
// what the driver refused it, without what is in use between steps. Other memory of the failing step leaves room for the next one. At the
// end, the program may have freed everything. Where the driver was not asked, as beyond the program's own limit, nothing follows.
func (f *Finder) roomAtFailure() {
	r := f.refusal()
	if r == nil || f.detector == nil || len(r.Tries) == 0 || r.Event.Reserved == event.Unknown {
		return
	}
	e := &r.Event
	left := e.Reserved + r.Tries[len(r.Tries)-1].Size
	if total := f.detector.totals[place{e.Layer, e.Device, e.PID}]; total != nil {
		if latest := total.latest(); len(latest) > 0 {
			left -= min(left, uint64(max(0, latest[len(latest)-1].Bytes)))
		}
	}
	if free, ok := f.options.Free[e.Device]; !ok || free > left {
		f.options.Free = maps.Clone(f.options.Free)
		if f.options.Free == nil {
			f.options.Free = map[event.Device]uint64{}
		}
		f.options.Free[e.Device] = left
	}
}

// isOutside reports whether the failed request was made outside the call that the loop repeats. The loop may then be over, or run on: a
// loop that calls one function for most of its rounds, and another one now and then, looks the same.
func (f *Finder) isOutside() bool {
	r := f.refusal()
	return r != nil && f.table.Returned(f.trace.Stack(r.Event.Stack))
}

// refusal returns the failed request up to which is judged; nil: none failed then.
func (f *Finder) refusal() *refusals.Refusal {
	failed, _ := f.trace.Refusals()
	if i := slices.IndexFunc(failed, func(r refusals.Refusal) bool { return r.Event.Time == f.options.Until }); i >= 0 {
		return &failed[i]
	}
	return nil
}

// Before judges what was before the last failed request, if the program went on: what had grown by then may be freed. nil: it did not go
// on, or no request failed.
func Before(t *view.Trace, table *steps.Table, o *Options) (*Report, error) {
	failed, _ := t.Refusals()
	if len(failed) == 0 || Failure(t, table) > 0 {
		return nil, nil
	}
	o.Until = failed[len(failed)-1].Event.Time
	r, err := Find(t, table, o)
	if err != nil || len(r.Findings) > 0 || len(failed) == 1 {
		return r, err
	}
	o.From = failed[len(failed)-2].Event.Time // what had grown by then was dropped with it
	return Find(t, table, o)
}
