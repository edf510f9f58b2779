// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
)

// JobLeaks is what grows in each process of a job.
type JobLeaks struct {
	processes []json.ProcessLeaks // in the order of the files
}

// LeaksOfJob reads the recordings of a job, one after the other.
func LeaksOfJob(files []string, o *OpenOptions) (*JobLeaks, error) {
	out := &JobLeaks{}
	for _, path := range files {
		if err := out.add(path, o); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (j *JobLeaks) add(path string, o *OpenOptions) error {
	s, err := Open(path, o)
	if err != nil {
		return err
	}
	defer s.Close()
	a, err := s.Answer()
	if err != nil {
		return err
	}
	report, sentence := growthOf(a)
	if filepath.Base(path) == TraceName {
		path = filepath.Dir(path)
	}
	j.processes = append(j.processes, json.ProcessLeaks{Folder: filepath.Base(path), Report: report, Sentence: sentence})
	return nil
}

// Print writes the verdict on each process below its folder's name. width is that of table.Leaks. The error has no text when there are
// findings: its exit code says so.
func (j *JobLeaks) Print(w io.Writer, asJSON bool, width int) error {
	if asJSON {
		if err := json.WriteLeaksOfJob(w, j.processes); err != nil {
			return err
		}
	} else if err := j.text(w, width); err != nil {
		return err
	}
	for _, p := range j.processes {
		if len(p.Report.Findings) > 0 {
			return exit.With(exit.Findings, errors.New(""))
		}
	}
	return nil
}

func (j *JobLeaks) text(w io.Writer, width int) error {
	for i, p := range j.processes {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, p.Folder)
		if err := table.Leaks(w, p.Report, p.Sentence, width); err != nil {
			return err
		}
	}
	return nil
}
