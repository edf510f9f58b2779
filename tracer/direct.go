//go:build linux && amd64

package tracer

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// The kernel's direct map of all physical memory (Documentation/arch/x86/x86_64/mm.rst) begins at a multiple of 1 GiB, at
// lowestMap4 or above it, or at lowestMap5 with five levels of page tables. The page tables themselves are in it.
const (
	lowestMap4 = 0xffff888000000000
	lowestMap5 = 0xff11000000000000
	half4      = 0xffff800000000000 // where the kernel's half begins with four levels
	mapStep    = 1 << 30
	maxMap     = 1 << 46 // bytes of physical addresses: 64 TiB, what four levels have room for
	pageBytes  = 4096
	proofWords = 8 // that must be right, at random places
)

// addressBits are what of an entry of a page table may be a physical address. With encrypted memory (AMD SME and SEV) one of
// the bits, 51 or 47, says that a page is encrypted.
var addressBits = []uint64{
	1<<52 - pageBytes,
	1<<51 - pageBytes,
	1<<52 - pageBytes - 1<<47,
}

// errNoDirectMap: memory cannot be read in place here.
var errNoDirectMap = errors.New("no direct map found that gives what our own memory holds")

// findDirectMap proves where the kernel has its direct map: memory of our own is read there, by bpf/prove.bpf.c, and must be
// what we wrote. The error wraps errNoDirectMap, or says that the kernel cannot load the program (before 6.2).
func findDirectMap() (*bpf.TraceDirectMap, error) {
	spec, err := bpf.LoadProve()
	if err != nil {
		return nil, fmt.Errorf("read the compiled program: %w", err)
	}
	var objs bpf.ProveObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return nil, fmt.Errorf("load the program that reads memory in place: %w", err)
	}
	defer objs.Close()
	page, err := unix.Mmap(-1, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("get a page: %w", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	_, _ = rand.Read(page) // never fails
	runtime.LockOSThread() // the program reads the memory of whoever runs it; all threads share it
	defer runtime.UnlockOSThread()
	return searchDirectMap(&objs, page)
}

// searchDirectMap tries the places where the map can begin: below the page tables of this process, which lie in it.
func searchDirectMap(objs *bpf.ProveObjects, page []byte) (*bpf.TraceDirectMap, error) {
	if _, err := readInPlace(objs, bpf.ProveDirectMap{}, page, 0); err != nil {
		return nil, err
	}
	var tables uint64
	if err := objs.Tables.Get(&tables); err != nil {
		return nil, fmt.Errorf("find the page tables: %w", err)
	}
	d, lowest := bpf.ProveDirectMap{Levels: 4}, uint64(lowestMap4)
	if tables < half4 {
		d.Levels, lowest = 5, lowestMap5
	}
	for _, d.Mask = range addressBits {
		highest := tables &^ (mapStep - 1)
		for d.Base = highest; d.Base >= lowest && highest-d.Base < maxMap; d.Base -= mapStep {
			right, err := proveDirectMap(objs, d, page)
			if err != nil {
				return nil, err
			}
			if right {
				return &bpf.TraceDirectMap{Base: d.Base, Mask: d.Mask, Levels: d.Levels}, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: page tables at %#x", errNoDirectMap, tables)
}

// proveDirectMap compares words of a page with what is read in place.
func proveDirectMap(objs *bpf.ProveObjects, d bpf.ProveDirectMap, page []byte) (bool, error) {
	for i := range proofWords {
		at := i * (len(page) / proofWords)
		word, err := readInPlace(objs, d, page, at)
		if err != nil || word != binary.LittleEndian.Uint64(page[at:]) {
			return false, err
		}
	}
	return true, nil
}

// readInPlace gives the word at an offset of a page as the program reads it; 0: it found none.
func readInPlace(objs *bpf.ProveObjects, d bpf.ProveDirectMap, page []byte, at int) (word uint64, err error) {
	var found uint32
	for _, err := range []error{
		objs.Candidate.Set(d), objs.Wanted.Set(uint64(uintptr(unsafe.Pointer(&page[at])))), objs.Word.Set(uint64(0)),
	} {
		if err != nil {
			return 0, fmt.Errorf("set what is to be proved: %w", err)
		}
	}
	if _, err := objs.Prove.Run(&ebpf.RunOptions{Context: make([]byte, 64)}); err != nil {
		return 0, fmt.Errorf("run the program that reads memory in place: %w", err)
	}
	if err := objs.Found.Get(&found); err != nil || found == 0 {
		return 0, err
	}
	err = objs.Word.Get(&word)
	return word, err
}
