// Command gputrace attaches from outside to a running GPU job and accounts for every byte of its GPU memory.
package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"
)

// Exit codes, for every command. Never renumber.
const (
	exitOK           = 0
	exitError        = 1
	exitUsage        = 2
	exitInvalid      = 5 // a file that is not what it should be
	exitNotPermitted = 6
	exitNothing      = 7 // no such process, no CUDA, a kernel that does not take the programs
	exitTargetEnded  = 8 // the target ended before any data
	exitInterrupted  = 130
)

// codedError carries an exit code with an error.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func coded(code int, err error) error { return &codedError{code, err} }

func usage(format string, args ...any) error { return coded(exitUsage, fmt.Errorf(format, args...)) }

// pidFlag reads the process of a command whose help is shown by `help`: -p PID, or the number alone.
func pidFlag(c *cli.Context, help string) (int, error) {
	text, words := c.String("pid"), c.Args().Slice()
	if text == "" && len(words) > 0 && isNumber(words[0]) {
		text, words = words[0], words[1:]
	}
	if len(words) > 0 {
		return 0, usage("unknown argument %q; see %s", words[0], help)
	}
	if text == "" {
		return 0, usage("which process? give -p PID; see %s", help)
	}
	pid, err := strconv.ParseInt(text, 10, 32)
	if err != nil || pid <= 0 {
		return 0, usage("-p %s: not a process id", strconv.Quote(text))
	}
	return int(pid), nil
}

func main() {
	os.Exit(run(os.Args))
}

// run executes a command line and returns its exit code.
func run(args []string) int {
	app := newApp()
	args, err := arrange(app, args)
	if err == nil {
		err = app.Run(args)
	}
	if err == nil {
		return exitOK
	}
	code := exitError
	var c *codedError
	if errors.As(err, &c) {
		code = c.code
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "gputrace:", printable(msg))
	}
	return code
}

// printable replaces what is neither a sign nor a newline or tab: names and paths come from the target, which must not steer our
// terminal, nor turn the direction of what follows.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// oneLine makes a text from the target harmless: no line of it can be taken for one of ours.
func oneLine(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(s))
}

func newApp() *cli.App {
	record := recordCommand()
	app := &cli.App{
		Name:      "gputrace",
		Usage:     "account for every byte of a running job's GPU memory, from outside",
		UsageText: "gputrace PID [options]\ngputrace COMMAND [options]",
		Version:   version,
		Flags:     append(slices.Clone(record.Flags), cli.HelpFlag), // cli adds it only where no command is called help
		Commands: []*cli.Command{
			record, runCommand(), reportCommand(), exportCommand(), diffCommand(), dumpCommand(), whoCommand(), doctorCommand(),
			completionCommand(), completeCommand(), startCommand(), manCommand(), helpCommand(), versionCommand(),
		},
		HideHelpCommand: true,
		Action:          record.Action,
		OnUsageError:    onUsageError,
		ExitErrHandler:  func(*cli.Context, error) {}, // run decides
	}
	app.CustomAppHelpTemplate = helpTemplate(cli.AppHelpTemplate, "")
	hideFalse(app.Flags)
	for _, c := range app.Commands {
		hideFalse(c.Flags)
		c.HideHelpCommand = true // "help" is an argument there
		c.OnUsageError = onUsageError
		c.CustomHelpTemplate = helpTemplate(cli.CommandHelpTemplate, c.Name)
	}
	return app
}

// hideFalse keeps "(default: false)" out of the help: that is what a flag is for.
func hideFalse(flags []cli.Flag) {
	for _, f := range flags {
		if b, ok := f.(*cli.BoolFlag); ok {
			b.DisableDefaultText = true
		}
	}
}

func onUsageError(c *cli.Context, err error, _ bool) error {
	return usage("%w; see %s --help", err, c.Command.HelpName)
}

// commandLine shortens a command line to what identifies it. It comes from the target: control characters are escaped.
func commandLine(args []string, name string) string {
	if len(args) == 0 {
		return name // which is escaped
	}
	args = append([]string{path.Base(args[0])}, args[1:]...)
	line := strings.Trim(strconv.Quote(strings.Join(args, " ")), `"`)
	if r := []rune(line); len(r) > 60 {
		line = string(r[:59]) + "…"
	}
	return line
}
