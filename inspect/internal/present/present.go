// SPDX-License-Identifier: Apache-2.0

// Package present lists the memory of a process that may be read, and its pages that are present.
package present

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/process"
)

const (
	// PageShift is the binary logarithm of the size of our pages, bytes.
	PageShift = 12
	// MaxAddress is above all addresses that a process maps unless it asks for more (47 bits on x86-64, mm.rst; 48 on arm64, memory.rst).
	MaxAddress = 1 << 48

	// maxMapped bounds the address space whose pages are looked up, bytes: a mapping may be far larger than what is used.
	maxMapped = 1 << 40
	// pagemapEntry is the size of an entry of /proc/PID/pagemap, and what its bits say
	// (Documentation/admin-guide/mm/pagemap.rst).
	pagemapEntry   = 8
	pagemapPresent = 1<<63 | 1<<62 // in memory, or swapped out
)

// Region is a range of addresses that may be read.
type Region struct {
	Start, End uint64
	// Heap: private memory that the program writes, where objects are. Otherwise data of a library.
	Heap  bool
	Exec  bool
	Stack bool   // of the main thread
	File  string // of the mapping; empty for memory without one
}

// Regions picks the mappings that may be read: private memory and data of libraries. Devices and other special files
// are never touched, and neither is memory that is shared.
func Regions(maps []process.Mapping) []Region {
	libraries := map[string]bool{}
	for i := range maps {
		if maps[i].Exec && maps[i].Inode != 0 {
			libraries[maps[i].Path] = true
		}
	}
	var out []Region
	for i := range maps {
		m := &maps[i]
		if m.Shared || m.End > MaxAddress || special(m.Path) {
			continue
		}
		switch {
		case m.Inode == 0 && m.Writable:
			out = append(out, Region{Start: m.Start, End: m.End, Heap: true, Stack: strings.HasPrefix(m.Path, "[stack")})
		case m.Inode != 0 && libraries[m.Path]:
			out = append(out, Region{Start: m.Start, End: m.End, Heap: m.Writable, Exec: m.Exec, File: m.Path})
		}
	}
	slices.SortFunc(out, func(a, b Region) int { return cmp.Compare(a.Start, b.Start) })
	return out
}

// special tells what lies behind a mapping by its name: device files, the kernel's own pages, memory of other kinds.
func special(path string) bool {
	if strings.HasPrefix(path, "[") {
		return path != "[heap]" && !strings.HasPrefix(path, "[stack") && !strings.HasPrefix(path, "[anon")
	}
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "anon_inode:") || strings.HasPrefix(path, "/SYSV") ||
		strings.HasPrefix(path, "/dmabuf") || strings.HasPrefix(path, "socket:") || strings.HasPrefix(path, "/memfd:")
}

// Run is neighbouring pages that are present: the address of the first, and how many.
type Run struct{ Addr, Pages uint64 }

// Runs lists the present pages of the heap regions, by address.
func Runs(p *process.Process, regions []Region) (runs []Run, notes []string, err error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.Thread()) + "/pagemap")
	if errors.Is(err, fs.ErrPermission) { // the file is its user's own (proc(5))
		err = fmt.Errorf("%w: %w: it takes root or, for another user's process, CAP_DAC_READ_SEARCH", process.ErrPermission, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read which pages of pid %d are present: %w", p.PID, err)
	}
	defer f.Close()
	budget := uint64(maxMapped)
	buffer := make([]byte, 1<<20)
	for _, r := range regions {
		if !r.Heap {
			continue
		}
		if r.End-r.Start > budget {
			notes = append(notes, fmt.Sprintf("%d GiB of mapped memory at %#x were left out: too much to look through", (r.End-r.Start)>>30,
				r.Start))
			continue
		}
		budget -= r.End - r.Start
		runs = appendRuns(runs, f, r, buffer, uint64(os.Getpagesize()))
	}
	return runs, notes, nil
}

// appendRuns adds the runs of a region. The pagemap has an entry for each page of the kernel, which is one of ours or more. A part of it
// that cannot be read counts as not present: it was unmapped.
func appendRuns(runs []Run, pagemap io.ReaderAt, r Region, buffer []byte, kernelPage uint64) []Run {
	for at := r.Start; at < r.End; {
		n := min((r.End-at)/kernelPage, uint64(len(buffer)/pagemapEntry))
		got, _ := pagemap.ReadAt(buffer[:n*pagemapEntry], int64(at/kernelPage*pagemapEntry))
		for i := range uint64(got / pagemapEntry) {
			if binary.LittleEndian.Uint64(buffer[i*pagemapEntry:])&pagemapPresent == 0 {
				continue
			}
			addr := at + i*kernelPage
			if last := len(runs) - 1; last >= 0 && runs[last].Addr+runs[last].Pages<<PageShift == addr {
				runs[last].Pages += kernelPage >> PageShift
			} else {
				runs = append(runs, Run{addr, kernelPage >> PageShift})
			}
		}
		at += n * kernelPage
	}
	return runs
}

// Pages is how many pages the runs have.
func Pages(runs []Run) (n uint64) {
	for _, r := range runs {
		n += r.Pages
	}
	return n
}
