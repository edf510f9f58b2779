// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"os"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/export"
)

// OOMCommand is gputrace oom. Record records a process, as the flags say, and returns the folder of results.
func OOMCommand(shared *Shared, recording []cli.Flag, record func(c *cli.Context, pid int) (string, error)) *cli.Command {
	return &cli.Command{
		Name:      "oom",
		Usage:     "report why memory ran out, and what was in use",
		UsageText: "gputrace oom FOLDER [--json]\nsudo gputrace oom -p PID [--until-oom] [-d TIME] [-o FOLDER] [--json]",
		Description: "Shows each failed request as of the failing call, with one reason. A failure that the program survived is no finding. " +
			"The exit " +
			"code is 3 when a request failed that was not survived. The rules are in docs/use/oom.md.",
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			flags.Count("top", "", "`ROWS` of live memory (default: 5)", 0, "rows"),
			flags.PID("pid,p", "record process `PID` until it ends, or as --until-oom and -d say"),
		}, recording...),
		Action: func(c *cli.Context) error {
			path, pid := c.Args().First(), flags.Get[int](c, "pid")
			switch {
			case pid != 0 && c.NArg() > 0:
				return usage("a recording or -p: give only one")
			case pid == 0 && c.NArg() != 1:
				return usage("which recording? give one file, or a process with -p; see gputrace oom --help")
			case pid != 0:
				var err error
				if path, err = record(c, pid); err != nil {
					return err
				}
			}
			o := &export.OOMOptions{JSON: c.Bool("json"), Top: flags.Get[int](c, "top"), Width: console.Width("")}
			switch files, err := export.Recordings(path); {
			case err != nil:
				return err
			case len(files) > 1:
				return oomOfJob(c, shared, files, o)
			default:
				path = files[0]
			}
			return shared.Read(c, path, func(in *export.Source, _ func()) error { return in.PrintOOM(os.Stdout, o) })
		},
	}
}

// oomOfJob says why memory ran out in each process of a job.
func oomOfJob(c *cli.Context, shared *Shared, files []string, o *export.OOMOptions) error {
	var job *export.JobOOM
	err := shared.ReadJob(c, func(options *export.OpenOptions) (err error) {
		job, err = export.OOMOfJob(files, options)
		return err
	})
	if err != nil {
		return err
	}
	return job.Print(os.Stdout, o)
}
