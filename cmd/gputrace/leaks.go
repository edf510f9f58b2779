// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/progress"
	"github.com/gputrace/gputrace/recording"
)

func leaksCommand() *cli.Command {
	return &cli.Command{
		Name:      "leaks",
		Usage:     "say whether memory grows from step to step: which line, how much, since when",
		UsageText: "gputrace leaks FOLDER/trace.gputrace [--json]",
		Description: "Steps are found by the optimizer's or the backward pass's calls in the stacks of the recording, else by what recurs. " +
			"The exit code is 3 when something grows. How it decides is in docs/leaks.md.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			stepOnFlag(), phasesFlag(),
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("which recording? give one file; see gputrace leaks --help")
			}
			return findLeaks(c.Args().First(), rulesOf(c), c.Bool("json"))
		},
	}
}

// findLeaks prints the verdict on a recording. The error has no text when there are findings: its exit code says so.
func findLeaks(path string, rules ruleFlags, asJSON bool) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := rules.open(path, p.Options(p.Warn))
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := in.Steps()
	if err != nil {
		return err
	}
	report, err := leaks.Find(in.Trace, found, leakOptions(in))
	if err != nil {
		return coded(exitError, fmt.Errorf("%s: %w", path, err))
	}
	p.Stop()
	write := table.Leaks
	if asJSON {
		write = json.WriteLeaks
	}
	if err := write(os.Stdout, report); err != nil {
		return err
	}
	if len(report.Findings) > 0 {
		return coded(exit.Findings, errors.New(""))
	}
	return nil
}

// leakOptions is what a recording says beside its events.
func leakOptions(in *export.Source) *leaks.Options {
	o := &leaks.Options{Library: slices.Clone(in.Info.Libraries)}
	if in.End == nil {
		return o
	}
	o.Library = append(o.Library, in.End.Libraries...)
	if in.End.Memory != nil {
		o.Free = freeMemory(in.End.Memory.Driver)
	}
	for _, h := range in.End.Holders {
		for i := range h.Rows {
			r := &h.Rows[i]
			o.Holders = append(o.Holders, leaks.Holder{Site: r.Site, Name: r.Name, Bytes: r.Bytes})
		}
	}
	return o
}

// freeMemory is what of each device nobody uses, bytes, where that is known.
func freeMemory(devices []recording.DriverUse) map[event.Device]uint64 {
	out := map[event.Device]uint64{}
	for _, d := range devices {
		free := event.Sub(uint64(d.Total), uint64(d.All))
		if d.Device < 0 || free == event.Unknown || uint64(d.All) > uint64(d.Total) {
			continue
		}
		for _, kind := range []event.DeviceType{event.DeviceCUDA, event.DeviceHIP, event.DeviceXPU} {
			out[event.Device{Type: kind, Index: int8(d.Device)}] = free
		}
	}
	return out
}
