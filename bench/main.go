// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Command bench measures what tracing costs and prints it as Markdown tables: microseconds per hit beyond an empty uprobe at
// the same place, slowdown of training scripts beside PyTorch's own recorder, time to attach, the tracer's load and how many
// events it can take, from many threads too. All modes of a workload are measured in turn in one process, window by window, so every figure is relative to its own run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// options are the command line.
type options struct {
	rounds int
	window time.Duration
	only   string // name of one workload; empty: all
	cores  []int  // numbers of threads that cores measures; nil: coreThreads
}

// settle is how long a job runs after a change of mode before its samples count.
const settle = 300 * time.Millisecond

func main() {
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	if err := run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	f.IntVar(&o.rounds, "rounds", 5, "measure every mode `N` times, in turn")
	f.DurationVar(&o.window, "window", 2*time.Second, "`TIME` of one measurement")
	f.StringVar(&o.only, "only", "", "measure one `WORKLOAD`: hotloop20, hotloop40, frees, pyloop, mlp, gpt, resnet, who, recording, views, feed, cores")
	f.Func("threads", "`NUMBERS` of threads that cores measures, such as 1,16,64 (default 1,2,4,16,64)", func(s string) (err error) {
		o.cores, err = parseThreads(s)
		return err
	})
	quick := f.Bool("quick", false, "two rounds of 1.5 s: for a look, not for a table")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		o.rounds, o.window = 2, 1500*time.Millisecond
	}
	err := o.check(f.NArg())
	if err != nil {
		fmt.Fprintln(out, "bench:", err)
	}
	return o, err
}

func (o *options) check(args int) error {
	switch {
	case args > 0:
		return errors.New("takes no arguments; see -h")
	case o.rounds < 1:
		return fmt.Errorf("-rounds %d: want at least 1", o.rounds)
	case o.window < 100*time.Millisecond:
		return fmt.Errorf("-window %s: want at least 100ms", o.window)
	case o.only != "" && !slices.Contains([]string{whoName, recordingName, viewsName, feedName, coresName}, o.only) && findWorkload(o.only) == nil:
		return fmt.Errorf("-only %s: no such workload", o.only)
	}
	return nil
}

// run measures everything and prints the tables.
func run(o options, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("attaching needs root: run it with sudo")
	}
	env, err := newEnvironment()
	if err != nil {
		return err
	}
	defer env.close()
	r := report{options: o, machine: describeMachine()}
	r.results, err = measureAll(env, o)
	if err == nil && (o.only == "" || o.only == attachScript) {
		r.attach, err = measureAttach(env, o)
	}
	if err == nil && (o.only == "" || o.only == whoName) {
		r.who, err = measureWho(env, o)
	}
	if err == nil && (o.only == "" || o.only == recordingName) {
		r.recording, err = measureRecording(env, o)
	}
	if err == nil && (o.only == "" || o.only == viewsName) {
		r.views, err = measureViews(env, o)
	}
	if err == nil && (o.only == "" || o.only == feedName) {
		r.feed, err = measureFeed(env, o)
	}
	if err == nil && o.only == coresName {
		r.cores, err = measureCores(env, o)
	}
	return errors.Join(err, printReport(out, r)) // what was measured before an error is shown
}

// measureAll measures the workloads one after the other.
func measureAll(env *environment, o options) ([]result, error) {
	var out []result
	for i := range workloads {
		w := &workloads[i]
		if o.only != "" && o.only != w.name {
			continue
		}
		r, err := w.measure(env, o)
		if err != nil {
			return out, fmt.Errorf("%s: %w", w.name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// progress says on stderr what is being measured.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
