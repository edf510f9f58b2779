// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/console"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/progress"
)

const defaultDiffTop = 20

// diffOptions is a parsed diff command line.
type diffOptions struct {
	paths  []string        // one, compared with itself, or two
	at     []moment.Moment // none, one or two
	by     view.RowKind
	format export.DiffFormat
	top    int // rows of the text; 0: all
	rules  ruleFlags
	output string // file; empty: standard output
	force  bool
}

func diffCommand() *cli.Command {
	names := export.DiffNames()
	return &cli.Command{
		Name:      "diff",
		Usage:     "show what changed between two recordings, snapshots or profiles, or two moments of one recording",
		UsageText: "gputrace diff BEFORE AFTER [--at MOMENT] [--by line|function|stack|layer|device] [-f text|json|html|pprof] [-o FILE]\ngputrace diff FILE --at MOMENT [--at MOMENT]",
		Description: "Lines that moved are found again by their function and text, and files in another folder by how their paths end, where it " +
			"is clear which is meant.\n\nMoments: " + moment.Usage + ".",
		Flags: []cli.Flag{
			flags.Moments("at", "compare what is in use at `MOMENT` (default: end, or the peaks where both ends are empty); given twice, the second is that of AFTER; of one FILE alone, with the end"),
			rowsFlag(view.RowKindNames[0], "a row for each `WHAT`: ", view.RowKindNames),
			flags.Choice("format,f", names[0], "`FORMAT`: "+flags.Or(names), names),
			flags.Count("top", strconv.Itoa(defaultDiffTop), "show the `N` largest changes; 0: all", 0, "rows"),
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
		format: export.DiffFormats[slices.Index(export.DiffNames(), flags.Get[string](c, "format"))],
	}
	switch {
	case len(o.paths) == 0 || len(o.paths) > 2:
		return o, usage("which files? give two, or one and --at; see gputrace diff --help")
	case len(o.at) > 2:
		return o, usage("--at is given %d times: there are two sides", len(o.at))
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

// moments are those of the two sides.
func (o *diffOptions) moments() (before, after moment.Moment) {
	end := moment.Moment{Kind: moment.End}
	switch {
	case len(o.at) == 2:
		return o.at[0], o.at[1]
	case len(o.at) == 0:
		return end, end
	case len(o.paths) == 1:
		return o.at[0], end
	}
	return o.at[0], o.at[0]
}

// diff compares two files, or two moments of one.
func diff(o *diffOptions) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	files := make([]*export.DiffFile, 0, 2)
	profiles := 0
	for _, path := range o.paths {
		options, err := o.rules.options(p.Options(p.Warn))
		if err != nil {
			return err
		}
		f, err := export.OpenDiff(path, options)
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
		if f.IsProfile() {
			profiles++
		}
	}
	if profiles == len(files) && len(o.at) > 0 {
		return usage("--at: a profile is of one moment; give the recording that it was made of")
	}
	at, atAfter := o.moments()
	if len(o.at) == 0 && files[0].IsEmptied() && files[len(files)-1].IsEmptied() {
		at, atAfter = moment.Moment{Kind: moment.Peak}, moment.Moment{Kind: moment.Peak}
		p.Warn(errors.New("at the end of both nothing is in use any more: what was in use at their peaks is compared; --at end compares the ends"))
	}
	before, err := files[0].Side(at, version)
	if err != nil {
		return err
	}
	after, err := files[len(files)-1].Side(atAfter, version)
	if err != nil {
		return err
	}
	p.Stop()
	return output.Write(o.output, o.force, o.format.Binary, func(w io.Writer) error {
		return o.format.Write(w, &export.DiffInput{Before: before, After: after, By: o.by, Top: o.top, Width: console.Width(o.output)})
	})
}
