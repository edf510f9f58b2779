// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/why"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recording"
)

// OOM says why requests for memory failed in the source.
func (s *Source) OOM() (*oom.Report, error) {
	if s.oom != nil {
		return s.oom, nil
	}
	in := &oom.Input{Trace: s.Trace, Library: s.libraries(), Readings: oom.WithSizes(s.Trace.Readings(), trailer.Driver(s.End))}
	if s.End != nil {
		in.Ended = s.End.Reason == recording.ReasonExited || s.End.Reason == recording.ReasonExeced
		in.Exit = s.End.ExitStatus
	}
	failed, _ := s.Trace.Refusals()
	var err error
	if in.Steps, err = s.Steps(); err == nil && len(failed) > 0 {
		if in.Leaks, err = s.leaksBefore(); err == nil && in.Leaks == nil {
			in.Leaks, err = s.Leaks()
		}
	}
	if err != nil {
		return nil, err
	}
	report, err := oom.Find(in)
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	s.oom = report
	return report, s.replayOOM(report)
}

// replayOOM finds out whether expandable segments would have helped where the memory was free in pieces, for the request that a summary
// begins with.
func (s *Source) replayOOM(report *oom.Report) error {
	c := report.Main()
	if c == nil || c.Cause(oom.Fragmentation).Alone != oom.Yes || c.Total == event.Unknown {
		return nil
	}
	outside := figures.Add(c.Context, c.Others)
	if c.UnseenExact {
		outside = c.Unseen
	}
	if outside != event.Unknown {
		var err error
		c.Replay, err = s.replayBeside(c, outside)
		return err
	}
	if c.Unseen == 0 {
		return nil
	}
	// Less of the device was free than was asked for. What fits if nothing was free fits, and what fails if that much was free fails.
	most, err := s.replayBeside(c, c.Unseen+c.Asked)
	if err != nil || most == nil || most.Outcome != oom.Fails {
		c.Replay = most
		return err
	}
	least, err := s.replayBeside(c, c.Unseen+1)
	if least != nil && least.Outcome == oom.Fails {
		c.Replay = least
	}
	return err
}

// replayBeside replays a request with expandable segments on a device on which others have an amount of memory, bytes. It is nil
// if not all blocks are known at any moment.
func (s *Source) replayBeside(c *oom.Case, outside uint64) (replay *oom.Replay, err error) {
	rows, err := s.WhatIf(&whatif.Ask{Settings: []whatif.Settings{{Expandable: true}}, Device: c.Total, Outside: outside})
	if err != nil {
		if exit.Code(err) == exit.Nothing {
			return nil, nil
		}
		return nil, err
	}
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if r := &rows[i]; r.PID == c.PID && r.Device == c.Device {
			replay = s.replayOf(r, c, table)
		}
	}
	return replay, nil
}

// replayOf replays a request that failed, and what the steps before it did after the same request.
func (s *Source) replayOf(r *whatif.Report, c *oom.Case, table *steps.Table) *oom.Replay {
	out := &oom.Replay{Recorded: r.Expandable, Exact: r.Check.Exact(), Outcome: oom.FitsOnce}
	if out.Recorded {
		return out
	}
	after := r.After(s.Trace, table, c.Time, c.Step)
	switch f := after.Failed; {
	case f != nil:
		out.Outcome, out.Site, out.Step = oom.Fails, r.Line(s.Trace, f.Stack), table.At(f.Time)*min(1, c.Step)
	case after.Follows:
		out.Outcome = oom.Fits
	}
	return out
}

// OOMOptions are how WriteOOM writes.
type OOMOptions struct {
	JSON  bool
	Top   int // rows of live blocks; 0: the default
	Width int // of the screen that the text is for, characters; 0: it is not known
}

// WriteOOM writes why requests failed, as text or JSON.
func (s *Source) WriteOOM(w io.Writer, o *OOMOptions) error {
	report, err := s.OOM()
	if err != nil {
		return err
	}
	c := clockOf(s)
	if !o.JSON {
		return table.OOM(w, &table.OOMInput{Why: why.Text, Report: report, Began: c.attached, Top: o.Top, Width: o.Width})
	}
	return json.WriteOOM(w, &json.OOMInput{Report: report, Text: why.Text, Wall: c.wall})
}

// PrintOOM is WriteOOM, with an error without a text and the exit code exit.Findings where a request failed that was not survived.
func (s *Source) PrintOOM(w io.Writer, o *OOMOptions) error {
	if err := s.WriteOOM(w, o); err != nil {
		return err
	}
	if s.oom.Fatal() > 0 {
		return exit.With(exit.Findings, errors.New(""))
	}
	return nil
}

// wall is a time of the events as one of day; zero where that is not known.
func (c *clock) wall(at uint64) time.Time {
	if c.started.IsZero() {
		return time.Time{}
	}
	return c.started.Add(time.Duration(int64(at - c.startedBoot)))
}
