// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// findCommand finds the command's name and its index: the first word that is neither a flag nor the value of one. It
// returns nil and 0 if there is none.
func findCommand(app *cli.App, args []string) (*cli.Command, int) {
	all := slices.Clone(app.Flags)
	for _, c := range app.Commands {
		all = append(all, c.Flags...)
	}
	for i := 1; i < len(args) && args[i] != "--"; i++ {
		if !isFlag(args[i]) {
			if c := app.Command(args[i]); c != nil {
				return c, i
			}
			return nil, 0
		}
		if _, f, _, value := cutValue(all, args[i]); f != nil && value == "" && i+1 < len(args) && args[i+1] != "--" {
			i++
		}
	}
	return nil, 0
}

// flagsOf returns the flags of a command, including those that the library adds; nil: those of the program itself.
func flagsOf(app *cli.App, c *cli.Command) []cli.Flag {
	if c == nil {
		return append(slices.Clone(app.Flags), cli.HelpFlag, cli.VersionFlag)
	}
	return append(slices.Clone(c.Flags), cli.HelpFlag)
}

// helpOf returns the command line that explains a command.
func helpOf(c *cli.Command) string {
	if c == nil {
		return "gputrace --help"
	}
	return "gputrace " + c.Name + " --help"
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

func isKnown(known []cli.Flag, arg string) bool {
	name, _, _ := cutFlag(arg)
	return flagNamed(known, name) != nil
}

// cutFlag splits "--name=value".
func cutFlag(arg string) (name, value string, hasValue bool) {
	return strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
}

// Dash returns a flag's name as it is typed.
func Dash(name string) string {
	if len([]rune(name)) == 1 {
		return "-" + name
	}
	return "--" + name
}

func flagNamed(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// isList reports whether a flag can be given several times.
func isList(f cli.Flag) bool {
	g, ok := f.(*cli.GenericFlag)
	if !ok {
		return false
	}
	l, ok := g.Value.(interface{ IsList() bool })
	return ok && l.IsList()
}
