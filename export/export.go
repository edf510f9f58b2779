// SPDX-License-Identifier: Apache-2.0

// Package export turns a recording, or a memory snapshot of PyTorch's, into files of other formats. Each format has a package of its
// own below this one, which knows nothing of recordings; here are the table of them, and what a recording says beside its events.
package export

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recording"
)

// Format is one output format.
type Format struct {
	Name string // as in -f
	File string // default name of its file
	What string // for people
	Open string // what opens it, for people, with FILE for its name; empty: whatever opens such files
	Text bool   // can be written to a terminal
	// Course: it shows the course of time, of which --from and --to choose a part, and no moment.
	Course bool

	write func(w io.Writer, in *Input) error
}

// Write writes a source in the format. An error of what is asked for, which the format cannot show, is one of usage.
func (f *Format) Write(w io.Writer, in *Input) error { return f.write(w, in) }

// Check says what of a window the format cannot show; by is what the rows of tables are, as Input's By.
func (f *Format) Check(w *Window, by string) error {
	sums := f.Name == "csv" && by != ""
	switch {
	case by != "" && f.Name != "csv":
		return exit.Usage("--by: only -f csv has rows; -f %s has its own form", f.Name)
	case f.Course && !sums && w.At.Kind != moment.Unset:
		return exit.Usage("--at: -f %s shows the course of time, no moment; --from and --to choose a part of it, and csv --by adds up a moment",
			f.Name)
	case f.Name == "snapshot" && w.MinSize > 0:
		return exit.Usage("--min-size: a snapshot has all blocks, or its segments would not be what they are")
	}
	return nil
}

// OpenWith is what opens a file of the format, for people; empty: whatever opens such files.
func (f *Format) OpenWith(file string) string { return strings.ReplaceAll(f.Open, "FILE", file) }

// FileFor is the default name of the format's file of a window.
func (f *Format) FileFor(w *Window) string {
	switch {
	case f.Name == "pprof" && w.At.Kind == moment.Peak:
		return "peak.pb.gz"
	case f.Name == "pprof" && w.isRange():
		return "range.pb.gz"
	}
	return f.File
}

// PageName is the page in a folder of results.
const PageName = "report.html"

// Formats are all formats, in the order in which help shows them.
var Formats = []Format{
	{Name: "pprof", File: "inuse.pb.gz", What: "profile of what is in use, for go tool pprof and its like",
		Open: "go tool pprof -http=: FILE", write: WriteProfile},
	{Name: "pprof-alloc", File: "alloc.pb.gz", What: "profile of all that was allocated", Open: "go tool pprof -http=: FILE",
		write: writePprofAlloc},
	{Name: "snapshot", File: "snapshot.pickle", What: "memory snapshot, for PyTorch's viewer", Open: "drop it on pytorch.org/memory_viz",
		write: writeSnapshot},
	{Name: "parquet", File: "allocations.parquet", What: "every allocation, for DuckDB, pandas and their like",
		Open: "duckdb -c \"from 'FILE'\"", Course: true, write: writeParquet},
	{
		Name: "events", File: "events.parquet", What: "every event with the totals after it", Open: "duckdb -c \"from 'FILE'\"", Course: true,
		write: writeEvents,
	},
	{Name: "csv", File: "allocations.csv", What: "every allocation as a table; with --by, what is in use", Text: true, Course: true,
		write: writeCSV},
	{Name: "json", File: "memory.json", What: "all figures and stacks, for programs", Text: true, write: writeJSON},
	{Name: "png", File: "memory.png", What: "picture of the memory over time", Course: true, write: writePNG},
	{Name: "svg", File: "memory.svg", What: "the same, as lines", Text: true, Course: true, write: writeSVG},
	{Name: "perfetto", File: "timeline.pftrace.gz", What: "timeline with stacks, for ui.perfetto.dev", Open: "open it at ui.perfetto.dev",
		Course: true, write: writePerfetto},
	{Name: "chrome", File: "timeline.json.gz", What: "timeline that can be merged with torch.profiler's",
		Open: "open it at ui.perfetto.dev or chrome://tracing", Text: true, Course: true, write: writeChrome},
	{Name: "flamegraph", File: "flamegraph.svg", What: "flame graph of what is in use, as a picture", Open: "open it in a browser",
		Text: true, write: ofView(writeFlameGraph)},
	{Name: "speedscope", File: "memory.speedscope.json", What: "flame graphs for speedscope.app", Open: "open it at speedscope.app",
		Text: true, write: ofView(writeSpeedscope)},
	{Name: "folded", File: "memory.folded", What: "stacks as lines, for flamegraph.pl and its like", Open: "flamegraph.pl FILE > flame.svg",
		Text: true, write: ofView(writeFolded)},
	{Name: "html", File: PageName, What: "page for a browser: curve, flame graph, table of any moment", Open: "open it in a browser",
		Text: true, write: writePage},
}

// Names are the names of all formats.
func Names() []string {
	var out []string
	for _, f := range Formats {
		out = append(out, f.Name)
	}
	return out
}

// Files are the default names of the files of all formats.
func Files() []string {
	var out []string
	for _, f := range Formats {
		out = append(out, f.File)
	}
	return out
}

// Find reads a list of names, separated by commas.
func Find(list string) ([]Format, error) {
	var out []Format
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(Formats, func(f Format) bool { return f.Name == name })
		if i < 0 {
			guess := words.DidYouMean(name, Names())
			if guess == "" {
				guess = ": there are " + strings.Join(Names(), ", ")
			}
			return nil, fmt.Errorf("%q is not a format%s", name, guess)
		}
		out = append(out, Formats[i])
	}
	return out, nil
}

// Input is what a format is made of.
type Input struct {
	Trace     *view.Trace
	Info      *recording.Info // never nil; of a snapshot, mostly empty
	End       *recording.End  // nil: cut off, or a snapshot
	Selection view.Selection  // the moment or range that is asked for
	Joined    *view.Joined    // the holders of what was allocated before the first event; nil: not known, as at any moment but the end
	By        string          // rows of tables, one of view.RecordedRowKindNames, set by GroupBy; empty: the format's own
	Path      string          // of the source
	File      string          // name of the output; empty: standard output
	Profiles  []string        // files with traces of torch.profiler that -f perfetto adds
	Moment    string          // Selection in words
	Version   string          // of gputrace
	Warn      func(error)

	view   *view.View
	viewed view.Selection // what view is of
	source *Source        // nil: there is none
}

// GroupBy says what the rows of tables are, before the View is asked for: one of view.RecordedRowKindNames, or empty for the format's own.
func (in *Input) GroupBy(name string) error {
	in.By = name
	if name == "" {
		return nil
	}
	by, err := view.FindRowKind(name)
	if err != nil {
		return exit.Usage("--by: %w", err)
	}
	if err := in.beforeExit(); err != nil || !by.Detailed() {
		return err
	}
	in.Selection.AllSteps = by == view.ByStep
	in.Selection.Detail = true
	if by != view.ByStep {
		return nil
	}
	in.Selection.Steps = true
	return in.findSteps()
}

// findSteps has the trace know its steps.
func (in *Input) findSteps() error {
	if in.source == nil {
		return nil
	}
	found, err := in.source.Steps()
	if err != nil {
		return err
	}
	in.Trace.SetSteps(found.At)
	return nil
}

// detailed is the View with the parts of sites by what their memory is for and, when steps is true, by step: the replay for it looks for
// the steps too.
func (in *Input) detailed(steps bool) (*view.View, error) {
	in.Selection.Detail = true
	if !steps || in.Selection.Steps || in.source == nil {
		return in.View()
	}
	in.Selection.Steps = true
	in.watchSteps()
	in.Trace.SetSteps(func(time uint64) int {
		found, err := in.source.Steps()
		if err != nil {
			return 0
		}
		return found.At(time)
	})
	out, err := in.View()
	if err != nil {
		return nil, err
	}
	_, err = in.source.Steps()
	return out, err
}

// watchSteps has the next replay look for the steps too, which are asked for later.
func (in *Input) watchSteps() {
	if in.source != nil {
		in.Trace.Watch(in.source.searched())
	}
}

// View is of the selection. It is made when it is asked for: many formats show the course of time.
func (in *Input) View() (*view.View, error) {
	if in.view == nil || in.viewed != in.Selection {
		view, err := in.Trace.Select(in.Selection)
		if err != nil {
			return nil, exit.With(exit.Error, fmt.Errorf("%s: %w", in.Path, err))
		}
		in.view, in.viewed = view, in.Selection
	}
	return in.view, nil
}

// ofView is a format of a moment or a range. The end of a program that has ended is before it freed everything, as in tables.
func ofView(write func(w io.Writer, in *Input, view *view.View) error) func(io.Writer, *Input) error {
	return func(w io.Writer, in *Input) error {
		if err := in.beforeExit(); err != nil {
			return err
		}
		view, err := in.View()
		if err != nil {
			return err
		}
		return write(w, in, view)
	}
}
