package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/table"
)

// momentUsage is how a moment is written.
const momentUsage = "peak, end, a time since the attach such as 12.5s, one before the end such as -3s, or 2026-01-31T12:00:05Z"

// moments reads the moments of one recording.
type moments struct {
	attached, end uint64    // CLOCK_BOOTTIME nanoseconds
	started       time.Time // wall clock
	startedBoot   uint64    // the same moment, CLOCK_BOOTTIME nanoseconds
	peaks         []uint64  // of each caching allocator, CLOCK_BOOTTIME nanoseconds; 0: before the first event
}

func momentsOf(o *opened) moments {
	m := moments{attached: o.info.Attached, end: o.trace.Last(), started: o.info.Started, startedBoot: o.info.StartedBoot}
	if m.attached == 0 {
		m.attached = o.trace.First()
	}
	accounts := o.trace.End().Snapshot.Accounts
	for i := range accounts {
		m.peaks = append(m.peaks, accounts[i].PeakTime)
	}
	return m
}

// moment reads a time of --at, --from or --to, CLOCK_BOOTTIME nanoseconds. "peak" is not one.
func (m *moments) moment(flag, text string) (uint64, error) {
	if text == "end" {
		return m.end, nil
	}
	if d, err := parseOffset(text); err == nil {
		base := m.attached
		if strings.HasPrefix(text, "-") {
			base = m.end
		}
		return m.within(flag, text, int64(base)+int64(d))
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil && !m.started.IsZero() {
		return m.within(flag, text, int64(m.startedBoot)+at.Sub(m.started).Nanoseconds())
	}
	return 0, usage("%s %s: not a moment: %s", flag, strconv.Quote(text), momentUsage)
}

// within refuses a time at which nothing was recorded: its figures would be those of another moment.
func (m *moments) within(flag, text string, at int64) (uint64, error) {
	if at < int64(min(m.attached, m.end)) || at > int64(m.end) && at > int64(m.end)+int64(time.Minute) {
		return 0, usage("%s %s: outside of the recording, which is %.1f s long", flag, text, time.Duration(m.end-m.attached).Seconds())
	}
	return uint64(at), nil
}

// parseOffset reads a duration, or seconds without a unit.
func parseOffset(text string) (time.Duration, error) {
	if s, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(s) < 1e9 {
		return time.Duration(s * 1e9), nil
	}
	return time.ParseDuration(text)
}

// selectionFlags is what --at, --from, --to and --min-size say.
type selectionFlags struct{ at, from, to, minSize string }

// selectionFlagsOf are the flags of the commands that look at a part of a recording.
func selectionFlagsOf() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "at", Usage: "what is in use at `MOMENT`: peak, end, 12.5s, -3s (default: end)"},
		&cli.StringFlag{Name: "from", Usage: "only what was allocated after `MOMENT`"},
		&cli.StringFlag{Name: "to", Usage: "only what was allocated up to `MOMENT`; in use is what lives then"},
		&cli.StringFlag{Name: "min-size", Usage: "only blocks of at least `BYTES`, such as 1MiB"},
	}
}

func selectionFlagsFrom(c *cli.Context) selectionFlags {
	return selectionFlags{c.String("at"), c.String("from"), c.String("to"), c.String("min-size")}
}

// selection reads the flags.
func (m *moments) selection(f selectionFlags) (view.Selection, error) {
	var s view.Selection
	var err error
	if f.minSize != "" {
		n, err := parseBytes(f.minSize)
		if err != nil {
			return s, usage("--min-size: %w", err)
		}
		s.MinSize = uint64(n)
	}
	switch {
	case f.from != "" || f.to != "":
		if f.at != "" {
			return s, usage("--at is a moment, --from and --to are a range: give one of both")
		}
		return m.rangeOf(s, f)
	case f.at == "peak":
		s.Peak = true
	case f.at != "" && f.at != "end":
		s.At, err = m.moment("--at", f.at)
	}
	return s, err
}

func (m *moments) rangeOf(s view.Selection, f selectionFlags) (view.Selection, error) {
	var err error
	s.From, s.To = m.attached-min(m.attached, 1), m.end
	if f.from != "" {
		if s.From, err = m.moment("--from", f.from); err != nil {
			return s, err
		}
	}
	if f.to != "" {
		if s.To, err = m.moment("--to", f.to); err != nil {
			return s, err
		}
	}
	if s.From >= s.To {
		return s, usage("--from %s is not before --to %s", f.from, f.to)
	}
	return s, nil
}

// momentText says in words what is selected.
func (m *moments) text(s view.Selection) string {
	since := func(at uint64) string {
		return fmt.Sprintf("%+.3f s", (time.Duration(at) - time.Duration(m.attached)).Seconds())
	}
	out := "at the end, " + since(m.end)
	switch {
	case s.To != 0:
		out = fmt.Sprintf("allocated from %s to %s", since(max(s.From, m.attached)), since(s.To))
	case s.Peak && len(m.peaks) == 1 && m.peaks[0] != 0:
		out = "at the peak, " + since(m.peaks[0])
	case s.Peak:
		out = "at the peak of each device"
	case s.At != 0:
		out = "at " + since(s.At)
	}
	if s.MinSize > 0 {
		out += fmt.Sprintf(", blocks of at least %s", table.Bytes(s.MinSize))
	}
	return out
}
