// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/compare"
	"github.com/gputrace/gputrace/internal/output"
)

const defaultDiffTop = 20

// diffOptions is a parsed diff command line.
type diffOptions struct {
	paths  []string        // one, compared with itself, or two
	at     []moment.Moment // none, one or two
	by     view.RowKind
	format compare.Format
	top    int // number of rows of the text; 0: all
	rules  ruleFlags
	output string // path; empty: standard output
	force  bool
}

func diffCommand() *cli.Command {
	names := compare.Names()
	return &cli.Command{
		Name:  "diff",
		Usage: "compare two recordings, snapshots, profiles or moments",
		UsageText: "gputrace diff BEFORE AFTER [--at MOMENT] [--by WHAT] [-f text|json|html|pprof] [--json] [-o FILE]\ngputrace diff FILE " +
			"--at MOMENT [--at MOMENT]",
		Description: "Lines that moved are matched by their function and text, and files in another folder by the end of their paths, " +
			"where it " +
			"is unambiguous.\n\nMoments: " + moment.Usage + ".",
		Flags: []cli.Flag{
			flags.Moments("at", "compare what is in use at `MOMENT` (default: end, or the peaks if both ends are empty); given twice, the "+
				"second is for AFTER; with one FILE, compare it with the end"),
			rowsFlag(view.RowKindNames[0], "a row for each `WHAT`: ", view.RecordedRowKindNames),
			flags.Choice("format,f", names[0], "`FORMAT`: "+flags.Or(names), names),
			flags.Count("top", strconv.Itoa(defaultDiffTop), "show the `N` largest changes; 0: all", 0, "rows"),
			&cli.BoolFlag{Name: "json", Usage: "write JSON, as with -f json"},
			stepOnFlag(), outputFlag(), forceFlag(),
		},
		Action: func(c *cli.Context) error {
			o, err := parseDiff(c)
			if err != nil {
				return err
			}
			return diff(&o)
		},
	}
}

func parseDiff(c *cli.Context) (diffOptions, error) {
	o := diffOptions{
		paths: c.Args().Slice(), at: flags.Get[[]moment.Moment](c, "at"), force: c.Bool("force"), top: flags.Get[int](c, "top"),
		rules:  ruleFlags{stepOn: flags.Get[string](c, "step-on")},
		format: compare.Formats[slices.Index(compare.Names(), formatOf(c))],
	}
	switch {
	case c.Bool("json") && c.IsSet("format") && o.format.Name != "json":
		return o, usage("--json means -f json, but -f %s is another format: give only one", o.format.Name)
	case len(o.paths) == 0 || len(o.paths) > 2:
		return o, usage("which files? give two, or one and --at; see gputrace diff --help")
	case len(o.at) > 2:
		return o, usage("--at is given %d times, but there are only two sides", len(o.at))
	case len(o.paths) == 1 && len(o.at) == 0:
		return o, usage("one file: give another one to compare it with, or a moment with --at; see gputrace diff --help")
	}
	var err error
	if o.by, err = view.FindRowKind(flags.Get[string](c, "by")); err != nil {
		return o, err
	}
	if o.output, err = output.File(flags.Get[string](c, "output"), o.force); err != nil {
		return o, err
	}
	return o, output.CheckTerminal(o.output, o.format.Binary)
}

// formatOf returns the format's name.
func formatOf(c *cli.Context) string {
	if c.Bool("json") && !c.IsSet("format") {
		return "json"
	}
	return flags.Get[string](c, "format")
}

// diff compares two files, or two moments of one.
func diff(o *diffOptions) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	options, err := o.rules.options(p.Options(p.Warn))
	if err != nil {
		return err
	}
	sides, err := compare.OpenSides(&compare.Options{Paths: o.paths, At: o.at, By: o.by, Version: version, Open: options, Warn: p.Warn})
	if err != nil {
		return err
	}
	defer sides.Close()
	p.Stop()
	return output.Write(o.output, o.force, o.format.Binary, func(w io.Writer) error {
		return o.format.Write(w, &compare.Input{Before: sides.Before, After: sides.After, By: o.by, Top: o.top, Width: console.Width(o.output)})
	})
}
