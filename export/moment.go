// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
)

// Window is what is asked for of a source, as the flags --at, --from, --to and --min-size say it: a moment, or a range of which From or
// To may be left open. nil and the zero value: all of it, at its end.
type Window struct {
	At       moment.Moment
	From, To moment.Moment
	Steps    moment.StepRange // From the beginning of the first To the end of the last
	MinSize  uint64           // of blocks, bytes
}

func (w *Window) isRange() bool {
	return w.From.Kind != moment.Unset || w.To.Kind != moment.Unset || w.Steps != moment.StepRange{}
}

// Check says what of a window makes no sense in any source.
func (w *Window) Check() error {
	if w.Steps != (moment.StepRange{}) && (w.From.Kind != moment.Unset || w.To.Kind != moment.Unset || w.At.Kind != moment.Unset) {
		return exit.Usage("--step and --steps are a range of their own: leave out --at, --from and --to")
	}
	if w.isRange() && w.At.Kind != moment.Unset {
		return exit.Usage("--at is a moment, --from and --to are a range: give only one")
	}
	for _, end := range []struct {
		flag   string
		moment moment.Moment
	}{{"--from", w.From}, {"--to", w.To}} {
		if end.moment.Kind == moment.Peak {
			return exit.Usage("%s peak: each device has its own peak; give a time", end.flag)
		}
	}
	return nil
}

// clock finds the moments of one source.
type clock struct {
	attached, end uint64    // CLOCK_BOOTTIME nanoseconds
	started       time.Time // wall clock; zero: not known
	startedBoot   uint64    // the same moment, CLOCK_BOOTTIME nanoseconds
	peaks         []uint64  // of each caching allocator, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	outOfMemory   []uint64  // of each refused request, CLOCK_BOOTTIME nanoseconds
	steps         func() (*steps.Table, error)
}

func clockOf(s *Source) clock {
	c := clock{
		attached: s.Info.Attached, end: s.Trace.Last(), started: s.Info.Started, startedBoot: s.Info.StartedBoot,
		outOfMemory: s.Trace.OutOfMemory(), steps: s.Steps,
	}
	if c.attached == 0 {
		c.attached = s.Trace.First()
	}
	if c.end == 0 && s.End != nil { // nothing happened
		c.end = c.attached + uint64(s.End.Duration)
	}
	accounts := s.Trace.End().Snapshot.Accounts
	for i := range accounts {
		c.peaks = append(c.peaks, accounts[i].PeakTime)
	}
	return c
}

// find makes a selection of a window.
func (c *clock) find(w *Window) (view.Selection, error) {
	if w == nil {
		return view.Selection{}, nil
	}
	s := view.Selection{MinSize: w.MinSize}
	if err := w.Check(); err != nil {
		return s, err
	}
	var err error
	if !w.isRange() {
		s.Moment, err = c.moment("--at", w.At)
		return s, err
	}
	if w.Steps != (moment.StepRange{}) {
		s.From, s.To, err = c.span("--steps", w.Steps)
		return s, err
	}
	s.From, s.To = c.attached-min(c.attached, 1), c.end
	for _, end := range []struct {
		flag   string
		moment moment.Moment
		time   *uint64
	}{{"--from", w.From, &s.From}, {"--to", w.To, &s.To}} {
		if end.moment.Kind == moment.Unset {
			continue
		}
		m, err := c.moment(end.flag, end.moment)
		if err != nil {
			return s, err
		}
		*end.time = m.Time
	}
	if s.From >= s.To {
		return s, exit.Usage("--from %s is not before --to %s", cmp.Or(w.From.String(), "the start"), cmp.Or(w.To.String(), "the end"))
	}
	return s, nil
}

// span is the times between which steps were: a range begins after the first and ends with the second.
func (c *clock) span(flag string, r moment.StepRange) (from, to uint64, err error) {
	table, err := c.steps()
	if err != nil {
		return 0, 0, err
	}
	if table.Source == "" {
		return 0, 0, exit.Usage("%s %s: no steps were found in the recording; --step-on FUNCTION says where one begins", flag, r)
	}
	begin, _, ok := table.Span(cmp.Or(r.First, table.First()))
	_, end, okay := table.Span(cmp.Or(r.Last, table.Last()))
	if !ok || !okay {
		return 0, 0, exit.Usage("%s %s: the recording has the steps %d to %d", flag, r, table.First(), table.Last())
	}
	return begin - 1, end, nil
}

// moment sets the time of a moment.
func (c *clock) moment(flag string, m moment.Moment) (moment.Moment, error) {
	var at int64
	switch m.Kind {
	case moment.Unset:
		return m, nil
	case moment.End:
		m.Time = c.end
		return m, nil
	case moment.Peak:
		if len(c.peaks) == 1 {
			m.Time = c.peaks[0]
		}
		return m, nil
	case moment.OutOfMemory:
		if m.Number > len(c.outOfMemory) {
			return m, exit.Usage("%s %s: %s refused in the recording", flag, m, table.Were(len(c.outOfMemory), "request"))
		}
		m.Time = c.outOfMemory[m.Number-1]
		return m, nil
	case moment.Step:
		_, end, err := c.span(flag+" step", moment.StepRange{First: m.Number, Last: m.Number})
		m.Time = end
		return m, err
	case moment.SinceStart:
		at = int64(c.attached) + int64(m.Offset)
	case moment.BeforeEnd:
		at = int64(c.end) - int64(m.Offset)
	case moment.TimeOfDay:
		if c.started.IsZero() {
			return m, exit.Usage("%s %s: the recording does not say at what time of day it was made", flag, m)
		}
		at = int64(c.startedBoot) + m.Clock.Sub(c.started).Nanoseconds()
	}
	// Outside of the recording the figures would be those of another moment.
	if at < int64(min(c.attached, c.end)) || at > int64(c.end)+int64(time.Minute) {
		return m, exit.Usage("%s %s: outside of the recording, which is %.1f s long", flag, m, time.Duration(c.end-c.attached).Seconds())
	}
	m.Time = uint64(at)
	return m, nil
}

// words say what is selected.
func (c *clock) words(w *Window, s view.Selection) string {
	since := func(at uint64) string {
		return fmt.Sprintf("%+.3f s", (time.Duration(at) - time.Duration(c.attached)).Seconds())
	}
	out := "at the end, " + since(c.end)
	switch m := s.Moment; {
	case s.To != 0 && w != nil && w.Steps != moment.StepRange{}:
		out = fmt.Sprintf("allocated in step %s, %s to %s", w.Steps, since(s.From+1), since(s.To))
	case s.To != 0:
		out = fmt.Sprintf("allocated from %s to %s", since(max(s.From, c.attached)), since(s.To))
	case m.Kind == moment.Peak && m.Time != 0:
		out = "at the peak, " + since(m.Time)
	case m.Kind == moment.Peak:
		out = "at the peak of each device"
	case m.Kind == moment.OutOfMemory:
		out = fmt.Sprintf("out of memory %d, %s", m.Number, since(m.Time))
	case m.Kind == moment.Step:
		out = fmt.Sprintf("at the end of step %d, %s", m.Number, since(m.Time))
	case m.IsTime():
		out = "at " + since(m.Time)
	}
	if s.MinSize > 0 {
		out += fmt.Sprintf(", blocks of at least %s", table.Bytes(s.MinSize))
	}
	return out
}
