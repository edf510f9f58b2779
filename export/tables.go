// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/csv"
	"github.com/gputrace/gputrace/export/internal/rows"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/parquet"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
)

// bootOf is when CLOCK_BOOTTIME was 0; the zero value: not known.
func bootOf(in *Input) time.Time {
	if in.Info.Started.IsZero() {
		return time.Time{}
	}
	return in.Info.Started.Add(-time.Duration(in.Info.StartedBoot))
}

func rowsOf(in *Input) *rows.Table {
	return &rows.Table{Trace: in.Trace, Boot: bootOf(in), Version: in.Version}
}

func writeParquet(w io.Writer, in *Input) error {
	if err := in.findSteps(); err != nil {
		return err
	}
	return parquet.Write(w, rowsOf(in), in.Selection)
}

func writeEvents(w io.Writer, in *Input) error {
	if err := in.findSteps(); err != nil {
		return err
	}
	return parquet.WriteEvents(w, rowsOf(in), in.Selection)
}

// largeCSV is from how many rows on it is said that a CSV of allocations is large.
const largeCSV = 100_000

// warnLarge says before it is written that a CSV file will be large.
func (in *Input) warnLarge() {
	rows := uint64(0)
	accounts := in.Trace.End().Snapshot.Accounts
	for i := range accounts {
		rows += accounts[i].Allocs
	}
	if rows >= largeCSV && in.Warn != nil {
		in.Warn(fmt.Errorf("the CSV file has a row with a whole stack, about 1 KiB, for each of %s: -f parquet has the same in a hundredth of "+
			"the size",
			table.Plural(rows, "allocation")))
	}
}

// writeCSV writes allocations, or sums of the moment when it is said by what.
func writeCSV(w io.Writer, in *Input) error {
	if in.By == "" {
		if err := in.findSteps(); err != nil {
			return err
		}
		in.warnLarge()
		return csv.WriteAllocations(w, rowsOf(in), in.Selection)
	}
	by, err := view.FindRowKind(in.By)
	if err != nil {
		return exit.Usage("--by: %w", err)
	}
	view, err := in.View()
	if err != nil {
		return err
	}
	return csv.WriteSums(w, view, by)
}

// WriteJSON writes a moment or a range of a source as the format json does. version is that of gputrace.
func (s *Source) WriteJSON(w io.Writer, at *Window, version string) error {
	in, err := s.Input(at, version, func(error) {})
	if err != nil {
		return err
	}
	return writeJSON(w, in)
}

func writeJSON(w io.Writer, in *Input) error {
	if in.Judged() {
		in.watchSteps()
	}
	view, err := in.detailed(false)
	if err != nil {
		return err
	}
	concluded, err := answerAtEnd(in)
	if err != nil {
		return err
	}
	var report *leaks.Report
	if concluded != nil {
		report = concluded.Leaks
	}
	return json.WriteExport(w, json.Export{
		Leaks: report, Sentence: sentenceOf(concluded),
		View: view, Gputrace: in.Info.Gputrace, PID: in.Info.PID, Command: in.Info.Cmdline, PyTorch: in.Info.PyTorch, Boot: bootOf(in),
		Moment: in.Moment, Damage: in.Trace.Damage,
	})
}
