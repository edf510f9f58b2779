// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Command bench measures what tracing costs and prints it as Markdown tables: microseconds per hit beyond an empty uprobe at
// the same place, slowdown of training scripts beside PyTorch's own recorder, time to attach, the tracer's load and how many
// events it can take, from many threads too. All modes of a workload are measured in turn in one process, window by
// window, so every figure is relative to its own run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gputrace/gputrace/bench/measure"
)

func main() {
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	if err := measure.Run(o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string, out io.Writer) (measure.Options, error) {
	var o measure.Options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	f.IntVar(&o.Rounds, "rounds", 5, "measure every mode `N` times, in turn")
	f.DurationVar(&o.Window, "window", 2*time.Second, "`TIME` of one measurement")
	f.StringVar(&o.Only, "only", "", "measure one `WORKLOAD`: hotloop20, hotloop40, frees, pyloop, mlp, gpt, resnet, who, recording, "+
		"views, feed, cores")
	f.Func("threads", "`NUMBERS` of threads that cores measures, such as 1,16,64 (default 1,2,4,16,64)", func(s string) (err error) {
		o.Threads, err = measure.ParseThreads(s)
		return err
	})
	quick := f.Bool("quick", false, "two rounds of 1.5 s: for a look, not for a table")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if *quick {
		o.Rounds, o.Window = 2, 1500*time.Millisecond
	}
	err := o.Check()
	if f.NArg() > 0 {
		err = errors.New("takes no arguments; see -h")
	}
	if err != nil {
		fmt.Fprintln(out, "bench:", err)
	}
	return o, err
}
