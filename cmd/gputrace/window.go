// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	flags "github.com/gputrace/gputrace/internal/cli"
)

// windowFlags are those of the commands that look at a part of a recording.
func windowFlags() []cli.Flag {
	return []cli.Flag{
		flags.Moment("at", "what is in use at `MOMENT`: peak, end, 12.5s, -3s, oom (default: end)"),
		flags.Moment("from", "only what was allocated after `MOMENT`"),
		flags.Moment("to", "only what was allocated up to `MOMENT`; in use is what lives then"),
		flags.Count("step", "", "only what was allocated in step `N`; in use is what lives at its end", 1, "a step, from 1 on"),
		flags.Steps("steps", "the same of the steps `A:B`; A: and :B are to the last and from the first one"),
		stepOnFlag(),
		flags.Bytes("min-size", "", "only blocks of at least `BYTES`, such as 1MiB", nil),
	}
}

func windowOf(c *cli.Context) (export.Window, error) {
	w := export.Window{
		At: flags.Get[event.Moment](c, "at"), From: flags.Get[event.Moment](c, "from"), To: flags.Get[event.Moment](c, "to"),
		MinSize: uint64(flags.Get[int](c, "min-size")), Steps: flags.Get[event.StepRange](c, "steps"),
	}
	if n := flags.Get[int](c, "step"); n > 0 {
		if w.Steps != (event.StepRange{}) {
			return w, usage("--step and --steps: give one of both")
		}
		w.Steps = event.StepRange{First: n, Last: n}
	}
	return w, w.Check()
}

// stepOnFlag is of every command that knows steps.
func stepOnFlag() cli.Flag {
	return flags.Text("step-on", "", "a step begins where `FUNCTION` is called, Python or native, such as train_step (default: found out)")
}

// stepping is how a recording is opened whose steps begin with a function.
func stepping(on string, o *export.OpenOptions) *export.OpenOptions {
	o.StepOn = on
	return o
}

// rowsFlag is --by of the commands that show a recording.
func rowsFlag(initial, usage string) cli.Flag {
	return flags.Choice("by", initial, usage+flags.Or(view.RowKindNames), view.RowKindNames)
}
