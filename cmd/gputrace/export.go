package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/recording"
)

// exportFormat is one output format.
type exportFormat struct {
	name  string // as in -f
	file  string // default name of its file
	what  string // for people
	text  bool   // can be written to a terminal
	write func(w io.Writer, in *exportInput) error
}

// exportFormats are all formats, in the order in which help shows them.
var exportFormats = []exportFormat{
	{name: "pprof", file: "inuse.pb.gz", what: "profile of what is in use, for go tool pprof and its like", write: ofView(writePprof)},
	{name: "pprof-alloc", file: "alloc.pb.gz", what: "profile of all that was allocated", write: ofView(writePprofAlloc)},
	{name: "snapshot", file: "snapshot.pickle", what: "memory snapshot, for PyTorch's viewer", write: writeSnapshot},
	{name: "parquet", file: "allocations.parquet", what: "every allocation, for DuckDB, pandas and their like", write: writeParquet},
	{name: "csv", file: "allocations.csv", what: "every allocation as a table; with --by, what is in use", text: true, write: writeCSV},
	{name: "json", file: "memory.json", what: "all figures and stacks, for programs", text: true, write: ofView(writeJSON)},
	{name: "png", file: "memory.png", what: "picture of the memory over time", write: writePNG},
	{name: "svg", file: "memory.svg", what: "the same, as lines", text: true, write: writeSVG},
	{name: "perfetto", file: "timeline.pftrace.gz", what: "timeline with stacks, for ui.perfetto.dev", write: writePerfetto},
	{name: "chrome", file: "timeline.json.gz", what: "timeline that can be merged with torch.profiler's", text: true, write: writeChrome},
	{name: "speedscope", file: "memory.speedscope.json", what: "flame graphs for speedscope.app", text: true, write: ofView(writeSpeedscope)},
	{name: "folded", file: "memory.folded", what: "stacks as lines, for flamegraph.pl and its like", text: true, write: ofView(writeFolded)},
	{name: "html", file: "report.html", what: "page for a browser: curve, flame graph and table of any moment or range", text: true, write: writePage},
}

// exportInput is what a format is made of.
type exportInput struct {
	Trace     *view.Trace
	Info      *recording.Info // never nil; of a snapshot, mostly empty
	End       *recording.End  // nil: cut off, or a snapshot
	Selection view.Selection  // the moment or range that is asked for
	Joined    *view.Joined    // what holds what lived before the first event; nil: not known, as at any moment but the end
	By        string          // as --by has it
	Path      string          // of the input
	File      string          // name of the output; empty: standard output
	Moment    string          // Selection in words
	Warn      func(error)

	view *view.View
}

// View is of the selection. It is made when it is asked for: many formats show the course of time.
func (in *exportInput) View() (*view.View, error) {
	if in.view == nil {
		view, err := in.Trace.Select(in.Selection)
		if err != nil {
			return nil, coded(exitError, fmt.Errorf("%s: %w", in.Path, err))
		}
		in.view = view
	}
	return in.view, nil
}

// ofView is a format of a moment or a range.
func ofView(write func(w io.Writer, in *exportInput, view *view.View) error) func(io.Writer, *exportInput) error {
	return func(w io.Writer, in *exportInput) error {
		view, err := in.View()
		if err != nil {
			return err
		}
		return write(w, in, view)
	}
}

func formatNames() []string {
	var out []string
	for _, f := range exportFormats {
		out = append(out, f.name)
	}
	return out
}

// findFormats reads a comma list.
func findFormats(list string) ([]exportFormat, error) {
	var out []exportFormat
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(exportFormats, func(f exportFormat) bool { return f.name == name })
		if i < 0 {
			return nil, usage("-f %s: not a format: there are %s", name, strings.Join(formatNames(), ", "))
		}
		out = append(out, exportFormats[i])
	}
	return out, nil
}

func exportCommand() *cli.Command {
	var formats strings.Builder
	for _, f := range exportFormats {
		fmt.Fprintf(&formats, "\n  %-12s %s (%s)", f.name, f.what, f.file)
	}
	return &cli.Command{
		Name:      "export",
		Usage:     "turn a recording into a profile, a timeline, a page, a picture, a table",
		UsageText: "gputrace export FOLDER/trace.gputrace -f html\ngputrace export trace.gputrace -f pprof --at peak -o peak.pb.gz",
		Description: "What is written is of the end, unless --at or --from and --to say otherwise; figures are those of report, to the byte." +
			"\n\nFormats:" + formats.String() + "\n\nMoments: " + momentUsage + ".",
		Flags: append(selectionFlagsOf(),
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Usage: "write `FORMAT`, or several, separated by commas: " + strings.Join(formatNames(), ", ")},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write to `FILE`; - is standard output; of several formats, into this folder (default: the format's own name, here)"},
			&cli.StringFlag{Name: "by", Usage: "rows of tables: `line`, function, stack, layer or device"},
			forceFlag(),
		),
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("which recording? give one file; see gputrace export --help")
			}
			return export(exportOptions{
				path: c.Args().First(), formats: c.String("format"), output: c.String("output"), by: c.String("by"), force: c.Bool("force"),
				flags: selectionFlagsFrom(c),
			})
		},
	}
}

// exportOptions is a parsed export command line.
type exportOptions struct {
	path, formats, output, by string
	force                     bool
	flags                     selectionFlags
}

// export writes one recording in one or more formats.
func export(o exportOptions) error {
	if o.formats == "" {
		return usage("which format? give -f with one or more of %s", strings.Join(formatNames(), ", "))
	}
	formats, err := findFormats(o.formats)
	if err != nil {
		return err
	}
	files, err := outputNames(formats, o)
	if err != nil {
		return err
	}
	p := newProgress(os.Stderr)
	defer p.stop()
	warn := p.warn
	in, err := openWatched(o.path, p, warn)
	if err != nil {
		return err
	}
	defer in.close()
	input, err := newExportInput(in, o.flags, warn)
	if err != nil {
		return err
	}
	input.By = o.by
	for i, f := range formats {
		if files[i] == "" && isTerminal(os.Stdout) {
			p.stop()
		}
		input.File = files[i]
		if err := writeOutput(files[i], o.force, !f.text, func(w io.Writer) error { return f.write(w, input) }); err != nil {
			return err
		}
		p.clear()
		if files[i] != "" {
			fmt.Fprintf(os.Stderr, "wrote %s\n", printable(files[i]))
		}
	}
	return nil
}

// newExportInput is what all formats of one file are made of.
func newExportInput(in *opened, flags selectionFlags, warn func(error)) (*exportInput, error) {
	m := momentsOf(in)
	selection, err := m.selection(flags)
	if err != nil {
		return nil, err
	}
	out := &exportInput{
		Trace: in.trace, Info: in.info, End: in.end, Selection: selection, Path: in.path, Moment: m.text(selection), Warn: warn,
	}
	if selection == (view.Selection{}) {
		out.Joined = joinedBefore(in.end)
	}
	return out, nil
}

// outputNames is the file of each format; empty: standard output. It says before any work is done whether they can be written.
func outputNames(formats []exportFormat, o exportOptions) ([]string, error) {
	if len(formats) > 1 && o.output == stdoutName {
		return nil, usage("-o - is one output, but -f %s are %d: give a folder", o.formats, len(formats))
	}
	st, err := os.Stat(o.output)
	folder := o.output != "" && err == nil && st.IsDir()
	if len(formats) > 1 && o.output != "" && !folder {
		return nil, usage("-o %s: -f %s are several files: give a folder that is there", o.output, o.formats)
	}
	var out []string
	for _, f := range formats {
		name := o.output
		switch {
		case folder:
			name = filepath.Join(o.output, f.fileOf(o.flags))
		case o.output == "":
			name = f.fileOf(o.flags)
		}
		file, err := outputFile(name, o.force)
		if err != nil {
			return nil, err
		}
		if err := checkTerminal(name, !f.text); err != nil {
			return nil, err
		}
		out = append(out, file)
	}
	return out, nil
}

// fileOf is the default name of a format's file.
func (f *exportFormat) fileOf(flags selectionFlags) string {
	switch {
	case f.name == "pprof" && flags.at == "peak":
		return "peak.pb.gz"
	case f.name == "pprof" && flags.from+flags.to != "":
		return "range.pb.gz"
	}
	return f.file
}
