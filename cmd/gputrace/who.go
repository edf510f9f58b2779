// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/holders"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/output"
)

const (
	defaultWhoTop = 20
	// maxFreeze is the maximum time for which a process may be stopped: meanwhile, a server's clients wait.
	maxFreeze = 10 * time.Second
	// minFreeze is the time needed to stop and continue a process with many threads.
	minFreeze = 10 * time.Millisecond
	// defaultFreeze is short enough to be hardly noticed.
	defaultFreeze = 250 * time.Millisecond
)

// whoOptions is a parsed who command line.
type whoOptions struct {
	pids    []int
	by      holders.Grouping
	address uint64
	one     bool // address was given
	top     int  // number of rows; 0: all
	json    bool
	output  string        // file; empty: stdout
	force   bool          // replace an existing file
	freeze  time.Duration // 0: the process is not stopped
}

func whoCommand() *cli.Command {
	return &cli.Command{
		Name:      "who",
		Aliases:   []string{"holders"},
		Usage:     "print what holds each block now, without probes",
		UsageText: "gputrace who -p PID [--by owner|module|dtype|shape|category] [--address ADDR] [--top N] [--json] [-o FILE]",
		Flags: []cli.Flag{
			flags.PIDs("pid,p", "read process `PID`, or several, separated by commas or with -p before each"),
			flags.Choice("by", holders.GroupingNames[0], "a row for each `WHAT`: "+flags.Or(holders.GroupingNames), holders.GroupingNames),
			flags.Address("address", "show all that is known about the block at `ADDR`, a device address"),
			flags.Count("top", strconv.Itoa(defaultWhoTop), "show the `N` largest rows; 0: all", 0, "rows"),
			&cli.BoolFlag{Name: "json", Usage: "write JSON, with every block"},
			outputFlag(), forceFlag(),
			&cli.DurationFlag{
				Name: "freeze", Value: defaultFreeze, DefaultText: "the process is not stopped",
				Usage: "stop the process while its memory is copied, at most for `TIME`, such as " + defaultFreeze.String(),
			},
		},
		Action: func(c *cli.Context) error {
			o, err := parseWho(c)
			if err != nil {
				return err
			}
			return showHolders(o)
		},
	}
}

func parseWho(c *cli.Context) (whoOptions, error) {
	o := whoOptions{
		json: c.Bool("json"), force: c.Bool("force"), one: c.IsSet("address"),
		by:      holders.Grouping(slices.Index(holders.GroupingNames, flags.Get[string](c, "by"))),
		address: flags.Get[uint64](c, "address"), top: flags.Get[int](c, "top"),
	}
	var err error
	if o.pids, err = pidsOf(c); err != nil {
		return o, err
	}
	if len(o.pids) == 0 || o.one && len(o.pids) > 1 {
		return o, usage("which process? give -p PID, one with --address; see %s --help", c.Command.HelpName)
	}
	if c.IsSet("freeze") {
		o.freeze = c.Duration("freeze")
		if o.freeze < minFreeze || o.freeze > maxFreeze {
			return o, usage("--freeze %s: not between %s and %s", o.freeze, minFreeze, maxFreeze)
		}
	}
	o.output, err = output.File(flags.Get[string](c, "output"), o.force)
	return o, err
}
