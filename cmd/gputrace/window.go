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
		flags.Bytes("min-size", "", "only blocks of at least `BYTES`, such as 1MiB", nil),
	}
}

func windowOf(c *cli.Context) (export.Window, error) {
	w := export.Window{
		At: flags.Get[event.Moment](c, "at"), From: flags.Get[event.Moment](c, "from"), To: flags.Get[event.Moment](c, "to"),
		MinSize: uint64(flags.Get[int](c, "min-size")),
	}
	return w, w.Check()
}

// rowsFlag is --by of the commands that show a recording.
func rowsFlag(initial, usage string) cli.Flag {
	return flags.Choice("by", initial, usage+flags.Or(view.RowKindNames), view.RowKindNames)
}
