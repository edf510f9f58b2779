// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/internal/top"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/local"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "watch a process live, or step through a recording",
		UsageText: "sudo gputrace top -p PID\ngputrace top FOLDER/trace.gputrace\nsudo gputrace top -p PID --serve SOCKET; sudo gputrace top " +
			"--connect SOCKET",
		Description: "Records nothing without -o. The job goes on when you leave the screen. With --serve there is no screen: what is seen " +
			"is kept " +
			"for others to connect to, so that a lost connection to the machine loses nothing. ? on the screen lists its keys.",
		Flags: []cli.Flag{
			flags.PIDs("pid,p", "watch process `PID`, or several, separated by commas or with -p before each"),
			flags.Words("name", "", "watch each process whose command line or program name matches `REGEX`, also those that begin later", nil,
				checkPattern),
			&cli.BoolFlag{Name: "all", Usage: "watch each process that uses CUDA, also those that begin to later"},
			&cli.BoolFlag{Name: "children", Usage: "watch the children of the processes too"},
			&cli.BoolFlag{Name: "once", Usage: "print one screen as text"},
			&cli.BoolFlag{Name: "json", Usage: "print a line of JSON a second, or with --once one"},
			flags.Text("serve", "", "keep the screens for gputrace top --connect `SOCKET`"),
			flags.Text("connect", "", "show what a gputrace top --serve `SOCKET` sees"),
			flags.Duration("duration,d", "stop after `TIME`, such as 10s, or a number of seconds", 0, 0),
			flags.Text("output,o", "", "record into the new `FOLDER` too"),
			forceFlag(), stepOnFlag(), memoryFlag(), cacheFlag(),
		},
		Action: func(c *cli.Context) error {
			o, err := parseTop(c)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			switch {
			case o.connect != "":
				return o.remote(ctx)
			case o.file != "":
				return o.recording(ctx)
			}
			return o.live(ctx)
		},
	}
}

// topOptions is a parsed top command line.
type topOptions struct {
	record         recordOptions
	file           string // recording; empty: none
	serve, connect string // sockets; empty: none
	once, json     bool
	rules          ruleFlags
}

func parseTop(c *cli.Context) (*topOptions, error) {
	o := &topOptions{
		serve: flags.Get[string](c, "serve"), connect: flags.Get[string](c, "connect"), once: c.Bool("once"), json: c.Bool("json"),
		rules: ruleFlags{stepOn: flags.Get[string](c, "step-on")},
		record: recordOptions{
			name: flags.Get[string](c, "name"), all: c.Bool("all"), children: c.Bool("children"), output: flags.Get[string](c, "output"),
			force: c.Bool("force"), duration: flags.Get[time.Duration](c, "duration"), stepOn: flags.Get[string](c, "step-on"),
			memory: flags.Get[string](c, "memory"), cacheDir: flags.Get[string](c, "cache-dir"), maxStacks: leaksStacks,
		},
	}
	if word := c.Args().First(); c.NArg() == 1 && (fileExists(word) || !isPID(word)) {
		o.file = word
		return o, nil
	}
	pids, err := pidsOf(c)
	if err != nil {
		return nil, err
	}
	if len(pids) > 0 {
		o.record.pid, o.record.others = pids[0], pids[1:]
	}
	if len(pids) == 0 && o.record.name == "" && !o.record.all && o.connect == "" {
		return nil, usage("what to watch? give -p PID, a recording, or --connect SOCKET; see gputrace top --help")
	}
	if o.serve == "" && !o.once && !o.json && !output.IsTerminal(os.Stdout) {
		return nil, usage("standard output is no terminal: give --once or --json")
	}
	if o.record.output != "" {
		return o, o.record.chooseOutput()
	}
	return o, nil
}

// isPID reports whether a word is a PID.
func isPID(word string) bool {
	_, err := flags.ParsePID(word)
	return err == nil
}

// remote shows the screens of another gputrace.
func (o *topOptions) remote(ctx context.Context) error {
	r, err := top.Connect(o.connect, !o.once)
	if err != nil {
		return coded(exitNothing, err)
	}
	defer r.Close()
	return o.show(ctx, r)
}

// recording shows a recording.
func (o *topOptions) recording(ctx context.Context) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	in, err := o.rules.open(o.file, p.Options(p.Warn))
	if err != nil {
		return err
	}
	defer in.Close()
	report, err := in.Leaks()
	if err != nil {
		return err
	}
	input := &top.RecordedInput{
		Trace: in.Trace, Process: top.Process{PID: int(in.Info.PID), Name: words.ScriptLine(in.Info.Cmdline, in.Info.Name)}, Leaks: report,
		Attached: in.Info.Attached, Began: in.Info.Started,
	}
	if input.Attached != 0 {
		input.Began = input.Began.Add(time.Duration(int64(input.Attached) - int64(in.Info.StartedBoot)))
	}
	for _, held := range export.HeldTables(in.End) {
		input.Joined = held.Joined // the last one is at the end
	}
	if input.Steps, err = in.Steps(); err != nil {
		return err
	}
	feed, err := top.NewRecorded(input)
	if err != nil {
		return err
	}
	p.Stop()
	return o.show(ctx, feed)
}

// show shows a feed in the requested form.
func (o *topOptions) show(ctx context.Context, feed top.Feed) error {
	switch {
	case o.once:
		last := top.Now
		switch {
		case o.file != "":
			last = top.Last
		case o.connect != "":
			last = top.First
		}
		return top.WriteOne(ctx, os.Stdout, feed, last, console.Width(""), o.json)
	case o.json:
		return top.WriteJSON(ctx, os.Stdout, feed)
	}
	return top.Show(ctx, feed)
}

// live watches processes.
func (o *topOptions) live(ctx context.Context) error {
	c := o.record.console()
	options, files := o.record.recorderOptions(c)
	options.HoldersOnRequest = options.Keeper == nil // otherwise they are needed for the written results
	quiet := &top.Quiet{Observer: c, Hold: o.serve == "" && !o.once && !o.json}
	options.Observer = quiet
	source, err := local.Open(options)
	if err != nil {
		return err
	}
	r := recorder.New(source, options)
	defer r.Close()
	go local.KeepSmall(ctx)
	results, err := top.Watch(ctx, r, options.Keeper != nil, o.showLive)
	quiet.Release()
	if err == nil && options.Keeper != nil {
		err = finish(files.Results(results), c, &o.record)
	}
	return advice.Recording(err)
}

// showLive shows processes here, or serves the screens to others.
func (o *topOptions) showLive(ctx context.Context, feed top.Feed) error {
	if o.serve == "" {
		return o.show(ctx, feed)
	}
	s, err := top.Serve(o.serve, feed)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "gputrace: screens are at %s: sudo gputrace top --connect %s\n", o.serve, o.serve)
	return s.Run(ctx)
}
