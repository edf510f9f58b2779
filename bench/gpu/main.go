// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Command gpu measures on a machine with a GPU what tracing costs there and whether it holds, and prints a page of Markdown, section by
// section. The machine needs Python with PyTorch; the rest is built elsewhere and carried, by bundle.sh and run.sh.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gputrace/gputrace/bench/measure"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

func run() error {
	here, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the program's folder: %w", err)
	}
	here = filepath.Dir(here)
	o := measure.GPUOptions{}
	flag.StringVar(&o.Root, "root", ".", "`FOLDER` of the repository")
	flag.StringVar(&o.Python, "python", "python3", "the `PROGRAM` that has PyTorch")
	flag.StringVar(&o.Program, "gputrace", filepath.Join(here, "gputrace"), "the `PROGRAM` to measure")
	flag.StringVar(&o.Programs, "programs", filepath.Join(here, "programs"), "`FOLDER` of the C test programs")
	flag.DurationVar(&o.Limit, "limit", 8*time.Minute, "begin nothing that would not end in `TIME`")
	flag.IntVar(&o.Rounds, "rounds", 4, "measure every mode `N` times, in turn")
	flag.DurationVar(&o.Window, "window", 800*time.Millisecond, "`TIME` of one measurement")
	sections := flag.String("sections", "", "`NAMES` of sections, separated by commas: steps, programs, oom, threads (default all)")
	jobs := flag.String("jobs", "", "`NAMES` of the loops whose steps are timed, separated by commas (default all)")
	page := flag.String("o", "", "write the page into `FILE` too")
	flag.Parse()
	if *sections != "" {
		o.Sections = strings.Split(*sections, ",")
	}
	if *jobs != "" {
		o.Jobs = strings.Split(*jobs, ",")
	}
	if err := o.Check(); err != nil {
		return err
	}
	out := os.Stdout
	if *page != "" {
		if out, err = os.Create(*page); err != nil {
			return fmt.Errorf("make the page: %w", err)
		}
		defer out.Close()
	}
	return measure.RunGPU(&o, out)
}
