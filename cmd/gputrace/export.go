// SPDX-License-Identifier: Apache-2.0

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
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/words"
)

func exportCommand() *cli.Command {
	var formats strings.Builder
	for _, f := range export.Formats {
		fmt.Fprintf(&formats, "\n  %-12s %s", f.Name, f.What)
	}
	fmt.Fprintf(&formats, "\n  %-12s %s", gatecli.DatasetName, "peak and end of many recordings as a folder of Parquet, for DuckDB and Spark")
	names := append(export.Names(), gatecli.DatasetName)
	return &cli.Command{
		Name:  "export",
		Usage: "convert a recording: pprof, HTML, Perfetto, Parquet and more",
		UsageText: "gputrace export FOLDER/trace.gputrace -f html\ngputrace export trace.gputrace -f pprof --at peak -o peak.pb.gz\n" +
			"gputrace export JOB... -f dataset -o FOLDER",
		Description: "Writes what is in use at the end, or as --at, --from and --to choose; a page has all moments, and opens there or " +
			"at the peak. Figures are those of report, to the byte." +
			"\n\nFormats:" + formats.String() + "\n\nMoments: " + moment.Usage + ".",
		Flags: append(windowFlags(),
			flags.Words("format,f", "", "write `FORMAT`, or several, separated by commas: "+strings.Join(names, ", "), names, checkExportFormats),
			flags.Text("output,o", "", "write to `FILE`; - is standard output; for several formats, a new folder (default: the "+
				"format's own name, here)"),
			rowsFlag("", "with -f csv, a row for each `WHAT`: ", view.RecordedRowKindNames),
			flags.Files("with", "with -f perfetto, add the trace of torch.profiler in `FILE`, on one clock; can be repeated"),
			gatecli.DatasetFlags()[0],
			forceFlag(),
		),
		Action: func(c *cli.Context) error {
			w, err := windowOf(c)
			if err != nil {
				return err
			}
			if done, err := gatecli.Dataset(c, shared(), w != (export.Window{}) || c.IsSet("by") || c.IsSet("with")); done || err != nil {
				return err
			}
			if c.NArg() != 1 {
				return usage("which recording? give one file; see gputrace export --help")
			}
			return exportFile(exportOptions{
				path: c.Args().First(), formats: flags.Get[string](c, "format"), output: flags.Get[string](c, "output"),
				by: flags.Get[string](c, "by"), rules: rulesOf(c), force: c.Bool("force"), window: w,
				with: flags.Get[[]string](c, "with"),
			})
		},
	}
}

// checkExportFormats checks the value of -f.
func checkExportFormats(list string) error {
	if slices.Contains(strings.Split(list, ","), gatecli.DatasetName) {
		return gatecli.CheckDataset(list)
	}
	return checkFormats(list)
}

// exportOptions is a parsed export command line.
type exportOptions struct {
	path, formats, output, by string
	rules                     ruleFlags
	with                      []string
	force                     bool
	window                    export.Window
}

// exportFile writes one recording in one or more formats.
func exportFile(o exportOptions) error {
	if o.formats == "" {
		return usage("which format? give -f with one or more of %s", strings.Join(export.Names(), ", "))
	}
	formats, err := export.Find(o.formats)
	if err != nil {
		return err
	}
	for _, f := range formats {
		if err := f.Check(&o.window, o.by); err != nil {
			return err
		}
	}
	if err := export.CheckProfiles(o.with, formats); err != nil {
		return err
	}
	made, err := o.makeFolder(formats)
	if err != nil {
		return err
	}
	if made {
		defer os.Remove(o.output) // does not remove a folder with files
	}
	files, err := outputNames(formats, o)
	if err != nil {
		return err
	}
	p := progress.New(os.Stderr)
	defer p.Stop()
	warn := p.Warn
	in, err := o.rules.open(o.path, p.Options(warn))
	if err != nil {
		return err
	}
	defer in.Close()
	input, err := in.Input(&o.window, version, warn)
	if err != nil {
		return err
	}
	input.Profiles = o.with
	if err := input.GroupBy(o.by); err != nil {
		return err
	}
	for i, f := range formats {
		if files[i] == "" && output.IsTerminal(os.Stdout) {
			p.Stop()
		}
		input.File = files[i]
		if err := output.Write(files[i], o.force, !f.Text, func(w io.Writer) error { return f.Write(w, input) }); err != nil {
			return err
		}
		p.Clear()
		if files[i] != "" {
			fmt.Fprintln(os.Stderr, words.Text(strings.TrimRight(fmt.Sprintf("wrote %s   %s", files[i], f.OpenWith(files[i])), " ")))
		}
	}
	return nil
}

// makeFolder creates the folder for several files, or for a name that ends in "/", if it does not exist.
func (o *exportOptions) makeFolder(formats []export.Format) (made bool, err error) {
	if o.output == "" || o.output == output.Stdout || len(formats) < 2 && !strings.HasSuffix(o.output, "/") || fileExists(o.output) {
		return false, nil
	}
	if err := os.Mkdir(o.output, 0o755); err != nil {
		return false, coded(exitUsage, fmt.Errorf("make the folder: %w", err))
	}
	return true, output.GiveToUser(o.output)
}

// outputNames returns the file of each format; empty: standard output. It checks in advance whether they can be written.
func outputNames(formats []export.Format, o exportOptions) ([]string, error) {
	if len(formats) > 1 && o.output == output.Stdout {
		return nil, usage("-o - takes one format, but -f %s are %d: give a folder", o.formats, len(formats))
	}
	st, err := os.Stat(o.output)
	folder := o.output != "" && err == nil && st.IsDir()
	if len(formats) > 1 && o.output != "" && !folder {
		return nil, usage("-o %s: -f %s are several files: give a folder", o.output, o.formats)
	}
	var out []string
	for _, f := range formats {
		name := o.output
		switch {
		case folder:
			name = filepath.Join(o.output, f.FileFor(&o.window))
		case o.output == "":
			name = f.FileFor(&o.window)
		}
		file, err := output.File(name, o.force)
		if err != nil {
			return nil, err
		}
		if err := output.CheckTerminal(name, !f.Text); err != nil {
			return nil, err
		}
		out = append(out, file)
	}
	return out, nil
}
