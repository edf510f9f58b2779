// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/summary"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export"
)

// SummaryCommand is gputrace summary.
func SummaryCommand(shared *Shared) *cli.Command {
	return &cli.Command{
		Name:      "summary",
		Usage:     "show what torch.cuda.memory_summary() shows, from outside",
		UsageText: "gputrace summary FOLDER/trace.gputrace [--json]\ngputrace summary -p PID [--json]",
		Description: "For a process, reads the allocator's own counters from outside, without a probe. JSON has the keys of " +
			"torch.cuda.memory_stats() and of " +
			"the libraries that log them; inexact figures are left out. See docs/use/summary.md.",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			flags.PID("pid,p", "read process `PID`"),
		}, shared.Flags...),
		Action: func(c *cli.Context) error {
			asJSON, pid := c.Bool("json"), flags.Get[int](c, "pid")
			switch {
			case pid != 0 && c.NArg() > 0:
				return usage("a recording or -p: give only one")
			case pid != 0:
				stats, err := readStats(pid)
				if err != nil {
					return err
				}
				return export.WriteMemoryStats(os.Stdout, &summary.Report{Devices: stats}, nil, asJSON)
			case c.NArg() != 1:
				return usage("which recording? give one file, or a process with -p; see gputrace summary --help")
			}
			return shared.Read(c, c.Args().First(), func(in *export.Source, stop func()) error {
				report, err := in.MemoryStats()
				if err != nil {
					return err
				}
				stop()
				return export.WriteMemoryStats(os.Stdout, report, in.Trace.End(), asJSON)
			})
		},
	}
}

// Ranks prints how the processes of a job compare. It takes the recordings of files and folders; done is false when that is just one.
func Ranks(c *cli.Context, shared *Shared, one bool) (done bool, err error) {
	paths, asJSON := recordingsOf(c.Args().Slice()), c.Bool("json")
	switch {
	case len(paths) < 2:
		return false, nil
	case one:
		return true, usage("%d recordings: a moment, a range and --by need one; give the folder of a process, such as %s", len(paths), paths[0])
	}
	p := progress.New(os.Stderr)
	defer p.Stop()
	o, err := shared.Open(c, p.Options(p.Warn))
	if err != nil {
		return true, err
	}
	table, err := export.Ranks(paths, o, shared.Version)
	p.Stop()
	if err != nil {
		return true, err
	}
	return true, export.WriteRanks(os.Stdout, table, asJSON, console.Width(""))
}

// recordingsOf are the recordings of files and folders. A file that is none shows when it is opened.
func recordingsOf(args []string) []string {
	var out []string
	for _, arg := range args {
		found, err := export.Recordings(arg)
		if err != nil {
			found = []string{arg}
		}
		for _, path := range found {
			if !slices.Contains(out, path) { // given twice, it is counted once
				out = append(out, path)
			}
		}
	}
	return out
}
