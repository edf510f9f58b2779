// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/build"
)

// release, releaseDate (YYYY-MM-DD) and releaseCommit are set by the linker when a release is built; see "make release".
var release, releaseDate, releaseCommit string

// thisBuild is printed by version, and its date is the date of the manual page.
var thisBuild = build.New(release, releaseDate, releaseCommit)

// version is printed by --version and at every attach, and is in every recording.
var version = thisBuild.Version

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "print the version",
		UsageText: "gputrace version [--json]",
		Flags:     []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "write JSON"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usage("unknown argument %q; see gputrace version --help", c.Args().First())
			}
			if c.Bool("json") {
				e := json.NewEncoder(c.App.Writer)
				e.SetIndent("", "  ")
				return e.Encode(thisBuild)
			}
			_, err := fmt.Fprintln(c.App.Writer, thisBuild.String())
			return err
		},
	}
}
