//go:build ignore

// Command bpfsize prints how many instructions each BPF program has, beside the last known number, and the size of the
// object. With -update it writes the numbers down.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	object   = "bpf/trace_x86_bpfel.o"
	baseline = ".ci/bpfsize.txt"
	// objectSize is the row that is not a program's.
	objectSize = "object"
)

func main() {
	log.SetFlags(0)
	update := flag.Bool("update", false, "write "+baseline)
	flag.Parse()
	now, err := sizes()
	if err != nil {
		log.Fatal(err)
	}
	before, err := read()
	if err != nil && !*update {
		log.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		fmt.Printf("bpf %-14s %7d %-12s %+d\n", name, now[name], unit(name), now[name]-before[name])
	}
	if *update {
		if err := write(now); err != nil {
			log.Fatal(err)
		}
	}
}

// sizes counts the instructions of each program, with those of the functions that it calls, and the object's bytes.
func sizes() (map[string]int, error) {
	st, err := os.Stat(object)
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", object, err)
	}
	out := map[string]int{objectSize: int(st.Size())}
	for name, p := range spec.Programs {
		var n uint64
		for _, i := range p.Instructions {
			n += i.Size() / asm.InstructionSize // a 64-bit constant takes two
		}
		out[name] = int(n)
	}
	return out, nil
}

func unit(name string) string {
	if name == objectSize {
		return "bytes"
	}
	return "instructions"
}

func read() (map[string]int, error) {
	f, err := os.Open(baseline)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]int{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		var n int
		var name string
		if _, err := fmt.Sscanf(s.Text(), "%d %s", &n, &name); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", baseline, s.Text(), err)
		}
		out[name] = n
	}
	return out, s.Err()
}

func write(sizes map[string]int) error {
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		text = fmt.Appendf(text, "%d %s\n", sizes[name], name)
	}
	return os.WriteFile(baseline, text, 0o644)
}
