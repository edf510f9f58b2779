// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"time"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
)

// doctorOptions is a parsed doctor command line.
type doctorOptions struct {
	pid      int           // 0: none
	duration time.Duration // how long calls are counted
	json     bool
	verbose  bool   // print a line for each check
	memory   string // how memory is read, one of memoryModes
	cacheDir string
	program  string // on macOS, the program to inspect; empty: python3
}

// maxCounting is the maximum time for which doctor counts calls.
const maxCounting = time.Minute

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "check whether tracing works here, and what to do if not",
		UsageText: "gputrace doctor [-p PID] [-d 1s] [--json]",
		Description: "Asks the kernel for what tracing uses, checks gputrace's rights, and attaches a probe to a function of its own. With -p " +
			"it also\n" +
			"checks the process, and attaches to it for a moment. The last line is the verdict. The exit code is 0 when tracing will\n" +
			"work, 1 when it will not.",
		Flags: []cli.Flag{
			flags.PID("pid,p", "check process `PID` too"),
			flags.Duration("duration,d", "count the process's calls for `TIME` (default 1s)", 0, maxCounting),
			&cli.BoolFlag{Name: "json", Usage: "write JSON, with the names of all functions"},
			memoryFlag(), cacheFlag(),
		},
		Action: func(c *cli.Context) error {
			o, err := parseDoctor(c)
			if err != nil {
				return err
			}
			return examine(o)
		},
	}
}

func parseDoctor(c *cli.Context) (doctorOptions, error) {
	o := doctorOptions{
		json: c.Bool("json"), cacheDir: flags.Get[string](c, "cache-dir"), duration: flags.Get[time.Duration](c, "duration"),
		verbose: c.Bool("verbose"), memory: flags.Get[string](c, "memory"),
	}
	if !c.IsSet("pid") && c.NArg() == 0 {
		return o, nil
	}
	if runtime.GOOS == "darwin" && !c.IsSet("pid") && c.NArg() == 1 {
		o.program = c.Args().First()
		return o, nil
	}
	var err error
	o.pid, err = pidOf(c)
	return o, err
}
