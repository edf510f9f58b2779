// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Command bpfsize prints for each BPF program how many instructions it has and how deep a stack its deepest chain of calls
// takes, beside the last known numbers, and the size of each object. It fails when a kernel that is written for would refuse
// a chain's stack, its frames, or the size of a map's values. With -update it writes the numbers down and does not fail.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/gputrace/gputrace/internal/budget"
)

const (
	objects  = "bpf/*_bpfel.o"
	baseline = ".ci/bpfsize.txt"
)

// size is a row of the baseline: a program's, or an object's, whose name ends in objectSuffix and whose stack is 0.
type size struct {
	count int // instructions of a program, bytes of an object
	stack int // bytes
}

const objectSuffix = ".o"

// limits are what is allowed; a flag each, so that a change can be tried before it fits.
type limits struct {
	stack int
	value int
}

func main() {
	log.SetFlags(0)
	var l limits
	update := flag.Bool("update", false, "write "+baseline)
	flag.IntVar(&l.stack, "max", budget.MaxStack, "bytes of stack that a chain of calls may take")
	flag.IntVar(&l.value, "max-value", 0, "bytes that a value of any map may have, instead of what kernels allow by its type")
	flag.Parse()
	if err := run(*update, l); err != nil {
		log.Fatal(err)
	}
}

func run(update bool, l limits) error {
	before, err := read()
	if err != nil && !update {
		return err
	}
	files, err := filepath.Glob(objects)
	if err == nil && files == nil {
		err = fmt.Errorf("no %s", objects)
	}
	if err != nil {
		return err
	}
	now := map[string]size{}
	var exceeded []error
	for _, file := range files {
		over, err := measure(file, l, now, before)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		exceeded = append(exceeded, over)
	}
	if update {
		return write(now)
	}
	return errors.Join(exceeded...)
}

// measure prints the numbers of one object and adds them to now. The first error names the limits that are exceeded.
func measure(file string, l limits, now, before map[string]size) (over, err error) {
	st, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpec(file)
	if err != nil {
		return nil, err
	}
	object := strings.TrimSuffix(filepath.Base(file), "_bpfel"+objectSuffix)
	row := object + objectSuffix
	now[row] = size{count: int(st.Size())}
	fmt.Printf("bpf %-28s %7d bytes        %+d\n", row, now[row].count, now[row].count-before[row].count)
	var all []error
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		p, err := budget.Measure(spec.Programs[name].Instructions)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		row := object + "/" + name
		now[row] = size{p.Instructions, p.Deepest.Stack()}
		fmt.Printf("bpf %-28s %7d instructions %+d, %d bytes of stack %+d: %s\n", row, p.Instructions,
			p.Instructions-before[row].count, p.Deepest.Stack(), p.Deepest.Stack()-before[row].stack, p.Deepest)
		all = append(all, check(row, p, l))
	}
	for _, m := range budget.CheckMaps(spec.Maps, l.value) {
		all = append(all, fmt.Errorf("%s: map %s: a value takes %d bytes, more than %d", object, m.Map, m.Value, m.Limit))
	}
	return errors.Join(all...), nil
}

func check(row string, p *budget.Program, l limits) error {
	var stack, frames error
	if n := p.Deepest.Stack(); n > l.stack {
		stack = fmt.Errorf("%s: a chain takes %d bytes of stack, more than %d: %s", row, n, l.stack, p.Deepest)
	}
	if n := len(p.Longest); n > budget.MaxFrames {
		frames = fmt.Errorf("%s: a chain has %d frames, more than %d: %s", row, n, budget.MaxFrames, p.Longest)
	}
	return errors.Join(stack, frames)
}

func read() (map[string]size, error) {
	f, err := os.Open(baseline)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]size{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		var n size
		var name string
		if _, err := fmt.Sscanf(s.Text(), "%d %d %s", &n.count, &n.stack, &name); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", baseline, s.Text(), err)
		}
		out[name] = n
	}
	return out, s.Err()
}

func write(sizes map[string]size) error {
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		text = fmt.Appendf(text, "%d %d %s\n", sizes[name].count, sizes[name].stack, name)
	}
	return os.WriteFile(baseline, text, 0o644)
}
