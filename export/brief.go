// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// WriteBrief writes the conclusion of one recording: its sentence with the notes below it or, as JSON, the first screen.
func (s *Source) WriteBrief(w io.Writer, asJSON bool) error {
	a, err := s.brief()
	if err != nil {
		return err
	}
	if asJSON {
		return json.WriteAnswer(w, a)
	}
	return writeSentence(w, a)
}

// brief returns the first screen of the source.
func (s *Source) brief() (*json.Answer, error) {
	a, err := s.Answer()
	if err != nil {
		return nil, err
	}
	t := verdict.Of(a)
	if t == nil {
		return nil, exit.With(exit.Invalid, fmt.Errorf("%s: only a recording of gputrace has a verdict", s.Path))
	}
	figures := Summary(s.Trace.End(), s.Info, s.End)
	out := &json.Answer{
		Answer: a, Verdict: strings.ReplaceAll(strings.ToLower(t.Word), " ", "_"), Sentence: t.String(),
		Program: words.ScriptLine(s.Info.Cmdline, s.Info.Name),
		PID:     s.Info.PID, Cut: s.End == nil, Lost: figures.EventsLost(),
		Gaps: figures.View.Snapshot.GapCount, Losses: figures.View.Snapshot.LossIntervalCount,
	}
	for _, n := range t.Notes {
		out.Notes = append(out.Notes, json.AnswerNote(n))
	}
	for _, r := range verdict.Spare(a) {
		out.Notes = append(out.Notes, json.AnswerNote{Name: strings.ToLower(r.Word), Text: r.Text})
	}
	if a.NoHolders != "" {
		out.Notes = append(out.Notes, json.AnswerNote{Name: "holders", Text: "not known: " + a.NoHolders})
	}
	return out, nil
}

func writeSentence(w io.Writer, a *json.Answer) error {
	var b strings.Builder
	fmt.Fprintln(&b, words.Line(a.Sentence))
	for _, n := range a.Notes {
		fmt.Fprintf(&b, "  %-7s %s\n", n.Name, words.Line(n.Text))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteBriefOfJob writes the conclusions of a job: a sentence for each group of its processes or, as JSON, the first screen of each
// process.
func WriteBriefOfJob(w io.Writer, files []string, o *OpenOptions, asJSON bool) error {
	var processes []json.Answer
	var all []JobProcess
	for _, path := range files {
		a, id, err := briefOf(path, o)
		if err != nil {
			return err
		}
		processes, all = append(processes, *a), append(all, JobProcess{Identity: id, Answer: a.Answer})
	}
	sentences := JobSentences(JobAnswer(all))
	if asJSON {
		return json.WriteAnswerOfJob(w, sentences, processes)
	}
	_, err := fmt.Fprintln(w, words.Text(strings.Join(sentences, "\n")))
	return err
}

// briefOf reads the recording of one process of a job.
func briefOf(path string, o *OpenOptions) (*json.Answer, ranks.Identity, error) {
	s, err := Open(path, o)
	if err != nil {
		return nil, ranks.Identity{}, err
	}
	defer s.Close()
	a, err := s.brief()
	if err != nil {
		return nil, ranks.Identity{}, err
	}
	if filepath.Base(path) == TraceName {
		path = filepath.Dir(path)
	}
	a.Folder = filepath.Base(path)
	id := ranks.Identity{Rank: -1, PID: int(s.Info.PID)}
	if r := s.Info.Rank; r != nil {
		id.Rank = r.Rank
	}
	return a, id, nil
}
