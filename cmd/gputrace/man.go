// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/exit"
)

func manCommand() *cli.Command {
	return &cli.Command{
		Name:      "man",
		Usage:     "print the manual page",
		UsageText: "gputrace man",
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usage("unknown argument %q; see gputrace man --help", c.Args().First())
			}
			return writeManual(c.App.Writer, newApp())
		},
	}
}

// description is the part of the manual that the library does not generate.
const description = "Attaches to a running PyTorch or CUDA job, which is neither changed nor stopped, and records which line of the " +
	"program allocated " +
	"which GPU memory, and whether it is still allocated. A number in place of a command is the process to record. " +
	"Options may come before or after arguments; -- ends them. Results go to standard output, everything else to standard error."

// writeManual writes the manual page: the library's, with missing parts added. The app cannot be used afterwards.
func writeManual(w io.Writer, app *cli.App) error {
	var more strings.Builder
	section := func(title, text string) { fmt.Fprintf(&more, "\n# %s\n\n%s\n", title, text) }
	app.Setup()
	app.Description = description
	for _, c := range app.VisibleCommands() {
		if c.Description != "" {
			section("ABOUT "+strings.ToUpper(c.Name), markdown(c.Description))
		}
	}
	codes := ""
	for _, e := range exit.Codes {
		codes += fmt.Sprintf("**%d**\n: %s\n\n", e.Code, e.Meaning)
	}
	section("EXIT STATUS", codes)
	section("EXAMPLES", manualExamples("")+manualExamplesOf(app.VisibleCommands()))
	app.Description += "\n" + more.String()
	page, err := app.ToManWithSection(1)
	if err != nil {
		return fmt.Errorf("manual: %w", err)
	}
	page = strings.Replace(page, ".TH gputrace 1\n", fmt.Sprintf(".TH GPUTRACE 1 \"%s\" \"gputrace %s\" \"User Commands\"\n", thisBuild.Date,
		version), 1)
	page = synopsis.ReplaceAllString(page, ".SH SYNOPSIS\n"+flags.Synopsis+"\n\n.SH ")
	_, err = io.WriteString(w, hyphen.ReplaceAllString(page, `$1\-`))
	return err
}

// synopsis matches the library's synopsis, which has a line for every option of the program.
var synopsis = regexp.MustCompile(`(?s)\.SH SYNOPSIS\n.*?\n\.SH `)

// hyphen matches hyphens that the library does not escape: an option copied from the page needs a minus sign, "\-" in roff.
var hyphen = regexp.MustCompile(`([^\\"0-9])-`)

// markdown converts a description's indented lines, each a word and its explanation, to list items.
func markdown(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		term, what, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, " ") {
			line = fmt.Sprintf("\n**%s**\n: %s\n", term, strings.TrimSpace(what))
		}
		out.WriteString(line)
	}
	return out.String()
}

func manualExamplesOf(commands []*cli.Command) string {
	out := ""
	for _, c := range commands {
		out += manualExamples(c.Name)
	}
	return out
}

func manualExamples(command string) string {
	out := ""
	for _, e := range examples[command] {
		out += fmt.Sprintf("`%s`\n: %s\n\n", e.Line, e.What)
	}
	return out
}
