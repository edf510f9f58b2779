// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/analysis/leaks/internal/floors"
	"github.com/gputrace/gputrace/event"
)

// Thresholds for a line that grew and has stopped, such as a cache that is full.
const (
	// stoppedShare: it must not have grown for 1/stoppedShare of all steps, and for stoppedGaps times the distance of its rises.
	stoppedShare = 8
	stoppedGaps  = 4
)

// stopped returns the trend of a series that rose until the step last, at least MinRises times, and has kept its memory
// since. rise and live are those of that memory.
func (s *series) stopped() (t trend, last int, ok bool) {
	n := len(s.rungs)
	if n <= floors.MinRises {
		return trend{}, 0, false
	}
	left := s.rungFloors()
	last = s.rungs[n-1].step
	gap := max(1, (last-s.rungs[n-1-floors.MinRises].step)/floors.MinRises)
	since := s.step - 1 - last
	if last <= floors.WarmUp+floors.MinRises || since < MinSteps || since < stoppedGaps*gap || since*stoppedShare < s.step {
		return trend{}, 0, false
	}
	first := s.rungs[1].step
	rise := left[n-1].Minus(floors.Least(floors.Survivors(s.windows)[0], left[0]))
	return trend{period: gap, step: over(left[n-1].Minus(left[1]), last-first), first: first, rise: rise, live: left[n-1]}, last, true
}

// hasStopped returns the lines that grew in the running loop, by at least 1/steadyShare of all memory, and have
// stopped, except lines that still grow.
func (d *detector) hasStopped(growing []Finding, steps *Steps, o *Options) []Finding {
	if len(d.level.windows) == 0 {
		return nil
	}
	total := d.level.windows[len(d.level.windows)-1].Bytes
	var out []Finding
	for k, s := range d.lines {
		if k.place.layer != event.LayerAllocator || s.windows == nil || isAmong(growing, k) {
			continue
		}
		t, last, ok := s.stopped()
		if !ok || t.rise.Bytes*steadyShare < total || d.level.roseUntil(last) < t.rise.Bytes/2 {
			continue
		}
		f := d.finding(k, []risen{{trend: t, place: k.place, line: k.line, stack: d.stackOf(k.line)}}, []trend{t}, steps, o)
		f.Last = last + steps.base
		out = append(out, f)
	}
	order(out)
	return out
}

// roseUntil returns by how many bytes the minimum of all memory between steps was higher from a step on than at the beginning. Blocks from
// before the attach that leave a full cache make room for a line's: that line grows, and the memory does not.
func (l *level) roseUntil(step int) int64 {
	later := l.windows[min(step/l.width, len(l.windows)-1):]
	low := later[0]
	for _, f := range later {
		low = floors.Least(low, f)
	}
	return low.Bytes - l.windows[min(1, len(l.windows)-1)].Bytes // the first can have the time before the first event
}

// isAmong reports whether a line is that of a finding.
func isAmong(all []Finding, k lineKey) bool {
	for i := range all {
		if f := &all[i]; f.Device == k.place.device && f.Layer == k.place.layer && f.Name() == k.line.name() {
			return true
		}
	}
	return false
}
