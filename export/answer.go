// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recording"
)

// Answer is what a summary of the source begins with. The source is replayed for it, about three times.
func (s *Source) Answer() (*answer.Answer, error) {
	in, err := s.answerInput()
	if err != nil {
		return nil, err
	}
	return answer.New(in), nil
}

func (s *Source) answerInput() (*answer.Input, error) {
	c := clockOf(s)
	in := &answer.Input{Start: c.attached, End: c.end, Now: s.Trace.End(), Free: map[event.Device]uint64{}, Read: map[string]string{}}
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	in.Begin = func(step int) (uint64, bool) {
		from, _, ok := table.Span(step)
		return from, ok
	}
	if s.Info.PID != 0 { // the steps of a snapshot's history are few
		if in.Leaks, err = s.Leaks(); err == nil {
			in.OOM, err = s.OOM()
		}
		if err != nil {
			return nil, err
		}
	}
	if in.Course, err = answer.NewCourse(s.Trace, table, s.programEnded()); err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	s.answerDriver(in)
	return in, s.answerView(in)
}

// programEnded reports whether the recording ended with the program.
func (s *Source) programEnded() bool {
	return s.End != nil && (s.End.Reason == recording.ReasonExited || s.End.Reason == recording.ReasonExeced)
}

// peakMatters is how much higher than what is in use at the end a peak must be to be shown in its place: one part in so many.
const peakMatters = 20

// answerView chooses the moment that says the most: that of a failure; where something grows, the end; else the peak. After the end of the
// program the end is before it freed everything.
func (s *Source) answerView(in *answer.Input) (err error) {
	at := view.Selection{Detail: true}
	if t := in.Course.Exit; t != 0 {
		in.When, in.Time = answer.AtExit, t
		at.Moment = moment.Moment{Kind: moment.SinceStart, Time: t}
		if in.Now, err = s.Trace.Select(view.Selection{Moment: at.Moment}); err != nil {
			return exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
		}
	}
	grows := in.Leaks != nil && in.Leaks.Verdict == leaks.Growing
	live := in.Now.Total()
	switch failed := in.OOM != nil && in.OOM.Main() != nil; {
	case failed:
		c := in.OOM.Main()
		in.When, in.Time = answer.AtFailure, c.Time
		at.Moment = moment.Moment{Kind: moment.OutOfMemory, Number: c.Number, Time: c.Time}
	case !grows && in.Now.AtPeak().Total() > live+live/peakMatters:
		peak := at
		peak.Moment = moment.Moment{Kind: moment.Peak}
		if in.View, err = s.Trace.Select(peak); err == nil {
			in.When, in.Time = answer.AtPeak, 0
			return nil
		}
	}
	if in.When != answer.AtEnd {
		s.answerRead(in)
	}
	if in.View, err = s.Trace.Select(at); err != nil {
		return exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return nil
}

// answerDriver takes the driver's figures of the end, or of the last reading before it.
func (s *Source) answerDriver(in *answer.Input) {
	if in.Driver = s.lastDriver(); s.End != nil && s.End.Memory != nil && len(s.End.Memory.Driver) > 0 {
		in.Driver = s.End.Memory.Driver
	}
	in.Free = FreeOf(in.Driver)
}

// lastDriver is what the driver said when it was last read; nil: it was not.
func (s *Source) lastDriver() (out []figures.DriverUse) {
	for _, r := range s.Trace.Readings() {
		if len(r.Driver) > 0 {
			out = r.Driver
		}
	}
	return out
}

// mostOf is the part of a site's blocks that one thing must have held for newer ones to be taken for its own.
const mostOf = 0.75

// answerRead is what held the blocks of sites when holders were last read.
func (s *Source) answerRead(in *answer.Input) {
	var rows []event.HeldRow
	for _, r := range s.Trace.Readings() {
		if len(r.Held) == 0 {
			continue
		}
		rows = rows[:0]
		for _, h := range r.Held {
			rows = append(rows, event.HeldRow{Site: h.Site, Holder: h.Holder, Bytes: h.Bytes})
		}
	}
	if s.End != nil && rows == nil {
		for _, h := range HeldTables(s.End) {
			for _, r := range h.Joined.Rows {
				rows = append(rows, event.HeldRow{Site: r.Site, Holder: r.Name, Bytes: r.Bytes})
			}
		}
	}
	sums, best := map[string]uint64{}, map[string]event.HeldRow{}
	for _, r := range rows {
		sums[r.Site] += r.Bytes
		if r.Holder != view.NoHolder && r.Holder != "" && r.Bytes > best[r.Site].Bytes {
			best[r.Site] = r
		}
	}
	for site, r := range best {
		if float64(r.Bytes) >= mostOf*float64(sums[site]) {
			in.Read[site] = r.Holder
		}
	}
}

// AnswerOptions say how an answer is printed.
type AnswerOptions struct {
	Screen  screen.Screen
	Verbose bool   // with all tables, and what is known of losses
	Top     int    // rows of each of those; 0: the default
	Path    string // by which the source is asked for again
}

// PrintAnswer prints what a summary of the source says.
func (s *Source) PrintAnswer(w io.Writer, o *AnswerOptions) error {
	a, err := s.Answer()
	if err != nil {
		return err
	}
	in := &screen.Input{
		Answer: a, Summary: Summary(s.Trace.End(), s.Info, s.End), Cut: s.Info.PID != 0 && s.End == nil, Screen: o.Screen,
	}
	in.Summary.Width = o.Screen.Width
	if page := filepath.Join(filepath.Dir(s.Path), PageName); exists(page) {
		in.Page = page
	}
	if !o.Verbose {
		in.Next = "gputrace report -v " + o.Path
	}
	in.Program = words.ScriptLine(s.Info.Cmdline, s.Info.Name)
	if s.Info.PID != 0 {
		in.Process = s.Info.Rank.Process(int(s.Info.PID))
	}
	if err := screen.Print(w, in); err != nil || !o.Verbose {
		return err
	}
	in.Summary.Top = o.Top
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return PrintSummary(w, in.Summary, HeldTables(s.End))
}
