// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/gputrace/gputrace/process"
)

const (
	// maxMapped bounds the address space whose pages are looked up, bytes: a mapping may be far larger than what is used.
	maxMapped = 1 << 40
	// copyRun is how much is copied at once, bytes.
	copyRun = 4 << 20
	// pagemapEntry is the size of an entry of /proc/PID/pagemap, and what its bits say
	// (Documentation/admin-guide/mm/pagemap.rst).
	pagemapEntry   = 8
	pagemapPresent = 1<<63 | 1<<62 // in memory, or swapped out
)

// Run is neighbouring pages that are present: the address of the first, and how many.
type Run struct{ Addr, Pages uint64 }

// PresentRuns lists the present pages of the heap regions, by address.
func PresentRuns(p *process.Process, regions []Region) (runs []Run, notes []string, err error) {
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

// CountPages is how many pages the runs have.
func CountPages(runs []Run) (n uint64) {
	for _, r := range runs {
		n += r.Pages
	}
	return n
}

// CopyHeap reads the runs into the image until the time is over, and returns how many pages it has read.
func (im *Image) CopyHeap(runs []Run, over func() bool) (done uint64) {
	for _, r := range runs {
		for r.Pages > 0 {
			if over() || im.Over() {
				im.cut = true
				return done
			}
			n := min(r.Pages, copyRun>>PageShift)
			got := im.load(r.Addr, n)
			if got < n { // a page that was unmapped meanwhile
				im.miss(r.Addr + got<<PageShift)
				got++
			}
			r.Addr, r.Pages = r.Addr+got<<PageShift, r.Pages-got
			done += got
		}
	}
	im.whole = !over() && !im.Over()
	im.cut = !im.whole
	return done
}
