// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
)

// examples are the examples of all commands.
var examples = flags.Examples

// helpTemplate adds the examples of a command to one of cli's help templates.
func helpTemplate(template, command string) string {
	var b strings.Builder
	b.WriteString(strings.TrimRight(template, "\n"))
	b.WriteString("\n\nEXAMPLES:\n")
	for _, e := range examples[command] {
		b.WriteString("   " + e.Line + "\n      " + e.What + "\n")
	}
	return b.String()
}

// helpWidth is the maximum number of columns of the help, unless a word or an example needs more.
const helpWidth = 80

// columns returns the width of the help, which is smaller on a narrow terminal.
func columns() int {
	if width := console.Width(""); width > 0 {
		return min(width, helpWidth)
	}
	return helpWidth
}

// libraryFlag is the library's representation of a flag: its names, a tab, and its description.
var libraryFlag = cli.FlagStringer

// fitHelp keeps the library's help within helpWidth, by printing the description of a flag below its names.
func fitHelp() {
	cli.FlagStringer = func(f cli.Flag) string {
		names, what, _ := strings.Cut(libraryFlag(f), "\t")
		return names + "\n" + strings.TrimSpace(what)
	}
	cli.HelpPrinter = func(w io.Writer, template string, data any) {
		cli.HelpPrinterCustom(w, template, data, map[string]any{"wrapAt": columns})
	}
}

func helpCommand() *cli.Command {
	return &cli.Command{
		Name:      "help",
		Usage:     "show the help of a command",
		UsageText: "gputrace help [COMMAND]",
		Action: func(c *cli.Context) error {
			switch name := c.Args().First(); {
			case c.NArg() > 1:
				return usage("help of one command at a time; see gputrace help")
			case name == "":
				return c.App.Run([]string{c.App.Name, "--help"})
			case c.App.Command(name) == nil:
				return flags.UnknownCommand(c.App, name)
			default:
				return c.App.Run([]string{c.App.Name, name, "--help"})
			}
		},
	}
}
