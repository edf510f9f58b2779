// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"errors"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/whatif"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/table"
)

// WhatIfCommand returns gputrace whatif.
func WhatIfCommand(shared *Shared) *cli.Command {
	return &cli.Command{
		Name:  "whatif",
		Usage: "replay a recording with less memory or other settings",
		UsageText: "gputrace whatif FOLDER/trace.gputrace [--device-memory 12GiB] [--json]\n" +
			"gputrace whatif SMALL LARGE --batch 8,16 --device-memory 24GiB",
		Description: "Prints how much would be reserved at most, and which request would be the first to fail. Without settings, the usual " +
			"ones are " +
			"replayed, each alone. docs/use/what-if.md explains the assumptions.",
		Flags: append([]cli.Flag{
			flags.Bytes("device-memory", "", "the device has `BYTES`, such as 12GiB (default: as recorded, if known)", nil),
			flags.Fraction("fraction", "the process may use this `FRACTION` of the device, as by set_per_process_memory_fraction"),
			&cli.BoolFlag{Name: "expandable-segments", Usage: "replay expandable_segments:True"},
			flags.Bytes("max-split-size", "", "replay max_split_size_mb of `BYTES`, such as 128MiB", splitSize),
			flags.Fraction("gc-threshold", "replay garbage_collection_threshold:`FRACTION`; PyTorch heeds it together with --fraction"),
			flags.Count("roundup-divisions", "", "replay roundup_power2_divisions:`N`, a power of two", 1, "divisions"),
			flags.Bytes("outside", "", "the context and other processes use `BYTES` (default: as recorded)", nil),
			flags.Parsed("recorded", "the recorded program had these `SETTINGS`, as in PYTORCH_CUDA_ALLOC_CONF (default: those that were seen)",
				whatif.ParseConf),
			flags.Parsed("batch", "the batch sizes of the recordings, as `N,N`: finds the largest that fits", whatif.ParseSizes),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		}, shared.Flags...),
		Action: func(c *cli.Context) error {
			divisions := flags.Get[int](c, "roundup-divisions")
			switch n := len(flags.Get[[]float64](c, "batch")); {
			case c.NArg() == 0:
				return usage("which recording? give a file; see gputrace whatif --help")
			case n != c.NArg() && (n > 0 || c.NArg() > 1):
				return usage("--batch: give as many sizes as recordings, %d", c.NArg())
			case c.IsSet("gc-threshold") && !c.IsSet("fraction"):
				return usage("--gc-threshold: PyTorch heeds it only with a fraction: give --fraction too")
			case divisions&(divisions-1) != 0:
				return usage("--roundup-divisions: %d is not a power of two", divisions)
			}
			return printWhatIf(c, shared, whatIfAsk(c))
		},
	}
}

// splitSize rejects a size that PyTorch would reject (parseMaxSplitSize of AllocatorConfig.cpp).
func splitSize(n int) error {
	if n < 20<<20 || n%(1<<20) != 0 {
		return errors.New("not whole MiB, 20MiB or more")
	}
	return nil
}

// whatIfAsk returns the settings that the flags select.
func whatIfAsk(c *cli.Context) *whatif.Ask {
	out := &whatif.Ask{
		Device: uint64(flags.Get[int](c, "device-memory")), Fraction: flags.Get[float64](c, "fraction"), Outside: event.Unknown,
		Recorded: flags.Get[whatif.Settings](c, "recorded"),
	}
	if c.IsSet("outside") {
		out.Outside = uint64(flags.Get[int](c, "outside"))
	}
	s := whatif.Settings{
		Expandable: c.Bool("expandable-segments"), MaxSplit: uint64(flags.Get[int](c, "max-split-size")),
		GC:        flags.Get[float64](c, "gc-threshold"),
		Divisions: uint64(flags.Get[int](c, "roundup-divisions")),
	}
	if s != (whatif.Settings{}) {
		out.Settings = []whatif.Settings{s}
	}
	return out
}

// printWhatIf replays recordings and prints the last one's table and, for several, how the peak depends on the batch size.
func printWhatIf(c *cli.Context, shared *Shared, ask *whatif.Ask) error {
	var reports []whatif.Report
	var points []whatif.Batch
	for i, path := range c.Args().Slice() {
		err := shared.Read(c, path, func(in *export.Source, _ func()) (err error) {
			reports, err = in.WhatIf(ask)
			return err
		})
		if err != nil {
			return err
		}
		if sizes := flags.Get[[]float64](c, "batch"); len(sizes) > 0 {
			points = append(points, whatif.Batch{Size: sizes[i], Need: reports[0].Need(), Of: &reports[0]})
		}
	}
	batches := whatif.NewBatches(points, reports[0].Room())
	if c.Bool("json") {
		return json.WriteWhatIf(os.Stdout, reports, batches)
	}
	return table.WhatIf(os.Stdout, reports, batches, console.Width(""))
}
