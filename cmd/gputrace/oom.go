// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/advice"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/progress"
	"github.com/gputrace/gputrace/recorder"
)

func oomCommand() *cli.Command {
	return &cli.Command{
		Name: "oom", Usage: "say why memory ran out: who asked, how much, what holds the rest, and what the reason was",
		UsageText: "gputrace oom FOLDER/trace.gputrace [--json]\nsudo gputrace oom -p PID [--until-oom] [-d TIME] [-o FOLDER] [--json]",
		Description: "Each request that failed is shown as of the failing call, with one reason. What the program survived is no finding. The exit " +
			"code is 3 when a request failed that was not survived. The rules are in docs/oom.md.",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"}, phasesFlag(), flags.Count("top", "", "`ROWS` of live memory (default: 5)", 0, "rows"),
			flags.PID("pid,p", "record process `PID` until it ends, or as --until-oom and -d say"),
		}, recordingFlags()...),
		Action: func(c *cli.Context) error {
			pid := flags.Get[int](c, "pid")
			switch {
			case pid != 0 && c.NArg() > 0:
				return usage("a recording or -p: give one of both")
			case pid != 0:
				return watchOOM(c, pid)
			case c.NArg() != 1:
				return usage("which recording? give one file, or a process with -p; see gputrace oom --help")
			}
			return findOOM(c, c.Args().First())
		},
	}
}

// watchOOM records a process and says why requests failed.
func watchOOM(c *cli.Context, pid int) error {
	o := parseRecording(c)
	if o.pid = pid; !c.IsSet("format") {
		o.formats = ""
	}
	if err := o.chooseOutput(); err != nil {
		return err
	}
	return watched(&o, o.console(), func(_ *recorder.Recorder, results *recorder.Results, err error) error {
		if err == nil {
			err = results.Err()
		}
		if err != nil {
			return advice.Recording(err)
		}
		if _, err := results.Write(); err != nil {
			return err
		}
		return findOOM(c, o.output)
	})
}

// findOOM prints why requests failed in a recording.
func findOOM(c *cli.Context, path string) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := rulesOf(c).open(path, p.Options(p.Warn))
	if err != nil {
		return err
	}
	defer in.Close()
	return in.PrintOOM(os.Stdout, c.Bool("json"), flags.Get[int](c, "top"))
}
