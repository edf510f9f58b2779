package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
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
	r, err := recording.Open(path)
	switch {
	case errors.Is(err, recording.ErrFormat):
		return coded(exitInvalid, err)
	case err != nil:
		return coded(exitError, err)
	}
	defer r.Close()
	h := heap.New()
	err = h.Replay(r)
	var damage *recording.DamageError
	if err != nil && !errors.As(err, &damage) {
		return coded(exitInvalid, fmt.Errorf("%s: %w", path, err))
	}
	say := func(format string, args ...any) { fmt.Fprintln(os.Stderr, printable(fmt.Sprintf(format, args...))) }
	info := r.Info()
	say("gputrace %s · pid %d %s · %s", info.Gputrace, info.PID, commandLine(info.Cmdline, info.Name), info.Started.Format(time.RFC3339))
	warn := func(err error) { say("gputrace: warning: %v", err) }
	if err != nil {
		warn(err)
	}
	if first := r.First(); first.Number > 0 {
		say("  the first %d events were dropped by --max-size or --max-age; the figures are complete all the same", first.Events)
	}
	if end := r.End(); end != nil && end.Error != "" {
		warn(fmt.Errorf("%s; the last %d events are not in it", end.Error, end.NotWritten))
	}
	if end := r.End(); end != nil && end.StackRecordsLost > 0 {
		warn(fmt.Errorf("%d stacks did not fit the ring: their events have none", end.StackRecordsLost))
	}
	return printSummary(os.Stdout, summary(recordedView(h, r), info, r.End()), heldTables(r.End()))
}
