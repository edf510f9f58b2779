// SPDX-License-Identifier: Apache-2.0

package export

import (
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
)

// Ranks compares recordings of one job. version is that of gputrace.
func Ranks(paths []string, o *OpenOptions, version string) (*ranks.Table, error) {
	var all []ranks.Process
	for _, path := range paths {
		p, err := rankOf(path, o, version)
		if err != nil {
			return nil, err
		}
		all = append(all, *p)
	}
	return ranks.New(all), nil
}

// rankOf is one recording as a process of a job.
func rankOf(path string, o *OpenOptions, version string) (*ranks.Process, error) {
	s, err := Open(path, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	p := &ranks.Process{
		Name: s.Info.Rank.Process(int(s.Info.PID)), File: path, Rank: -1, PID: int(s.Info.PID), Categories: map[string]int64{},
	}
	for _, a := range s.Trace.End().Snapshot.Accounts {
		if a.Allocated != event.Unknown {
			p.Live += int64(a.Allocated)
		}
	}
	if r := s.Info.Rank; r != nil {
		p.Rank, p.World = r.Rank, r.World
	}
	entries, err := s.PeakRows(true, version)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if e := &entries[i]; e.Layer == event.LayerAllocator.String() {
			p.Categories[e.Category] += e.Bytes
			p.Peak += e.Bytes
		}
	}
	if p.Leaks, err = s.Leaks(); err != nil {
		return nil, err
	}
	if p.Devices, err = ranks.DevicesOf(s.Trace); err != nil {
		return nil, err
	}
	p.Grew, err = s.GrewAt(p.Leaks)
	return p, err
}

// Wall converts CLOCK_BOOTTIME nanoseconds to a time of the clock of all machines.
func (s *Source) Wall(boot uint64) time.Time {
	return s.Info.Started.Add(time.Duration(boot) - time.Duration(s.Info.StartedBoot))
}

// GrewAt is when the first finding of the source's report began, by the clock of all machines; zero: not known.
func (s *Source) GrewAt(r *leaks.Report) (time.Time, error) {
	var at time.Time
	found, err := s.Steps()
	if err != nil || s.Info.Started.IsZero() {
		return at, err
	}
	for i := range r.Findings {
		begin, _, ok := found.Span(r.Findings[i].First)
		if !ok {
			continue
		}
		if t := s.Wall(begin); at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at, nil
}

// WriteRanks writes the processes of a job as a table for a screen of so many columns (0: 80), or as JSON.
func WriteRanks(w io.Writer, t *ranks.Table, asJSON bool, width int) error {
	if asJSON {
		return json.WriteRanks(w, t)
	}
	return table.Ranks(w, t, width)
}
