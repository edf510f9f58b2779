// SPDX-License-Identifier: Apache-2.0

package main

import (
	"embed"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
)

// shells are the shells with a completion script, which asks the program itself what can follow.
var shells = []string{"bash", "zsh", "fish"}

//go:embed completion
var completionScripts embed.FS

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for bash, zsh or fish",
		UsageText: "gputrace completion " + strings.Join(shells, "|"),
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			if c.NArg() != 1 || !slices.Contains(shells, shell) {
				return usage("which shell? give %s; see gputrace completion --help", flags.Or(shells))
			}
			script, err := completionScripts.ReadFile("completion/gputrace." + shell)
			if err != nil {
				return err
			}
			_, err = c.App.Writer.Write(script)
			return err
		},
	}
}

// commandArguments has the arguments of commands, "" for the program itself. A command that is not listed takes files.
var commandArguments = map[string]flags.Arguments{
	"": commandNames, "help": commandNames, "completion": shellNames,
	"record": none, "dump": none, "who": none, "doctor": none, "mcp": none, "man": none, "version": none,
}

func none(*cli.App) []flags.Completion { return nil }

func shellNames(*cli.App) (out []flags.Completion) {
	for _, s := range shells {
		out = append(out, flags.Completion{Word: s})
	}
	return out
}

func commandNames(app *cli.App) (out []flags.Completion) {
	for _, c := range app.VisibleCommands() {
		for _, name := range c.Names() {
			out = append(out, flags.Completion{Word: name, What: c.Usage})
		}
	}
	return out
}

// completes reports whether a command line is to be completed, and prepares the app for it.
func completes(app *cli.App, args []string) bool {
	last := len(args) - 1
	if last < 2 || args[last] != flags.CompletionFlag {
		return false
	}
	app.EnableBashCompletion, app.UseShortOptionHandling = true, false // with short options, the library rejects incomplete command lines
	app.BashComplete = flags.Complete(args[:last], commandArguments)
	for _, c := range app.Commands {
		c.BashComplete = app.BashComplete
	}
	return true
}
