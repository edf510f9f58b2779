// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// verboseNames are the names of the flag of all commands that prints more.
var verboseNames = []string{"verbose", "v"}

// WithVerbose adds --verbose to the flags of a command that has none of its own; it prints all causes of an error.
func WithVerbose(flags []cli.Flag) []cli.Flag {
	if flagNamed(flags, verboseNames[0]) != nil {
		return flags
	}
	f := &cli.BoolFlag{Name: verboseNames[0], Aliases: verboseNames[1:], Usage: "for an error, print every cause"}
	return append(slices.Clone(flags), f)
}

// IsVerbose reports whether a command line has --verbose, ignoring the arguments of another program.
func IsVerbose(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if isFlag(a) && isVerbose(a) {
			return true
		}
	}
	return false
}

func isVerbose(arg string) bool {
	name, _, _ := cutFlag(arg)
	return slices.Contains(verboseNames, name)
}
