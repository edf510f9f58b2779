// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/limits"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
	"github.com/gputrace/gputrace/recorder/local"
)

// startHere replaces this process by the program that run starts.
func startHere(args []string) error {
	if len(args) == 0 {
		return coded(exitError, errors.New(""))
	}
	err := limits.Restore(args[0])
	if err == nil {
		err = local.Become(args[1:])
	}
	if errors.Is(err, local.ErrAbandoned) {
		return coded(exitError, errors.New(""))
	}
	return coded(exit.NotExecutable, err)
}

// record makes one recording, from the attach to the files.
func record(o recordOptions) error {
	c := o.console()
	return watched(&o, c, func(r *recorder.Recorder, results *folder.Results, err error) error {
		if err == nil {
			err = finish(results, c, &o)
		}
		out := o.out()
		if o.asJSON {
			out = os.Stdout
		}
		if err = o.limits.After(r, results, out, err); o.asJSON && !o.limits.Checks() {
			err = cmp.Or(err, gatecli.PrintResults(out, results, o.stepOn))
		}
		return afterProgram(r, c, advice.Recording(err))
	})
}

// recordTo records a process, and returns the folder of results.
func recordTo(c *cli.Context, pid int) (dir string, err error) {
	o := parseRecording(c)
	o.children = c.Bool("children")
	if o.pid = pid; !c.IsSet("format") {
		o.formats = ""
	}
	o.silent = true
	if err := o.chooseOutput(); err != nil {
		return "", err
	}
	err = watched(&o, o.console(), func(_ *recorder.Recorder, results *folder.Results, err error) error {
		if err == nil {
			err = results.Err()
		}
		if err == nil {
			dir, err = results.Write()
		}
		return advice.Recording(err)
	})
	return dir, err
}

// watched makes one recording, and calls then with the results, or the reason why there are none, while the recorder is open.
func watched(o *recordOptions, c *console.Console, then func(*recorder.Recorder, *folder.Results, error) error) error {
	// If the reader of our output goes away, the profiles must still be written.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGXCPU)
	defer signal.Stop(signals)

	c.Begin(o.pid)
	defer c.Stop()
	defer c.Close()
	options, files := o.recorderOptions(c)
	stopAlerts, err := o.limits.Start(options)
	if err != nil {
		return err
	}
	source, err := local.Open(options)
	if err != nil {
		return err
	}
	r := recorder.New(source, options)
	defer r.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go local.KeepSmall(ctx)
	stopLive := gatecli.KeepLive(ctx, r, o.liveFile)
	go steer(ctx, r, signals, func() {
		c.Warning(errors.New("the limit on CPU time (RLIMIT_CPU) is nearly reached: the recording ends here; ulimit -t unlimited"))
		cancel()
	})
	results, err := r.Run(ctx)
	for _, stop := range []func() error{stopLive, stopAlerts} {
		if failed := stop(); failed != nil {
			c.Warning(failed)
		}
	}
	return then(r, files.Results(results), err)
}

// steer passes signals to a recording until ctx is done. end ends the recording before the kernel kills gputrace for its CPU time.
func steer(ctx context.Context, r *recorder.Recorder, signals <-chan os.Signal, end func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-signals:
			switch s {
			case syscall.SIGUSR1:
				r.Look()
			case syscall.SIGXCPU:
				end()
			default:
				r.Interrupt(s)
			}
		}
	}
}

// console returns the console that shows the recording on standard error.
func (o *recordOptions) console() *console.Console {
	return console.New(os.Stderr, console.Options{
		Many: o.isJob(), Program: o.command != nil, Follow: o.children || o.command != nil, ReadyFile: o.readyFile, Version: version,
	})
}

// recorderOptions returns the recorder's options for the command line, and the folder of results, which they name unless it has no path.
func (o *recordOptions) recorderOptions(c *console.Console) (*recorder.Options, *folder.Folder) {
	out := &recorder.Options{
		All: o.all, Children: o.children, Command: o.command, User: o.user, Env: o.env, Starter: []string{startName, limits.Original()},
		Wait: o.wait, Inject: o.inject, Duration: o.duration,
		RingBytes: o.ringBytes, FreeStacks: o.freeStacks, MaxStacks: o.maxStacks, CacheDir: o.cacheDir, Memory: o.memory, NoHolders: o.noNames,
		NoSteps: o.noSteps, StepOn: o.stepOn, UntilOOM: o.untilOOM,
		CPUBudget: o.cpuBudget, Version: version, Observer: c,
	}
	if o.pid != 0 {
		out.PIDs = append([]int{o.pid}, o.others...)
	}
	if o.name != "" {
		out.Name = regexp.MustCompile(o.name) // checked when the command line was parsed
	}
	results := o.results()
	results.Many, results.Views, results.Warn = out.Many(), o.views(c), c.Warning
	files := folder.New(results)
	if o.output != "" {
		out.Keeper = files
	}
	return out, files
}

// views returns the formats of -f.
func (o *recordOptions) views(c *console.Console) *folder.Views {
	out := &folder.Views{Names: o.formats, Asked: o.asked}
	formats, err := recordFormats(o.formats)
	out.First = func(p *folder.Process, dir string, views, alone bool) *answer.Answer {
		if o.silent && alone {
			return nil
		}
		page := ""
		if views && slices.ContainsFunc(formats, func(f export.Format) bool { return f.File == export.PageName }) {
			page = filepath.Join(dir, export.PageName)
		}
		return c.First(o.out(), p, views, alone, &export.AnswerOptions{Verbose: o.verbose, Path: dir, Page: &page})
	}
	if err != nil || len(formats) == 0 {
		return out
	}
	out.Write = func(path string, write folder.WriteFile) error {
		in, err := c.Open(path, c.Warning)
		if err != nil {
			return err
		}
		input, err := in.Input(nil, version, c.Warning)
		if err != nil {
			return err
		}
		var errs []error
		for _, f := range formats {
			input.File = f.File
			errs = append(errs, write(f.File, func(w io.Writer) error { return f.Write(w, input) }))
		}
		return errors.Join(errs...)
	}
	return out
}

// finish writes the folder and prints the summary.
func finish(results *folder.Results, c *console.Console, o *recordOptions) error {
	return c.Finish(o.out(), results, &console.Finish{Verbose: o.verbose, Asked: o.asked})
}

// out returns the file to which figures are printed.
func (o *recordOptions) out() *os.File {
	if o.command != nil || o.asJSON {
		return os.Stderr // standard output belongs to the program, or to a single object
	}
	return os.Stdout
}

// afterProgram waits for the started program and returns its exit code. An error of ours counts only if the program had none.
func afterProgram(r *recorder.Recorder, c *console.Console, err error) error {
	code, started := awaitProgram(r, c)
	if !started {
		return err
	}
	if code != 0 || errors.Is(err, recorder.ErrEndedEarly) { // a program without GPU memory is no error of its own
		if err != nil && err.Error() != "" {
			fmt.Fprintln(os.Stderr, "gputrace:", words.Text(exit.Text(err)))
		}
		err = nil
	}
	if code != 0 {
		return coded(code, errors.New(""))
	}
	return err
}

// sayRunsAfter is the delay before the message that a program still runs after its recording.
const sayRunsAfter = 300 * time.Millisecond

// awaitProgram waits for the started program, and prints a message if it still runs. The results have been written before.
func awaitProgram(r *recorder.Recorder, c *console.Console) (code int, started bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, started = r.Wait()
	}()
	select {
	case <-done:
		return code, started
	case <-time.After(sayRunsAfter):
	}
	c.Notice("the recording has ended; waiting for the program's exit code: Ctrl-C is passed on to it")
	<-done
	return code, started
}
