// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/trailer"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
)

// Leaks says whether memory grows from step to step in the source, which is replayed for it once.
func (s *Source) Leaks() (*leaks.Report, error) {
	if s.leaks != nil {
		return s.leaks, nil
	}
	return s.leaksWith()
}

// leaksWith is Leaks in a replay that visitors share, of whom there may be none. They see it also when the verdict is known.
func (s *Source) leaksWith(others ...*view.Visitor) (*leaks.Report, error) {
	if s.leaks != nil || s.Info.PID == 0 && len(others) > 0 {
		return s.leaks, s.replay(others...)
	}
	found, err := s.Steps()
	if err != nil {
		return nil, err
	}
	options := leakOptions(s)
	options.Until = leaks.Failure(s.Trace, found)
	finder := leaks.NewFinder(s.Trace, found, options)
	if found.Source != "" {
		others = append(others, finder.Visitor())
	}
	if err := s.replay(others...); err != nil {
		return nil, err
	}
	s.leaks = finder.Report()
	return s.leaks, nil
}

// leaksBefore is leaks.Before of the source.
func (s *Source) leaksBefore() (*leaks.Report, error) {
	table, err := s.Steps()
	if err != nil || s.before != nil {
		return s.before, err
	}
	if s.before, err = leaks.Before(s.Trace, table, leakOptions(s)); err != nil {
		return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return s.before, nil
}

// replay replays the source for visitors together; nil ones and no ones take none.
func (s *Source) replay(all ...*view.Visitor) error {
	if all = slices.DeleteFunc(all, func(v *view.Visitor) bool { return v == nil }); len(all) == 0 {
		return nil
	}
	if err := s.Trace.Replay(all...); err != nil {
		return exit.With(exit.Error, fmt.Errorf("%s: %w", s.Path, err))
	}
	return nil
}

// Judged says whether a verdict belongs to what is shown: all of a recording.
func (in *Input) Judged() bool { return in.source != nil && in.Info.PID != 0 && in.Selection.AtEnd() }

// answerAtEnd returns what is concluded of a recording of which all is shown; nil: nothing is.
func answerAtEnd(in *Input) (*answer.Answer, error) {
	if !in.Judged() {
		return nil, nil
	}
	return in.source.Answer()
}

// sentenceOf returns a conclusion in a sentence; empty: there is none.
func sentenceOf(a *answer.Answer) string {
	return strings.Join(Sentences(a), "")
}

// Sentences returns a conclusion as one comment of a profile; none where nothing is concluded. a may be nil.
func Sentences(a *answer.Answer) []string {
	if a == nil {
		return nil
	}
	if t := verdict.Of(a); t != nil {
		return []string{t.String()}
	}
	return nil
}

// JobSentences returns what is concluded of a job, a sentence for each group of processes. j may be nil.
func JobSentences(j *answer.Job) (out []string) {
	for _, t := range verdict.OfJob(j) {
		out = append(out, t.String())
	}
	return out
}

// PrintLeaks prints what grows from step to step, as text for a screen of so many columns (0: not known) or as JSON. The error has no text
// when something grows: its exit code says so.
func (s *Source) PrintLeaks(w io.Writer, asJSON bool, width int) error {
	a, err := s.Answer()
	if err != nil {
		return err
	}
	return PrintLeaks(w, a, asJSON, width)
}

// PrintLeaks is the method of the same name, of an answer.
func PrintLeaks(w io.Writer, a *answer.Answer, asJSON bool, width int) error {
	report, sentence := growthOf(a)
	var err error
	if asJSON {
		err = json.WriteLeaks(w, report, sentence)
	} else {
		err = table.Leaks(w, report, sentence, width)
	}
	if err == nil && len(report.Findings) > 0 {
		err = exit.With(exit.Findings, errors.New(""))
	}
	return err
}

// growthOf returns whether memory grows, and the same in a sentence.
func growthOf(a *answer.Answer) (*leaks.Report, string) {
	if a.Leaks == nil {
		r := &leaks.Report{Verdict: leaks.Unclear}
		return r, table.LeakSentence(r)
	}
	return a.Leaks, verdict.OfGrowth(a).String()
}

// libraries are prefixes of Python files that are not the program's own.
func (s *Source) libraries() []string {
	out := slices.Clone(s.Info.Libraries)
	if s.End != nil {
		out = append(out, s.End.Libraries...)
	}
	return out
}

// leakOptions is what a recording says beside its events.
func leakOptions(in *Source) *leaks.Options {
	o := &leaks.Options{Library: in.libraries(), Earlier: leaks.Earlier(in.Trace)}
	driver, _ := in.DriverAtEnd()
	o.Free, o.Size = trailer.FreeOf(driver), trailer.SizeOf(driver)
	if in.End == nil {
		return o
	}
	o.Ended, o.Facts, o.Garbage = trailer.Ended(in.End), in.End.HolderFacts, in.End.Garbage.Mostly()
	if in.End.Held != nil {
		o.Optimizer = in.Trace.Holds(phases.OptimizerState)
		o.HolderOf = func(b *heap.Block) string {
			held, _ := in.Trace.Holder(b)
			return held.Holder
		}
	}
	for _, h := range HeldTables(in.End) {
		if rows := leaks.Holders(h.Joined); h.Title == table.HeldNow {
			o.Holders = rows
		} else { // at the highest peak that was looked into
			o.Earlier = append([][]leaks.Holder{rows}, o.Earlier...)
		}
	}
	return o
}
