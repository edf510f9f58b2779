// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/sleep"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recording"
)

// Answer returns what is concluded of the source, and makes it only once. The source is replayed for it twice, once more where another
// moment says more than the likely one.
func (s *Source) Answer() (*answer.Answer, error) {
	return s.answer(nil)
}

// answer is Answer. page is made in the same two replays; nil: there is none.
func (s *Source) answer(page *pagemodel.Builder) (*answer.Answer, error) {
	if s.answered != nil && page == nil {
		return s.answered, nil
	}
	in, err := s.answerInput(page)
	if err != nil {
		return nil, err
	}
	s.answered = answer.New(in)
	return s.answered, nil
}

func (s *Source) answerInput(page *pagemodel.Builder) (*answer.Input, error) {
	c := clockOf(s)
	in := &answer.Input{
		Start: c.attached, End: c.end, Events: s.Trace.End().Snapshot.Events, Now: s.Trace.End(), Free: map[event.Device]uint64{},
	}
	if s.End != nil {
		in.Ended = s.programEnded()
		in.Duration, in.Paused, in.NoHolders = s.End.Duration, s.End.Paused, s.End.NoHolders
	}
	likely := s.likely()
	pending := []*view.Visitor{likely.visitor()}
	if page != nil {
		pending = append(pending, page.Survey())
	}
	early := s.early()
	if page != nil || !s.searched().Known() { // the steps are looked for in the same replay
		pending = append(pending, early.visitor())
		s.Trace.Watch(s.searched())
		if err := s.replay(pending...); err != nil {
			return nil, err
		}
		pending = nil
	}
	if page != nil {
		pending = append(pending, page.Lifetimes())
		s.Trace.SetExit(early.exit(), s.read())
		defer s.Trace.SetExit(0, nil)
	}
	table, err := s.Steps()
	if err != nil {
		return nil, err
	}
	in.Begin = func(step int) (uint64, bool) {
		from, _, ok := table.Span(step)
		return from, ok
	}
	course := answer.NewFollower(table, max(c.attached, s.Trace.First()), c.end)
	var sleeper sleep.Follower
	follow := &view.Visitor{Before: func(e *event.Event, h *heap.Heap) {
		course.See(e)
		sleeper.Before(e, h)
	}, Event: sleeper.See}
	if in.Leaks, err = s.leaksWith(append(pending, follow)...); err != nil {
		return nil, err
	}
	if in.OOM, err = s.oomOfProcess(); err != nil {
		return nil, err
	}
	if in.Before, err = s.leaksBefore(); err != nil {
		return nil, err
	}
	in.Course, in.Sleep = course.Course(s.programEnded()), sleeper.Cycles()
	s.exit = in.Course.Exit
	s.answerDriver(in)
	s.answerSpare(in, table)
	return in, s.answerView(in, likely)
}

// oomOfProcess is OOM; of a snapshot nil.
func (s *Source) oomOfProcess() (*oom.Report, error) {
	if s.Info.PID == 0 {
		return nil, nil
	}
	return s.OOM()
}

// candidate is a moment that may be the one that says the most, looked at in a replay for something else. nil: none is likely.
type candidate struct {
	selection view.Selection
	picker    *view.Picker
}

// likely is the moment of a program that neither grows nor fails: the peak, if that is much higher than the end.
func (s *Source) likely() *candidate {
	if failed, _ := s.Trace.Refusals(); len(failed) > 0 {
		return nil
	}
	at := view.Selection{Detail: true}
	if peaked(s.Trace.End()) {
		at.Moment = moment.Moment{Kind: moment.Peak}
	}
	return &candidate{at, s.Trace.Picker(at)}
}

func (c *candidate) visitor() *view.Visitor {
	if c == nil {
		return nil
	}
	return c.picker.Visitor()
}

// selected is the view of a moment, which is replayed for unless it is the likely one.
func (s *Source) selected(at view.Selection, likely *candidate) (v *view.View, err error) {
	if likely != nil && likely.selection == at {
		v, err = likely.picker.View()
	} else {
		v, err = s.Trace.Select(at)
	}
	if err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return v, nil
}

// programEnded reports whether the recording ended with the program.
func (s *Source) programEnded() bool {
	return s.End != nil && (s.End.Reason == recording.ReasonExited || s.End.Reason == recording.ReasonExeced)
}

// peakMatters: a peak replaces the memory in use at the end if it is higher by 1/peakMatters.
const peakMatters = 20

// peaked reports whether a peak is to be shown in the place of a moment.
func peaked(now *view.View) bool {
	live := now.Total()
	return now.AtPeak().Total() > live+live/peakMatters
}

// answerView chooses the moment that says the most: that of a failure; where something grows, the end; else the peak. After the end of the
// program the end is before it freed everything.
func (s *Source) answerView(in *answer.Input, likely *candidate) (err error) {
	at := view.Selection{Detail: true}
	if s.End != nil {
		in.Facts, in.Garbage = s.End.HolderFacts, s.End.Garbage
	}
	if t := in.Course.Exit; t != 0 {
		in.When, in.Time = answer.AtExit, t
		at.Moment = moment.Moment{Kind: moment.SinceStart, Time: t}
		s.Trace.SetExit(t, nil) // in.Read names the holders
		defer s.Trace.SetExit(0, nil)
		if in.Now, err = s.selected(view.Selection{Moment: at.Moment}, likely); err != nil {
			return err
		}
	}
	grows := in.Leaks != nil && in.Leaks.Verdict == leaks.Growing
	switch failed := in.OOM != nil && in.OOM.Main() != nil; {
	case failed:
		c := in.OOM.Main()
		in.When, in.Time = answer.AtFailure, c.Time
		at.Moment = moment.Moment{Kind: moment.OutOfMemory, Number: c.Number, Time: c.Time}
	case !grows && peaked(in.Now):
		peak := at
		peak.Moment = moment.Moment{Kind: moment.Peak}
		in.When, in.Time = answer.AtPeak, 0
		in.Read = s.read()
		in.View, err = s.selected(peak, likely)
		return err
	}
	if in.When != answer.AtEnd {
		in.Read = s.read()
	}
	in.View, err = s.selected(at, likely)
	return err
}

// answerDriver takes the driver's figures of the end, or of the last reading before it.
func (s *Source) answerDriver(in *answer.Input) {
	in.Driver, in.DriverTime = s.DriverAtEnd()
	in.Free = trailer.FreeOf(in.Driver)
}

// DriverAtEnd is what the driver said at the end, or when it was last read before, at time; nil: it was not. time is 0 at the end.
func (s *Source) DriverAtEnd() (use []figures.DriverUse, time uint64) {
	use = trailer.Driver(s.End)
	if len(use) > 0 && !trailer.Ended(s.End) {
		return use, 0
	}
	for _, r := range s.Trace.Readings() {
		if len(r.Driver) > 0 {
			use, time = trailer.WhileInUse(r.Driver), r.Time
		}
	}
	return use, time
}

// AnswerOptions say how an answer is printed.
type AnswerOptions struct {
	Screen  screen.Screen
	Verbose bool    // with all tables, and what is known of losses
	Top     int     // rows of each of those; 0: the default
	Path    string  // by which the source is asked for again
	Page    *string // the page that is made of it, empty: none; nil: what lies beside it
}

// pageOf is the page that is made after the answer, so that both need the same replays; nil: there is none, or it has a moment that is not
// known before.
func (s *Source) pageOf(o *AnswerOptions) *pagemodel.Builder {
	failed, _ := s.Trace.Refusals()
	if o.Page == nil || *o.Page == "" || s.Info.PID == 0 || len(failed) > 0 {
		return nil
	}
	return pagemodel.NewBuilder(s.Trace, nil)
}

// MakeAnswer finds out what PrintAnswer prints, and keeps it: the page that is made next needs the same replays.
func (s *Source) MakeAnswer(o *AnswerOptions) error {
	page := s.pageOf(o)
	_, err := s.answer(page)
	s.page = page
	return err
}

// PrintAnswer prints what a summary of the source says.
func (s *Source) PrintAnswer(w io.Writer, o *AnswerOptions) error {
	page := s.pageOf(o)
	a, err := s.answer(page)
	if err != nil {
		return err
	}
	s.page = page
	in := &screen.Input{
		Answer: a, Summary: Summary(s.Trace.End(), s.Info, s.End), Cut: s.Info.PID != 0 && s.End == nil, Screen: o.Screen,
	}
	in.Summary.Width = o.Screen.Width
	if o.Page != nil {
		in.Page = *o.Page
	} else if page := filepath.Join(filepath.Dir(s.Path), PageName); exists(page) {
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
