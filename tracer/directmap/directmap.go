// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package directmap decides how the kernel side reads the target's memory: by copying, or in place through the kernel's
// direct map of all physical memory. It finds the beginning of the map on this machine, and verifies it on memory of
// its own (docs/decisions/reading-memory.md).
package directmap

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// The kernel's direct map of all physical memory (Documentation/arch/x86/x86_64/mm.rst) begins at a multiple of 1 GiB,
// at or above lowestMap4, or lowestMap5 with five levels of page tables. It contains the page tables themselves.
const (
	lowestMap4 = 0xffff888000000000
	lowestMap5 = 0xff11000000000000
	half4      = 0xffff800000000000 // beginning of the kernel's half with four levels
	mapStep    = 1 << 30
	proofWords = 8 // number of words that must be right, at random places
)

// ErrNotFound means that memory cannot be read in place, because no direct map of the kernel was found.
var ErrNotFound = errors.New("no direct map is known that gives what our own memory holds")

// Map is a direct map through which memory can be read in place.
type Map struct {
	bpf.TraceDirectMap
	Source string // how it was found, for people
}

// Find asks the kernel for its direct map, and accepts it only if it reads memory of our own correctly. The error wraps
// ErrNotFound, or says that the kernel cannot load the program (before 6.2). types are the kernel's, for everything that is loaded.
func Find(types *btf.Cache) (*Map, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("%w: page tables of %s are not read", ErrNotFound, runtime.GOARCH)
	}
	prover, err := newProver(types)
	if err != nil {
		return nil, err
	}
	defer prover.close()
	tables, err := findTables(types)
	if err != nil {
		return nil, err
	}
	p := readProcessor(cpuid)
	mask := p.addressMask()
	return askSources(sources, mask, types, place{tables, min(readMemoryEnd(), mask+pageBytes)}, prover.proves)
}

// place is what is known of the direct map in advance: it contains this process's page tables, and ends with memory.
type place struct {
	tables uint64 // where the kernel sees them
	end    uint64 // of physical memory
}

// askSources returns the first plausible answer of a source that is verified. Implausible ones are not tried, so that
// every load of a verification reads from memory.
func askSources(sources []source, mask uint64, types *btf.Cache, known place, proves func(bpf.ProveDirectMap) (bool, error)) (*Map, error) {
	why := []error{ErrNotFound}
	for _, t := range sources {
		base, err := t.ask(mask, types)
		if err == nil {
			err = known.possible(base)
		}
		if err != nil {
			why = append(why, fmt.Errorf("%s: %w", t.name, err))
			continue
		}
		d := bpf.ProveDirectMap{Base: base, Mask: mask, End: known.end, Levels: levelsOf(base)}
		switch right, err := proves(d); {
		case err != nil:
			return nil, err
		case right:
			return &Map{bpf.TraceDirectMap{Base: d.Base, Mask: d.Mask, End: d.End, Levels: d.Levels}, t.name}, nil
		}
		why = append(why, fmt.Errorf("%s: %#x is not where it is", t.name, base))
	}
	return nil, joinReasons(why)
}

// possible checks conditions on every direct map: its possible beginnings, its alignment, and that it contains the page
// tables of this process, which are in memory.
func (p place) possible(base uint64) error {
	lowest := uint64(lowestMap4)
	if levelsOf(p.tables) == 5 {
		lowest = lowestMap5
	}
	if base < lowest || base%mapStep != 0 {
		return fmt.Errorf("%#x cannot be where it begins", base)
	}
	if p.tables < base || p.tables-base >= p.end {
		return fmt.Errorf("%#x cannot be where it begins with page tables at %#x and %#x bytes of memory", base, p.tables, p.end)
	}
	return nil
}

// levelsOf returns the number of levels of page tables, given an address in the direct map.
func levelsOf(addr uint64) uint32 {
	if addr < half4 {
		return 5
	}
	return 4
}

// joinReasons joins several errors in one line.
func joinReasons(errs []error) error {
	out := errs[0]
	for i, err := range errs[1:] {
		separator := ":"
		if i > 0 {
			separator = ";"
		}
		out = fmt.Errorf("%w%s %w", out, separator, err)
	}
	return out
}

// prover reads memory of our own in place.
type prover struct {
	objs proverObjects
	page []byte // random
}

type proverObjects struct {
	Program   *ebpf.Program  `ebpf:"prove"`
	Candidate *ebpf.Variable `ebpf:"candidate"`
	Wanted    *ebpf.Variable `ebpf:"wanted"`
	Found     *ebpf.Variable `ebpf:"found"`
	Word      *ebpf.Variable `ebpf:"word"`
}

func newProver(types *btf.Cache) (*prover, error) {
	p := &prover{}
	if err := loadProve(&p.objs, types); err != nil {
		return nil, err
	}
	var err error
	if p.page, err = unix.Mmap(-1, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		p.objs.Program.Close()
		return nil, fmt.Errorf("get a page: %w", err)
	}
	_, _ = rand.Read(p.page) // never fails
	return p, nil
}

func (p *prover) close() {
	_ = unix.Munmap(p.page)
	p.objs.Program.Close()
}

// proves reports whether words of the page, read in place, are as we wrote them.
func (p *prover) proves(d bpf.ProveDirectMap) (bool, error) { return p.provesBy(d, p.page) }

func (p *prover) provesBy(d bpf.ProveDirectMap, page []byte) (bool, error) {
	for i := range proofWords {
		at := i * (len(page) / proofWords)
		word, err := p.read(d, page, at)
		if err != nil || word != binary.LittleEndian.Uint64(page[at:]) {
			return false, err
		}
	}
	return true, nil
}

// read returns the word at an offset of our memory, as the program reads it; 0: it found none.
func (p *prover) read(d bpf.ProveDirectMap, memory []byte, at int) (word uint64, err error) {
	var found uint32
	for _, err := range []error{
		p.objs.Candidate.Set(d), p.objs.Wanted.Set(uint64(uintptr(unsafe.Pointer(&memory[at])))), p.objs.Word.Set(uint64(0)),
	} {
		if err != nil {
			return 0, fmt.Errorf("set what is to be proved: %w", err)
		}
	}
	if err := runOnce(p.objs.Program); err != nil {
		return 0, err
	}
	if err := p.objs.Found.Get(&found); err != nil || found == 0 {
		return 0, err
	}
	err = p.objs.Word.Get(&word)
	return word, err
}
