// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recording"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:  "report",
		Usage: "show a recording: peak, live memory by line, losses",
		UsageText: "gputrace report FOLDER/trace.gputrace\ngputrace report trace.gputrace --at peak --by function\n" +
			"gputrace report trace.gputrace --from 10s --to 12s --min-size 1MiB",
		Description: "Without a moment, a range or --by it prints the summary again. For a job's folder, or for several " +
			"recordings, it compares the processes.\n\nMoments: " + moment.Usage + ".",
		Flags: append(windowFlags(),
			rowsFlag("", "one row for each `KIND` (default: line): ", view.RecordedRowKindNames),
			flags.Count("top", "", "`ROWS` of each table (default: 10)", 0, "rows"),
			verboseFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON: for one recording what export -f json writes, for a job its processes"},
			&cli.BoolFlag{Name: "brief", Usage: "print only the verdict; with --json the first screen, a few KiB"},
		),
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usage("which recording? give one file, or those of a job; see gputrace report --help")
			}
			w, err := windowOf(c)
			if err != nil {
				return err
			}
			if c.Bool("brief") {
				return gatecli.Brief(c, shared(), w != (export.Window{}) || c.IsSet("by"))
			}
			if done, err := gatecli.Ranks(c, shared(), w != (export.Window{}) || c.IsSet("by")); done || err != nil {
				return err
			}
			return report(reportOptions{path: c.Args().First(), rules: rulesOf(c), window: w, by: flags.Get[string](c, "by"),
				top: flags.Get[int](c, "top"), verbose: c.Bool("verbose") || c.IsSet("top"), json: c.Bool("json")})
		},
	}
}

// reportOptions is a parsed report command line.
type reportOptions struct {
	path    string
	rules   ruleFlags
	window  export.Window
	by      string
	top     int // 0: the default
	verbose bool
	json    bool
}

// verboseFlag returns --verbose for every command that prints a summary.
func verboseFlag() cli.Flag {
	return &cli.BoolFlag{Name: "verbose", Aliases: []string{"v"},
		Usage: "print all tables too, details of losses and, for an error, every cause"}
}

// report prints the summary of a recording, as at the end of the session, or the selected part of it.
func report(o reportOptions) error {
	say := func(format string, args ...any) { fmt.Fprintln(os.Stderr, words.Text(fmt.Sprintf(format, args...))) }
	var warnings []error
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := o.rules.open(o.path, p.Options(func(err error) { warnings = append(warnings, err) }))
	if err != nil {
		return err
	}
	defer in.Close()
	for _, w := range warnings {
		say("gputrace: warning: %v", w)
	}
	if in.First.Number > 0 {
		say("  the first %d events are not in this file (a limit, or a segment); the figures are complete all the same", in.First.Events)
	}
	if o.json {
		return in.WriteJSON(os.Stdout, &o.window, version)
	}
	if o.by != "" || o.window != (export.Window{}) {
		return reportSelection(o, in, p)
	}
	return in.PrintAnswer(os.Stdout, &export.AnswerOptions{Screen: console.Screen(os.Stdout), Verbose: o.verbose, Top: o.top, Path: o.path})
}

// titleOf returns a title for a file. For a snapshot, only the time at which it was made is known, and only if it has a history.
func titleOf(info *recording.Info) string {
	switch {
	case info.PID != 0:
		return fmt.Sprintf("gputrace %s · pid %d %s · %s", info.Gputrace, info.PID, commandLine(info.Cmdline, info.Name),
			info.Started.Format(time.RFC3339))
	case info.Started.IsZero():
		return info.Name
	}
	return info.Name + " · " + info.Started.Format(time.RFC3339)
}

// reportSelection prints a moment or a range.
func reportSelection(o reportOptions, in *export.Source, p *progress.Line) error {
	by := view.ByLine
	if o.by != "" {
		var err error
		if by, err = view.FindRowKind(o.by); err != nil {
			return usage("--by: %w", err)
		}
	}
	input, err := in.Input(&o.window, version, nil)
	if err == nil {
		err = input.GroupBy(by.String())
	}
	p.Stop()
	if err != nil {
		return err
	}
	view, err := input.View()
	if err != nil {
		return err
	}
	for _, line := range words.Lines(words.Line(titleOf(in.Info)), console.Width(""), 2) {
		fmt.Println(line)
	}
	return table.Selection(os.Stdout, table.SelectionInput{
		View: view, Title: input.Moment, Range: input.Selection.To != 0, By: by, Top: o.top, Width: console.Width(""),
	})
}
