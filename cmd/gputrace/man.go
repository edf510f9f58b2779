package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/internal/cli"
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
			return writeManual(os.Stdout, c.App)
		},
	}
}

// writeManual writes the manual page in the man macros (man(7)).
func writeManual(w io.Writer, app *cli.App) error {
	m := &manual{}
	m.line(`.TH GPUTRACE 1 "%s" "gputrace %s" "User Commands"`, versionDate, version)
	m.section("NAME")
	m.text("gputrace - %s", app.Usage)
	m.section("SYNOPSIS")
	m.usage(app.UsageText)
	m.section("DESCRIPTION")
	m.text("Attaches to a running PyTorch or CUDA job, which is neither changed nor stopped, and records which line of the program " +
		"allocated which GPU memory, and whether it still lives. A number in the place of a command is the process to record. " +
		"Options may stand before and after arguments; -- ends them. Results go to standard output, everything else to standard error.")
	m.section("COMMANDS")
	for _, c := range app.VisibleCommands() {
		m.command(c)
	}
	m.section("EXIT STATUS")
	for _, e := range exit.Codes {
		m.item(fmt.Sprint(e.Code), e.Meaning)
	}
	m.section("EXAMPLES")
	m.examples("")
	for _, c := range app.VisibleCommands() {
		m.examples(c.Name)
	}
	_, err := io.WriteString(w, m.b.String())
	return err
}

// manual is a page as it grows.
type manual struct{ b strings.Builder }

// line writes what is escaped already.
func (m *manual) line(format string, args ...any) { fmt.Fprintf(&m.b, format+"\n", args...) }

// maxManualLine is the length of a line of the source of a page, bytes (man(7), mandoc -Tlint).
const maxManualLine = 80

// text writes a paragraph.
func (m *manual) text(format string, args ...any) {
	line := ""
	for _, word := range strings.Fields(fmt.Sprintf(format, args...)) {
		word = roff(word)
		if line != "" && len(line)+1+len(word) > maxManualLine {
			m.line("%s", line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	m.line("%s", line)
}

func (m *manual) section(name string) { m.line(".SH %s", name) }

// usage writes command lines.
func (m *manual) usage(text string) {
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			m.line(".br")
		}
		m.line(".B %s", roff(line))
	}
}

// paragraphs writes a text whose paragraphs are parted by empty lines. Lines that are indented, with a word in front, are a
// list.
func (m *manual) paragraphs(text string) {
	if text == "" {
		return
	}
	for _, paragraph := range strings.Split(text, "\n\n") {
		m.line(".PP")
		for line := range strings.Lines(paragraph) {
			term, what, _ := strings.Cut(strings.TrimSpace(line), " ")
			if strings.HasPrefix(line, " ") {
				m.item(term, strings.TrimSpace(what))
			} else {
				m.text("%s", line)
			}
		}
	}
}

func (m *manual) item(term, what string) {
	m.line(".TP\n.B %s", roff(term))
	m.text("%s", what)
}

func (m *manual) command(c *cli.Command) {
	m.line(".SS %s", roff(c.Name))
	m.text("%s.", strings.ToUpper(c.Usage[:1])+c.Usage[1:])
	m.line(".PP")
	m.usage(c.UsageText)
	m.paragraphs(c.Description)
	for _, f := range c.VisibleFlags() {
		if d, ok := f.(cli.DocGenerationFlag); ok {
			m.item(flagTerm(f, d), flagText(d))
		}
	}
}

func (m *manual) examples(command string) {
	for _, e := range examples[command] {
		m.item(e.line, e.what+".")
	}
}

// flagTerm is "-p, --pid PID".
func flagTerm(f cli.Flag, d cli.DocGenerationFlag) string {
	var names []string
	for _, n := range f.Names() {
		names = append(names, flags.Dash(n))
	}
	term := strings.Join(names, ", ")
	if place, _ := flags.Placeholder(d.GetUsage()); place != "" && d.TakesValue() {
		term += " " + place
	}
	return term
}

// flagText is what a flag does, and its default.
func flagText(d cli.DocGenerationFlag) string {
	_, text := flags.Placeholder(d.GetUsage())
	if value := d.GetDefaultText(); d.TakesValue() && value != "" && value != `""` && value != "0s" {
		text += fmt.Sprintf(" (default: %s)", value)
	}
	return text
}

// roff escapes text: a backslash, a hyphen that is to be a minus sign, and what would be a request at the start of a line.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ", "~", `\(ti`, "^", `\(ha`, "`", `\(ga`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}
