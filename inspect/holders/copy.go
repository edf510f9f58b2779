// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// run is neighbouring pages that are present.
type run struct{ addr, pages uint64 }

// presentRuns lists the present pages of the heap regions, by address.
func presentRuns(p *process.Process, regions []region) (runs []run, notes []string, err error) {
	f, err := os.Open("/proc/" + strconv.Itoa(p.PID) + "/pagemap")
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
		if !r.heap {
			continue
		}
		if r.end-r.start > budget {
			notes = append(notes, fmt.Sprintf("%d GiB of mapped memory at %#x were left out: too much to look through", (r.end-r.start)>>30, r.start))
			continue
		}
		budget -= r.end - r.start
		runs = appendRuns(runs, f, r, buffer)
	}
	return runs, notes, nil
}

// appendRuns adds the runs of a region. A part of the pagemap that cannot be read counts as not present: it was unmapped.
func appendRuns(runs []run, pagemap *os.File, r region, buffer []byte) []run {
	for at := r.start; at < r.end; {
		n := min((r.end-at)>>pageShift, uint64(len(buffer)/pagemapEntry))
		got, _ := pagemap.ReadAt(buffer[:n*pagemapEntry], int64(at>>pageShift*pagemapEntry))
		for i := range uint64(got / pagemapEntry) {
			if binary.LittleEndian.Uint64(buffer[i*pagemapEntry:])&pagemapPresent == 0 {
				continue
			}
			addr := at + i<<pageShift
			if last := len(runs) - 1; last >= 0 && runs[last].addr+runs[last].pages<<pageShift == addr {
				runs[last].pages++
			} else {
				runs = append(runs, run{addr, 1})
			}
		}
		at += n << pageShift
	}
	return runs
}

func countPages(runs []run) (n uint64) {
	for _, r := range runs {
		n += r.pages
	}
	return n
}

// copyHeap reads the runs into an image until the time is over, and returns how many pages it has read.
func (im *image) copyHeap(runs []run, over func() bool) (done uint64) {
	for _, r := range runs {
		for r.pages > 0 {
			if over() {
				im.cut = true
				return done
			}
			n := min(r.pages, copyRun>>pageShift)
			got := im.load(r.addr, n)
			if got < n { // a page that was unmapped meanwhile
				im.set(r.addr+got<<pageShift, pageAbsent)
				im.absent++
				got++
			}
			r.addr, r.pages = r.addr+got<<pageShift, r.pages-got
			done += got
		}
	}
	im.whole = !over()
	im.cut = !im.whole
	return done
}
