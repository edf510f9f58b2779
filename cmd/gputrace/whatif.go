// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/progress"
)

func whatIfCommand() *cli.Command {
	return &cli.Command{
		Name:  "whatif",
		Usage: "replay a recording on a smaller device, or under other settings of PyTorch's allocator",
		UsageText: "gputrace whatif FOLDER/trace.gputrace [--device-memory 12GiB] [--json]\n" +
			"gputrace whatif BATCH8 BATCH16 --batch 8,16 --device-memory 24GiB",
		Description: "Prints how much would be reserved at most, and which request would be the first to fail. Without settings, the usual ones are " +
			"replayed, each alone. What is assumed, and how it is checked, is in docs/what-if.md.",
		Flags: []cli.Flag{
			flags.Bytes("device-memory", "", "the device has `BYTES`, such as 12GiB (default: that of the recording, where it is known)", nil),
			number("fraction", "the process may use this `FRACTION` of the device, as by set_per_process_memory_fraction"),
			&cli.BoolFlag{Name: "expandable-segments", Usage: "replay expandable_segments:True"},
			flags.Bytes("max-split-size", "", "replay max_split_size_mb of `BYTES`, such as 128MiB", atLeastSplit),
			number("gc-threshold", "replay garbage_collection_threshold:`FRACTION`; PyTorch heeds it together with --fraction"),
			flags.Count("roundup-divisions", "", "replay roundup_power2_divisions:`N`, a power of two", 1, "divisions"),
			flags.Bytes("outside", "", "the context and other processes use `BYTES` (default: as recorded)", nil),
			flags.Words("recorded", "", "the recorded program had these `SETTINGS`, as in PYTORCH_CUDA_ALLOC_CONF (default: none but what is seen)", nil,
				func(s string) error { _, err := whatif.ParseConf(s); return err }),
			flags.Words("batch", "", "the sizes of the batch in the recordings, as `N,N`: for the largest that fits", nil, func(s string) error { _, err := sizes(s); return err }),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			stepOnFlag(), phasesFlag(),
		},
		Action: func(c *cli.Context) error {
			batch, _ := sizes(flags.Get[string](c, "batch"))
			switch {
			case c.NArg() == 0:
				return usage("which recording? give a file; see gputrace whatif --help")
			case len(batch) == 0 && c.NArg() > 1, len(batch) > 0 && len(batch) != c.NArg():
				return usage("--batch: give as many sizes as recordings, %d", c.NArg())
			case c.IsSet("gc-threshold") && !c.IsSet("fraction"):
				return usage("--gc-threshold: PyTorch heeds it only with a fraction: give --fraction too")
			}
			return printWhatIf(c, askOf(c), batch)
		},
	}
}

// number is a flag with a number above 0, up to 1.
func number(name, text string) cli.Flag {
	return flags.Words(name, "", text, nil, func(s string) error {
		if v, err := strconv.ParseFloat(s, 64); err != nil || !(v > 0 && v <= 1) {
			return errors.New("not a number above 0, up to 1")
		}
		return nil
	})
}

func fraction(c *cli.Context, name string) float64 {
	v, _ := strconv.ParseFloat(flags.Get[string](c, name), 64) // was checked when the command line was read; empty: 0
	return v
}

// atLeastSplit checks a size that PyTorch would refuse (parseMaxSplitSize of AllocatorConfig.cpp).
func atLeastSplit(n int) error {
	if n < 20<<20 || n%(1<<20) != 0 {
		return errors.New("not whole MiB, 20MiB or more")
	}
	return nil
}

// sizes reads "8,16".
func sizes(list string) ([]float64, error) {
	var out []float64
	for word := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		v, err := strconv.ParseFloat(word, 64)
		if err != nil || !(v > 0) {
			return nil, fmt.Errorf("%q is no size of a batch", word)
		}
		out = append(out, v)
	}
	return out, nil
}

// askOf is what the flags ask for.
func askOf(c *cli.Context) *whatif.Ask {
	out := &whatif.Ask{Device: uint64(flags.Get[int](c, "device-memory")), Fraction: fraction(c, "fraction"), Outside: event.Unknown}
	if c.IsSet("outside") {
		out.Outside = uint64(flags.Get[int](c, "outside"))
	}
	out.Recorded, _ = whatif.ParseConf(flags.Get[string](c, "recorded")) // was checked when the command line was read
	s := whatif.Settings{
		Expandable: c.Bool("expandable-segments"), MaxSplit: uint64(flags.Get[int](c, "max-split-size")), GC: fraction(c, "gc-threshold"),
		Divisions: uint64(flags.Get[int](c, "roundup-divisions")),
	}
	if s != (whatif.Settings{}) {
		out.Settings = []whatif.Settings{s}
	}
	return out
}

// printWhatIf replays recordings, and prints the last one's table; of several, also how the peak depends on the batch.
func printWhatIf(c *cli.Context, ask *whatif.Ask, batch []float64) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	var reports []whatif.Report
	var points []whatif.Batch
	for i, path := range c.Args().Slice() {
		in, err := rulesOf(c).open(path, p.Options(p.Warn))
		if err != nil {
			return err
		}
		reports, err = in.WhatIf(ask)
		in.Close()
		if err != nil {
			return err
		}
		if len(batch) > 0 {
			points = append(points, whatif.Batch{Size: batch[i], Peak: reports[0].Free().Peak})
		}
	}
	p.Stop()
	var line *whatif.Batches
	if len(points) > 0 {
		line = whatif.NewBatches(points, reports[0].Room())
	}
	if c.Bool("json") {
		return json.WriteWhatIf(os.Stdout, reports, line)
	}
	return table.WhatIf(os.Stdout, reports, line)
}
