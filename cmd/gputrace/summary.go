// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/summary"
	"github.com/gputrace/gputrace/export"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/progress"
)

func summaryCommand() *cli.Command {
	return &cli.Command{
		Name:      "summary",
		Usage:     "show what torch.cuda.memory_summary() shows, of a process or a recording, and the memory by line",
		UsageText: "gputrace summary FOLDER/trace.gputrace [--json]\ngputrace summary -p PID [--json]",
		Description: "Of a process the allocator's own counters are read from outside, without a probe. JSON has the keys of torch.cuda.memory_stats() and of " +
			"the libraries that log them; what is not known exactly is left out. See docs/summary.md.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			flags.PID("pid,p", "read process `PID`"),
			stepOnFlag(), phasesFlag(),
		},
		Action: func(c *cli.Context) error {
			asJSON, pid := c.Bool("json"), flags.Get[int](c, "pid")
			switch {
			case pid != 0 && c.NArg() > 0:
				return usage("a recording or -p: give one of both")
			case pid != 0:
				stats, err := readStats(pid)
				if err != nil {
					return err
				}
				return export.WriteMemoryStats(os.Stdout, &summary.Report{Devices: stats}, nil, asJSON)
			case c.NArg() != 1:
				return usage("which recording? give one file, or a process with -p; see gputrace summary --help")
			}
			return summarize(c.Args().First(), rulesOf(c), asJSON)
		},
	}
}

// summarize prints the statistics of a recording.
func summarize(path string, rules ruleFlags, asJSON bool) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := rules.open(path, p.Options(p.Warn))
	if err != nil {
		return err
	}
	defer in.Close()
	report, err := in.MemoryStats()
	if err != nil {
		return err
	}
	p.Stop()
	return export.WriteMemoryStats(os.Stdout, report, in.Trace.End(), asJSON)
}
