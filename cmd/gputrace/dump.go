// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/output"
)

// dumpFormats are the formats of a map, the default first.
var dumpFormats = []string{"text", "json", "snapshot"}

// dumpOptions is a parsed dump command line.
type dumpOptions struct {
	pid    int
	format string
	output string // path; empty: stdout
	force  bool   // replace an existing file
	// noNames skips the search for the holders of blocks.
	noNames bool
}

func dumpCommand() *cli.Command {
	return &cli.Command{
		Name:      "dump",
		Usage:     "print the allocator's segments and blocks now, without probes",
		UsageText: "gputrace dump -p PID [-f text|json|snapshot] [--json] [--no-holders] [-o FILE]",
		Flags: []cli.Flag{
			flags.PID("pid,p", "read process `PID`"),
			flags.Choice("format,f", dumpFormats[0], "`FORMAT`: text, json, or snapshot (a pickle for pytorch.org/memory_viz)", dumpFormats),
			&cli.BoolFlag{Name: "json", Usage: "the same as -f json"},
			outputFlag(), forceFlag(),
			&cli.BoolFlag{Name: "no-holders", Usage: "do not look for what holds each block (see gputrace who): faster"},
		},
		Action: func(c *cli.Context) error {
			o, err := parseDump(c)
			if err != nil {
				return err
			}
			return dump(o)
		},
	}
}

func parseDump(c *cli.Context) (dumpOptions, error) {
	o := dumpOptions{format: flags.Get[string](c, "format"), force: c.Bool("force"), noNames: c.Bool("no-holders")}
	if c.Bool("json") {
		if c.IsSet("format") && o.format != "json" {
			return o, usage("--json and -f %s: give only one", o.format)
		}
		o.format = "json"
	}
	var err error
	if o.pid, err = pidOf(c); err != nil {
		return o, err
	}
	o.output, err = output.File(flags.Get[string](c, "output"), o.force)
	return o, err
}
