// SPDX-License-Identifier: Apache-2.0

// Package checks applies the rules of a check to recordings.
package checks

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/gate"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/compare"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/junit"
	"github.com/gputrace/gputrace/export/rules"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/exit"
)

// Input is what is checked.
type Input struct {
	// Paths are recordings, or folders of results: of a job, each process's recording is checked.
	Paths []string
	Rules gate.Rules
	// BaselinePath is a recording, a snapshot, a profile, or the folder of a job, whose processes are compared with those of the same
	// rank or order. Empty: there is none.
	BaselinePath string
	Version      string // of gputrace
	Open         *export.OpenOptions
}

// Check applies rules to recordings. What cannot be read is an error, with its exit code.
func Check(in *Input) (*gate.Check, error) {
	var files []string
	for _, path := range in.Paths {
		found, err := export.Recordings(path)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	baselines, err := in.baselines(len(files))
	if err != nil {
		return nil, err
	}
	out := &gate.Check{}
	for i, path := range files {
		report, err := in.check(path, baselines[i])
		if err != nil {
			return nil, err
		}
		out.Reports = append(out.Reports, report)
	}
	return out, nil
}

// baselines is what each of n files is compared with.
func (in *Input) baselines(n int) ([]string, error) {
	out := make([]string, n)
	if in.BaselinePath == "" {
		return out, nil
	}
	found, err := export.Recordings(in.BaselinePath)
	if err != nil {
		return nil, err
	}
	if len(found) > 1 && len(found) != n {
		return nil, exit.Usage("--baseline %s has %d recordings, and %d are checked: give one, or as many", in.BaselinePath, len(found), n)
	}
	for i := range out {
		out[i] = found[min(i, len(found)-1)]
	}
	return out, nil
}

// check applies the rules to one recording.
func (in *Input) check(path, baseline string) (gate.Report, error) {
	s, err := export.Open(path, in.Open)
	if err != nil {
		return gate.Report{}, err
	}
	defer s.Close()
	g := &gate.Input{Name: path, Peaks: view.NewPeaks(s.Trace.End().Snapshot)}
	g.Refused, g.Skipped = refused(s.Trace)
	if s.Info.PID != 0 {
		g.Name += ", " + s.Info.Rank.Process(int(s.Info.PID))
	}
	if in.Rules.NeedsSteps() {
		if g.Leaks, err = s.Leaks(); err != nil {
			return gate.Report{}, err
		}
	}
	if g.Peak, err = s.PeakRows(baseline != "", in.Version); err != nil {
		return gate.Report{}, err
	}
	if baseline != "" {
		if g.Baseline, g.Categories, err = in.baseline(baseline); err != nil {
			return gate.Report{}, fmt.Errorf("--baseline: %w", err)
		}
	}
	return gate.Judge(&in.Rules, g), nil
}

// baseline is what was in use at the peak of a baseline, and whether it says what for.
func (in *Input) baseline(path string) ([]view.Row, bool, error) {
	f, err := compare.Open(path, in.Open)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	return f.PeakRows(in.Version)
}

// refused is the requests that were refused, and how many others were.
func refused(t *view.Trace) (out []gate.Refused, skipped int) {
	failed, _ := t.Refusals()
	for i := range failed {
		e := &failed[i].Event
		skipped += failed[i].Skipped
		r := gate.Refused{Bytes: e.Size, Time: e.Time, Device: e.Device}
		site := t.Site(&heap.Block{PID: e.PID, Layer: e.Layer, Device: e.Device, Stack: e.Stack, Call: e.Call, Origin: heap.OriginEvent})
		r.Site = view.Call{Name: site.Name}
		if site.Own != nil {
			r.Site = view.CallOf(site.Own)
		}
		out = append(out, r)
	}
	return out, skipped
}

// Write writes a check as text, of lines of at most width characters (0: 80), or as JSON.
func Write(w io.Writer, c *gate.Check, asJSON bool, width int) error {
	if asJSON {
		return json.WriteCheck(w, c, rules.Texts)
	}
	return rules.Write(w, c, width)
}

// WriteJUnit writes a check as CI systems read it.
func WriteJUnit(w io.Writer, c *gate.Check) error { return junit.Write(w, c, rules.Texts) }
