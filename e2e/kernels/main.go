// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Command kernels boots Debian's kernels in QEMU, without the hardware's help, and has gputrace trace in each: docs/measured/kernels.md has
// what it looks at and what came of it. It ends with 1 when anything does not hold.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// tooOld is the newest series that tracing is not meant for: gputrace must say so.
const tooOld = "5.10"

// options are those of the command line.
type options struct {
	arch       *architecture
	work       string
	series     []string
	update     bool
	budget     bool
	checks     string
	parameters string
	torch      string
	limit      time.Duration
	memory     int
	cpus       int
	many       bool
	processor  string
	parallel   int
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("kernels: ")
	o := parseOptions()
	failed, err := run(context.Background(), o)
	if err != nil {
		log.Fatal(err)
	}
	if failed {
		os.Exit(1)
	}
}

func parseOptions() *options {
	o := &options{}
	flag.StringVar(&o.work, "work", cmp.Or(os.Getenv("GPUTRACE_WORK"), "testdata/.work"), "folder of what is fetched and built")
	flag.BoolVar(&o.update, "update", false, "write the rows of these kernels into the table of docs/measured/kernels.md")
	flag.BoolVar(&o.budget, "budget", false, fmt.Sprintf("fail when a program takes more than %d verified instructions on the oldest or "+
		"the newest kernel", budget))
	flag.StringVar(&o.checks, "checks", "", "only those whose names this expression matches; it has no spaces")
	flag.StringVar(&o.torch, "torch", "ends", "on which kernels PyTorch trains, too: ends (the oldest and the newest), all or none")
	flag.StringVar(&o.parameters, "parameters", "", "more parameters for the kernel, such as preempt=full")
	flag.DurationVar(&o.limit, "limit", 15*time.Minute, "how long a kernel may take")
	flag.IntVar(&o.memory, "memory", 2048, "MiB of a guest; one with PyTorch has 4096 more")
	flag.IntVar(&o.parallel, "parallel", 2, "how many kernels run at a time")
	flag.IntVar(&o.cpus, "cpus", 2, "CPUs of a guest")
	arch := flag.String("arch", "amd64", "the processor, amd64 or arm64")
	flag.StringVar(&o.processor, "processor", "",
		"what QEMU emulates, all that it can when empty; max,-hypervisor: so that the kernel does not see that, and has the locks of a real "+
			"machine")
	flag.BoolVar(&o.many, "many", false, "only look how many threads fare, on as many CPUs as -cpus says: 16 or 64")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: kernels [flags] [SERIES...]\n\nSERIES is such as 6.12, or newest; it must be had. By default all that "+
			"can be had, and %s, which is too old.\n\n", tooOld)
		flag.PrintDefaults()
	}
	flag.Parse()
	o.series = flag.Args()
	if o.arch = architectures[*arch]; o.arch == nil {
		log.Fatalf("-arch %s: amd64 or arm64 was expected", *arch)
	}
	return o
}

// run boots all, prints the tables, and reports whether something failed.
func run(ctx context.Context, o *options) (failed bool, err error) {
	work, err := filepath.Abs(filepath.Join(o.work, "kernels"))
	if err != nil {
		return false, err
	}
	if o.arch.name != "amd64" {
		work = filepath.Join(work, o.arch.name)
	}
	kernels, err := o.fetch(ctx, work)
	if err != nil {
		return false, err
	}
	images, err := writeImages(work, kernels, o)
	if err != nil {
		return false, err
	}
	results, err := bootAll(ctx, kernels, o, work, images)
	if err != nil {
		return false, err
	}
	for _, k := range kernels {
		if k.why != "" {
			fmt.Printf("Linux %s is not to be had: %s\n", k.Series, k.why)
			failed = failed || len(o.series) > 0
		}
	}
	failed = overBudget(os.Stdout, results, o.budget) || failed
	for _, r := range results {
		failed = failed || r.failed()
	}
	object, err := objectName(o.arch.object)
	if err != nil {
		return failed, err
	}
	booted := rows(results, object)
	fmt.Printf("\n%s", table(booted))
	if o.update {
		return failed, update(booted, o.arch)
	}
	return failed, nil
}

// bootAll boots several kernels at a time. What it returns is in their order; what it prints, in that of their ends.
func bootAll(ctx context.Context, kernels []kernel, o *options, work string, images map[string]string) ([]*result, error) {
	results, errs := make([]*result, len(kernels)), make([]error, len(kernels))
	var group sync.WaitGroup
	var printing sync.Mutex
	free := make(chan bool, o.parallel)
	for i, k := range kernels {
		if k.why != "" {
			continue
		}
		free <- true
		group.Go(func() {
			defer func() { <-free }()
			guest := o.guest(kernels, &k)
			results[i], errs[i] = boot(ctx, k, o, guest, images[guest], filepath.Join(work, k.Release+".log"))
			printing.Lock()
			defer printing.Unlock()
			if results[i] != nil {
				results[i].print(os.Stdout)
			}
		})
	}
	group.Wait()
	return slices.DeleteFunc(results, func(r *result) bool { return r == nil }), errors.Join(errs...)
}

// guest is what a kernel is to do: "refused", "torch" or "".
func (o *options) guest(all []kernel, k *kernel) string {
	supported := slices.DeleteFunc(slices.Clone(all), func(k kernel) bool { return k.why != "" || k.Series == tooOld })
	end := len(supported) > 0 && (k.Series == supported[0].Series || k.Series == supported[len(supported)-1].Series)
	switch {
	case k.Series == tooOld:
		return "refused"
	case o.many:
		return "many"
	case o.torch == "all", o.torch == "ends" && end:
		return "torch"
	}
	return ""
}

// writeImages makes the images for what guests do, and returns their files.
func writeImages(work string, kernels []kernel, o *options) (map[string]string, error) {
	plain := filepath.Join(work, "image.cpio")
	images := map[string]string{"": plain, "refused": plain, "many": plain, "torch": filepath.Join(work, "image-torch.cpio")}
	for _, guest := range []string{"", "torch"} {
		if guest == "torch" && (o.torch == "none" || o.many) {
			continue
		}
		m, err := buildImage(work, o.arch, kernels, guest == "torch")
		if err != nil {
			return nil, err
		}
		if err := m.write(images[guest]); err != nil {
			return nil, err
		}
	}
	return images, nil
}

// fetch brings the kernels, and says which.
func (o *options) fetch(ctx context.Context, work string) ([]kernel, error) {
	if len(o.series) == 0 {
		all, err := o.fetchSeries(ctx, work)
		if err != nil {
			return nil, err
		}
		old, err := o.fetchSeries(ctx, work, tooOld)
		return append(old, all...), err
	}
	return o.fetchSeries(ctx, work, o.series...)
}

func (o *options) fetchSeries(ctx context.Context, work string, series ...string) ([]kernel, error) {
	cmd := exec.CommandContext(ctx, "e2e/kernels/fetch", append([]string{work}, series...)...)
	cmd.Env, cmd.Stderr = append(os.Environ(), "KERNELS_ARCH="+o.arch.name), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("fetch the kernels: %w", err)
	}
	var kernels []kernel
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		words := strings.SplitN(s.Text(), " ", 3)
		if len(words) != 3 {
			return nil, fmt.Errorf("fetch the kernels: line %q", s.Text())
		}
		k := kernel{Series: words[0], Release: words[1], file: words[2]}
		if k.Release == "none" {
			k.why = words[2]
		}
		kernels = append(kernels, k)
	}
	return kernels, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
