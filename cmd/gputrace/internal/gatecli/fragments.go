// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"os"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
)

// FragmentsCommand is gputrace fragments.
func FragmentsCommand(shared *Shared) *cli.Command {
	return &cli.Command{
		Name:      "fragments",
		Usage:     "show how fragmented the allocator is, and what would help",
		UsageText: "gputrace fragments FOLDER/trace.gputrace [--at MOMENT] [--request BYTES] [--json]",
		Description: "Free memory between blocks in use is fragmented if the request cannot use it; without a request, all of it is. For a " +
			"running process, gputrace dump " +
			"shows the same without a recording. See docs/use/guides/fragmentation.md.",
		Flags: append([]cli.Flag{
			flags.Moment("at", "show `MOMENT`: peak, end, 12.5s, -3s, oom, step:12 (default: end)"),
			flags.Bytes("request", "", "a request of `BYTES`, such as 64MiB (default: at oom, the one that failed)", nil),
			flags.Count("top", "", "`ROWS` of each table (default: 5)", 0, "rows"),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		}, shared.Flags...),
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usage("which recording? give one file; see gputrace fragments --help")
			}
			return shared.Read(c, c.Args().First(), func(in *export.Source, stop func()) error {
				return in.WriteFragments(os.Stdout, &export.FragmentsOptions{
					At: flags.Get[moment.Moment](c, "at"), Request: uint64(flags.Get[int](c, "request")), JSON: c.Bool("json"),
					Top:   flags.Get[int](c, "top"),
					Width: console.Width(""),
				}, stop)
			})
		},
	}
}
