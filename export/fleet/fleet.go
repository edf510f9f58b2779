// SPDX-License-Identifier: Apache-2.0

// Package fleet adds recordings to a dataset, which has the peak and the end of each. See docs/use/dataset.md.
package fleet

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/dataset"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// Options are the options of Write.
type Options struct {
	Dir     string
	Job     string // used for recordings that name no job
	Version string // of gputrace
	Open    *export.OpenOptions
	// LeftOut receives why a recording cannot be read. The others are written.
	LeftOut func(err error)
}

// Size is what Write wrote.
type Size struct {
	Processes, Rows int
	Bytes           int64
}

// Write adds recordings to a dataset, one after the other. A recording that is in it is replaced. The error is about the dataset: no more
// can be written.
func Write(paths []string, o *Options) (*Size, error) {
	d, err := dataset.Open(o.Dir)
	if err != nil {
		return nil, exit.With(exit.Error, err)
	}
	size := &Size{}
	for _, path := range paths {
		r, err := read(path, o)
		if err != nil {
			o.LeftOut(err)
			continue
		}
		files, err := d.Write(r.process.Part(r.process.Started), r.process.Key(), o.Version, r.moments, r.lines)
		if err != nil {
			return size, exit.With(exit.Error, err)
		}
		size.Processes, size.Rows = size.Processes+1, size.Rows+len(r.moments)+len(r.lines)
		for _, f := range files {
			size.Bytes += f.Bytes
		}
	}
	return size, nil
}

// recorded is what a dataset has of a recording.
type recorded struct {
	process *dataset.Process
	moments []dataset.MomentRow
	lines   []dataset.LineRow
}

func read(path string, o *Options) (*recorded, error) {
	s, err := export.Open(path, o.Open)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if s.Info.Started.IsZero() {
		return nil, exit.With(exit.Invalid, fmt.Errorf("%s: it does not say when it was made, which every row of a dataset needs: "+
			"give a recording (trace.gputrace), not a snapshot", path))
	}
	r := &recorded{process: processOf(s, o)}
	all, err := momentsOf(s, r.process)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		rows, of := m.Rows()
		r.moments, r.lines = append(r.moments, rows...), append(r.lines, of...)
	}
	return r, nil
}

func processOf(s *export.Source, o *Options) *dataset.Process {
	p := &dataset.Process{
		Labels: s.Info.Labels, Job: o.Job, Rank: -1, PID: int(s.Info.PID), Program: words.ScriptLine(s.Info.Cmdline, s.Info.Name),
		Started: s.Info.Started, Version: o.Version,
	}
	if r := s.Info.Rank; r != nil {
		p.Rank, p.World = r.Rank, r.World
	}
	return p
}

// momentsOf returns the peak and the end of a recording.
func momentsOf(s *export.Source, p *dataset.Process) ([]*dataset.Moment, error) {
	a, err := s.Answer()
	if err != nil {
		return nil, err
	}
	base := dataset.Moment{Process: p, Wall: s.Wall, Leaks: a.Leaks}
	if t := verdict.Of(a); t != nil {
		base.Verdict, base.Text = t.Word, words.Line(t.Text)
	}
	if s.End != nil && s.End.Lost != nil {
		lost := int64(*s.End.Lost)
		base.Lost = &lost
	}
	if a.Leaks != nil {
		if base.Grew, err = s.GrewAt(a.Leaks); err != nil {
			return nil, err
		}
	}
	var out []*dataset.Moment
	for _, kind := range []string{dataset.Peak, dataset.End} {
		m := base
		m.Kind = kind
		if m.View, err = viewOf(s, kind); err != nil {
			return nil, err
		}
		m.Time = s.Wall(max(m.View.Snapshot.Time, s.Info.Attached))
		if kind == dataset.End {
			m.Driver, _ = s.DriverAtEnd()
		}
		out = append(out, &m)
	}
	return out, nil
}

// viewOf returns a moment as the tables of export -f csv show it, by category.
func viewOf(s *export.Source, kind string) (*view.View, error) {
	w := &export.Window{}
	if kind == dataset.Peak {
		w.At = moment.Moment{Kind: moment.Peak}
	}
	in, err := s.Input(w, "", nil)
	if err == nil {
		err = in.GroupBy(view.ByCategory.String())
	}
	if err != nil {
		return nil, err
	}
	return in.View()
}
