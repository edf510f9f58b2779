// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
)

// leaksTime is the default time for which a process is watched.
const leaksTime = "10s"

// leaksStacks is the maximum number of different stacks in that time.
const leaksStacks = 65536

func leaksCommand() *cli.Command {
	return &cli.Command{
		Name:      "leaks",
		Usage:     "report memory that grows from step to step, and its holder",
		UsageText: "gputrace leaks FOLDER [--json]\nsudo gputrace leaks -p PID [-d 10s] [--json]",
		Description: "Finds steps by calls of the optimizer or the backward pass in the stacks of the recording, else by what recurs. " +
			"With -p, watches the process for a while and writes nothing. The exit code is 3 when something grows. " +
			"docs/use/leaks.md explains how it decides.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			stepOnFlag(), phasesFlag(),
			flags.PID("pid,p", "watch process `PID`"),
			flags.Duration("duration,d", "watch for `TIME`, such as 10s, or a number of seconds (default: "+leaksTime+")", 0, 0),
			&cli.BoolFlag{Name: "no-holders", Usage: "do not look for the holders of what grows"},
			memoryFlag(), cacheFlag(),
		},
		Action: func(c *cli.Context) error {
			asJSON, pid := c.Bool("json"), flags.Get[int](c, "pid")
			switch {
			case pid != 0 && c.NArg() > 0:
				return usage("a recording or -p: give only one")
			case pid != 0:
				return watchLeaks(leaksRecording(c, pid), asJSON)
			case c.NArg() != 1:
				return usage("which recording? give one file, or a process with -p; see gputrace leaks --help")
			}
			files, err := export.Recordings(c.Args().First())
			switch {
			case err != nil:
				return err
			case len(files) > 1:
				return leaksOfJob(c, files, asJSON)
			}
			return shared().Read(c, files[0], func(in *export.Source, stop func()) error {
				if _, err := in.Answer(); err != nil {
					return err
				}
				stop()
				return in.PrintLeaks(os.Stdout, asJSON, console.Width(""))
			})
		},
	}
}

// leaksOfJob prints the verdict on each process of a job.
func leaksOfJob(c *cli.Context, files []string, asJSON bool) error {
	var job *export.JobLeaks
	err := shared().ReadJob(c, func(o *export.OpenOptions) (err error) {
		job, err = export.LeaksOfJob(files, o)
		return err
	})
	if err != nil {
		return err
	}
	return job.Print(os.Stdout, asJSON, console.Width(""))
}

// leaksRecording returns the options of a recording that writes no files.
func leaksRecording(c *cli.Context, pid int) *recordOptions {
	o := &recordOptions{
		pid: pid, duration: flags.Get[time.Duration](c, "duration"), noNames: c.Bool("no-holders"), memory: flags.Get[string](c, "memory"),
		cacheDir: flags.Get[string](c, "cache-dir"), stepOn: flags.Get[string](c, "step-on"), maxStacks: leaksStacks,
	}
	if !c.IsSet("duration") {
		o.duration, _ = moment.ParseOffset(leaksTime)
	}
	return o
}

// watchLeaks watches a process for a while and prints the verdict.
func watchLeaks(o *recordOptions, asJSON bool) error {
	return watched(o, o.console(), func(_ *recorder.Recorder, results *folder.Results, err error) error {
		if err == nil {
			err = results.Err()
		}
		if err != nil {
			return advice.Recording(err)
		}
		return export.PrintLeaks(os.Stdout, results.Processes()[0].Answer(), asJSON, console.Width(""))
	})
}
