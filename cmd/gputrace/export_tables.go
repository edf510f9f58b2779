package main

import (
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/csv"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/parquet"
	"github.com/gputrace/gputrace/export/rows"
)

// bootOf is when CLOCK_BOOTTIME was 0; the zero value: not known.
func bootOf(in *exportInput) time.Time {
	if in.Info.Started.IsZero() {
		return time.Time{}
	}
	return in.Info.Started.Add(-time.Duration(in.Info.StartedBoot))
}

func rowsOf(in *exportInput) *rows.Table {
	return &rows.Table{Trace: in.Trace, Boot: bootOf(in), Version: version}
}

func writeParquet(w io.Writer, in *exportInput) error {
	if err := wholeTrace(in, "parquet"); err != nil {
		return err
	}
	return parquet.Write(w, rowsOf(in), in.Selection)
}

// writeCSV writes allocations, or sums of the moment when it is said by what.
func writeCSV(w io.Writer, in *exportInput) error {
	if in.By == "" {
		if err := wholeTrace(in, "csv"); err != nil {
			return err
		}
		return csv.WriteAllocations(w, rowsOf(in), in.Selection)
	}
	by, err := view.FindRowKind(in.By)
	if err != nil {
		return usage("--by: %w", err)
	}
	view, err := in.View()
	if err != nil {
		return err
	}
	return csv.WriteSums(w, view, by)
}

// wholeTrace refuses a moment for what has all of time in it.
func wholeTrace(in *exportInput, format string) error {
	if s := in.Selection; s.At != 0 || s.Peak {
		return usage("--at: -f %s has every allocation from its birth to its end; --from and --to choose some, --by of csv adds up a moment", format)
	}
	return nil
}

func writeJSON(w io.Writer, in *exportInput, view *view.View) error {
	return json.WriteExport(w, json.Export{
		View: view, Gputrace: in.Info.Gputrace, PID: in.Info.PID, Command: in.Info.Cmdline, PyTorch: in.Info.PyTorch, Boot: bootOf(in),
		Moment: in.Moment, Damage: in.Trace.Damage,
	})
}
