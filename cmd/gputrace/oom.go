// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/advice"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/progress"
	"github.com/gputrace/gputrace/recorder"
)

func oomCommand() *cli.Command {
	return &cli.Command{
		Name:      "oom",
		Usage:     "say why memory ran out: who asked, how much, what holds the rest, and what the reason was",
		UsageText: "gputrace oom FOLDER/trace.gputrace [--json]\nsudo gputrace oom -p PID [--until-oom] [-d TIME] [-o FOLDER] [--json]",
		Description: "Each request that failed is shown as of the failing call, with one decision: full, leak, fragmentation, limit, " +
			"other_process, outside_pytorch, private_pool, absurd_request or driver_error. What the program caught and survived is shown and " +
			"is no finding. The exit code is 3 when a request failed that was not survived. The rules are in docs/oom.md.",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			flags.PID("pid,p", "record process `PID` until it ends, or as --until-oom and -d say"),
			phasesFlag(),
			flags.Count("top", "", "`ROWS` of live memory (default: 5)", 0, "rows"),
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
			return findOOM(c.Args().First(), rulesOf(c), c.Bool("json"), flags.Get[int](c, "top"))
		},
	}
}

// watchOOM records a process and says why requests failed.
func watchOOM(c *cli.Context, pid int) error {
	o := parseRecording(c)
	o.pid = pid
	if !c.IsSet("format") {
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
		folder, err := results.Write()
		if err != nil {
			return err
		}
		return findOOM(folder, rulesOf(c), c.Bool("json"), flags.Get[int](c, "top"))
	})
}

// findOOM prints why requests failed in a recording.
func findOOM(path string, rules ruleFlags, asJSON bool, top int) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := rules.open(path, p.Options(p.Warn))
	if err != nil {
		return err
	}
	defer in.Close()
	report, err := in.OOM()
	if err != nil {
		return err
	}
	p.Stop()
	if err := in.WriteOOM(os.Stdout, asJSON, top); err != nil {
		return err
	}
	if report.Fatal() > 0 {
		return coded(exit.Findings, errors.New(""))
	}
	return nil
}
