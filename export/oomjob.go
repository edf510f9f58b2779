// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/why"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/sorts"
)

// JobOOM is why requests for memory failed in the processes of a job.
type JobOOM struct {
	failed []processOOM // of the processes in which a request failed, in their order
	all    oom.Report   // of all processes, by time
	wall   func(at uint64) time.Time
	fatal  int
}

// processOOM is that of one process.
type processOOM struct {
	report *oom.Report
	began  uint64 // CLOCK_BOOTTIME nanoseconds
}

// OOMOfJob reads the recordings of a job, one after the other.
func OOMOfJob(files []string, o *OpenOptions) (*JobOOM, error) {
	out := &JobOOM{all: oom.Report{Silent: true}}
	for _, path := range files {
		if err := out.add(path, o); err != nil {
			return nil, err
		}
	}
	sorts.Func(out.all.Cases, func(x, y oom.Case) int { return cmp.Compare(x.Time, y.Time) })
	return out, nil
}

func (j *JobOOM) add(path string, o *OpenOptions) error {
	s, err := Open(path, o)
	if err != nil {
		return err
	}
	defer s.Close()
	report, err := s.OOM()
	if err != nil {
		return err
	}
	c := clockOf(s)
	if len(report.Cases) > 0 {
		j.failed = append(j.failed, processOOM{report, c.attached})
		j.wall = c.wall // of one machine, all count from its boot
	}
	j.all.Cases = append(j.all.Cases, report.Cases...)
	j.all.More, j.all.Recovered = j.all.More+report.More, j.all.Recovered+report.Recovered
	j.all.Silent = j.all.Silent && report.Silent
	j.fatal += report.Fatal()
	return nil
}

// Print writes it as Source.PrintOOM does; JSON has the failures of all processes, by time.
func (j *JobOOM) Print(w io.Writer, o *OOMOptions) error {
	var b bytes.Buffer
	var err error
	switch {
	case o.JSON:
		err = json.WriteOOM(&b, &json.OOMInput{Report: &j.all, Text: why.Text, Wall: j.wall})
	case len(j.failed) == 0:
		err = table.OOM(&b, &table.OOMInput{Why: why.Text, Report: &j.all, Top: o.Top, Width: o.Width})
	default:
		err = j.text(&b, o)
	}
	if err == nil {
		_, err = w.Write(b.Bytes())
	}
	if err != nil {
		return fmt.Errorf("print why memory ran out: %w", err)
	}
	if j.fatal > 0 {
		return exit.With(exit.Findings, errors.New(""))
	}
	return nil
}

func (j *JobOOM) text(w io.Writer, o *OOMOptions) error {
	for i, p := range j.failed {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := table.OOM(w, &table.OOMInput{Why: why.Text, Report: p.report, Began: p.began, Top: o.Top, Width: o.Width}); err != nil {
			return err
		}
	}
	return nil
}
