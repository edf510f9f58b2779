package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "show what a recording says: peak, live memory by line of the program, losses",
		UsageText: "gputrace report FOLDER/trace.gputrace",
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("which recording? give one file; see gputrace report --help")
			}
			return report(c.Args().First())
		},
	}
}

// report prints the summary of a recording, as the session did at its end.
func report(path string) error {
	say := func(format string, args ...any) { fmt.Fprintln(os.Stderr, printable(fmt.Sprintf(format, args...))) }
	var warnings []error
	o, err := openTrace(path, func(err error) { warnings = append(warnings, err) })
	if err != nil {
		return err
	}
	defer o.close()
	info := o.info
	switch {
	case info.PID != 0:
		say("gputrace %s · pid %d %s · %s", info.Gputrace, info.PID, commandLine(info.Cmdline, info.Name), info.Started.Format(time.RFC3339))
	case info.Started.IsZero(): // a snapshot without a history
		say("%s", info.Name)
	default:
		say("%s · %s", info.Name, info.Started.Format(time.RFC3339))
	}
	for _, w := range warnings {
		say("gputrace: warning: %v", w)
	}
	if o.first.Number > 0 {
		say("  the first %d events were dropped by --max-size or --max-age; the figures are complete all the same", o.first.Events)
	}
	return printSummary(os.Stdout, summary(o.trace.End(), info, o.end), heldTables(o.end))
}
