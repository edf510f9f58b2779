// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
)

func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "start a program and record it from its first allocation",
		UsageText: "sudo gputrace run [-o FOLDER] -- PROGRAM [ARGUMENTS]",
		Description: "The program has gputrace's standard input and output; gputrace's messages go to standard error. Signals are passed on, " +
			"and the exit code is the program's, or 128 and the signal that ended it. With --check it is 4 if the program's is 0 and a rule " +
			"is not met.",
		Flags: append([]cli.Flag{
			flags.Text("user", "", "run the program as `USER`, such as root (default: with sudo the caller, else you)"),
			&cli.StringSliceFlag{Name: "env", Usage: "set `NAME=VALUE` in the program's environment, or keep NAME of gputrace's own; the rest " +
				"is, with sudo, the caller's"},
			&cli.BoolFlag{Name: "json", Usage: "print the first screen as JSON at the end, or with --check the outcome of the rules"},
		}, recordingFlags()...),
		Action: func(c *cli.Context) error {
			o, err := parseRun(c)
			if err != nil {
				return err
			}
			return record(o)
		},
	}
}

func parseRun(c *cli.Context) (recordOptions, error) {
	o := parseRecording(c)
	o.children, o.command, o.asJSON = true, c.Args().Slice(), c.Bool("json")
	o.user, o.env = flags.Get[string](c, "user"), c.StringSlice("env")
	if len(o.command) == 0 {
		return o, usage("which program? give it after --; see gputrace run --help")
	}
	var err error
	if o.limits, err = gatecli.ParseRecording(c, version); err != nil {
		return o, err
	}
	return o, o.chooseOutput()
}

// startName is the hidden command that becomes the program once it is traced.
const startName = "__start"

func startCommand() *cli.Command {
	return &cli.Command{
		Name:            startName,
		Hidden:          true,
		SkipFlagParsing: true,
		Action:          func(c *cli.Context) error { return startHere(c.Args().Slice()) },
	}
}
