// SPDX-License-Identifier: Apache-2.0

// Command gputrace attaches from outside to a running GPU job and accounts for every byte of its GPU memory.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/mcpserver"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/servecli"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/limits"
	_ "github.com/gputrace/gputrace/internal/secure" // with file capabilities, the environment is whole
	"github.com/gputrace/gputrace/internal/words"
)

// Short names for use in all files of this command.
const (
	exitOK           = exit.OK
	exitError        = exit.Error
	exitUsage        = exit.Misuse
	exitInvalid      = exit.Invalid
	exitNotPermitted = exit.NotPermitted
	exitNothing      = exit.Nothing
	exitTargetEnded  = exit.TargetEnded
	exitInterrupted  = exit.Interrupted
)

var (
	coded       = exit.With
	usage       = exit.Usage
	commandLine = words.CommandLine
)

// pidOf returns the process of a command: -p PID, or the number alone.
func pidOf(c *cli.Context) (int, error) {
	pid, words := flags.Get[int](c, "pid"), c.Args().Slice()
	if pid == 0 && len(words) > 0 {
		if n, err := flags.ParsePID(words[0]); err == nil {
			pid, words = n, words[1:]
		}
	}
	if pid == 0 && len(words) == 0 {
		return 0, usage("which process? give -p PID; see %s --help", c.Command.HelpName)
	}
	return pid, refuseWords(c, words)
}

// refuseWords returns the error for arguments that a command does not take.
func refuseWords(c *cli.Context, words []string) error {
	if len(words) == 0 {
		return nil
	}
	return usage("unknown argument %q; see %s --help", words[0], c.Command.HelpName)
}

func main() {
	if len(os.Args) < 2 || os.Args[1] != startName { // a started program must inherit the original limits
		limits.Raise()
	}
	os.Exit(run(os.Args))
}

// run executes a command line and returns its exit code.
func run(args []string) int {
	app := newApp()
	var err error
	if !completes(app, args) {
		args, err = flags.Order(app, args)
	}
	if err == nil {
		err = app.Run(args)
	}
	printError(err, flags.IsVerbose(args))
	return exit.Code(err)
}

// printError prints the cause of an error, and with -v the whole chain. An error without a text has already been printed.
func printError(err error, verbose bool) {
	if err == nil || err.Error() == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "gputrace:", words.Text(exit.Text(err)))
	if verbose {
		for _, cause := range exit.Causes(err) {
			fmt.Fprintln(os.Stderr, "  cause:", words.Line(cause))
		}
	}
}

func newApp() *cli.App {
	fitHelp()
	cli.VersionFlag = &cli.BoolFlag{Name: "version", Usage: "print the version"} // -v is --verbose
	record := recordCommand()
	app := &cli.App{
		Name:      "gputrace",
		Usage:     "account for every byte of a running job's GPU memory, from outside",
		UsageText: "gputrace\ngputrace PID [options]\ngputrace COMMAND [options]",
		Version:   version,
		Flags:     append(slices.Clone(record.Flags), cli.HelpFlag), // cli adds it only if no command is called help
		Commands: []*cli.Command{
			record, runCommand(), topCommand(), reportCommand(), leaksCommand(),
			gatecli.OOMCommand(shared(), append(recordingFlags(), childrenFlag(), phasesFlag()), recordTo), gatecli.CheckCommand(shared()),
			gatecli.SummaryCommand(shared()), gatecli.FragmentsCommand(shared()), exportCommand(), diffCommand(), dumpCommand(), whoCommand(),
			gatecli.WhatIfCommand(shared()), doctorCommand(),
			mcpserver.Command(version), agentCommand(), servecli.Command(shared()),
			completionCommand(), startCommand(), manCommand(), helpCommand(), versionCommand(),
		},
		HideHelpCommand:        true,
		Suggest:                true,
		UseShortOptionHandling: true,
		Action: func(c *cli.Context) error {
			if err := flags.CheckWord(c); err != nil {
				return err
			}
			if asksForList(c) {
				return listProcesses(c.Bool("json"))
			}
			return record.Action(c)
		},
		OnUsageError:   flags.UsageError,
		ExitErrHandler: func(*cli.Context, error) {}, // run decides
	}
	app.Flags = flags.WithVerbose(app.Flags)
	app.CustomAppHelpTemplate = helpTemplate(flags.RootHelp, "")
	hideFalse(app.Flags)
	for _, c := range app.Commands {
		if !c.SkipFlagParsing {
			c.Flags = flags.WithVerbose(c.Flags)
		}
		hideFalse(c.Flags)
		c.HideHelpCommand = true // "help" is an argument there
		c.OnUsageError = flags.UsageError
		c.CustomHelpTemplate = helpTemplate(cli.CommandHelpTemplate, c.Name)
	}
	return app
}

// hideFalse removes "(default: false)" from the help, because every flag is off by default.
func hideFalse(flags []cli.Flag) {
	for _, f := range flags {
		if b, ok := f.(*cli.BoolFlag); ok {
			b.DisableDefaultText = true
		}
	}
}

// forceFlag returns --force for every command that writes files.
func forceFlag() cli.Flag {
	return &cli.BoolFlag{Name: "force", Usage: "replace an output of that name"}
}

// outputFlag returns -o for the commands that write one file.
func outputFlag() cli.Flag {
	return flags.Text("output,o", "", "write into the new `FILE` (default and -: standard output)")
}

func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
