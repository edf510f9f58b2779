// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/heap"
)

// JobInput is what Job prints.
type JobInput struct {
	Duration time.Duration  // of the recording
	Hits     []figures.Hits // of every probe, by all processes
	Received uint64         // events, of all processes
	// LostAfter is events that were lost when the recording was over: of Hits.
	LostAfter uint64
	Rows      []JobRow
	Width     int // of the screen, characters; 0: 80
}

// Lost returns how many events were lost until the end; event.Unknown: that is not known.
func (in *JobInput) Lost() uint64 { return upToEnd(Lost(in.Hits), in.LostAfter) }

// JobRow is a process on one device. Bytes are event.Unknown where they are not known.
type JobRow struct {
	Process   string // "rank 0, pid 4711 python train.py"
	Device    string // "cuda:0"; "-": it has used none
	Live      uint64 // of the caching allocator at the end, bytes
	Peak      uint64 // likewise, the highest
	Reserved  uint64 // bytes of its segments
	Other     uint64 // device memory that is not the caching allocator's, bytes
	Allocated uint64 // allocations of the caching allocator
}

func several(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "es"
}

// JobRows makes the rows of a process.
func JobRows(process string, b *heap.Totals) []JobRow {
	var out []JobRow
	for i := range b.Accounts {
		a := &b.Accounts[i]
		out = append(out, JobRow{
			Process: process, Device: a.Device.String(), Live: a.Allocated, Peak: a.Peak, Reserved: a.Reserved,
			Other: otherOn(b, &a.Device), Allocated: a.Allocs,
		})
	}
	switch {
	case out == nil && b.LossIntervalCount > 0: // it may have used any
		out = []JobRow{{Process: process, Device: "-", Live: event.Unknown, Peak: event.Unknown, Reserved: event.Unknown, Other: event.Unknown}}
	case out == nil:
		out = []JobRow{{Process: process, Device: "-", Other: otherOn(b, nil)}}
	}
	return out
}

// otherOn is what is not the caching allocator's on a device; nil: on all.
func otherOn(b *heap.Totals, on *event.Device) (n uint64) {
	for i := range b.Drivers {
		if d := &b.Drivers[i]; d.Layer == event.LayerDevice && (on == nil || d.Device == *on) {
			n += d.Live.Bytes - d.Segments.Bytes
		}
	}
	return n
}

// mostProcess is how much of a command line is shown, characters.
const mostProcess = 52

// Job prints a line for each process of a job, and their total.
func Job(w io.Writer, in JobInput) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	var sum JobRow
	var rows [][]string
	processes := map[string]bool{}
	for i := range in.Rows {
		r := &in.Rows[i]
		processes[r.Process] = true
		rows = append(rows, []string{
			strings.TrimRight(layout.Fit(r.Process, min(mostProcess, utf8.RuneCountInString(r.Process))), " "), r.Device, Bytes(r.Live),
			Bytes(r.Peak), Bytes(r.Reserved), Bytes(r.Other),
			countText(r.Allocated),
		})
		sum.Live, sum.Reserved = plus(sum.Live, r.Live), plus(sum.Reserved, r.Reserved)
		sum.Other, sum.Allocated = plus(sum.Other, r.Other), sum.Allocated+r.Allocated
	}
	rows = append(rows, []string{
		fmt.Sprintf("total of %d %s", len(processes), several("process", len(processes))), "", Bytes(sum.Live), "", Bytes(sum.Reserved),
		Bytes(sum.Other), countText(sum.Allocated),
	})
	p.Grid([]string{"process", "device", "torch", "peak", "reserved", "other", "blocks"}, rows, 2)
	p.jobHits(&in)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the processes: %w", err)
	}
	return nil
}

// JobHits prints what became of the hits of a job, where only one of its processes used the GPU: below the Summary of that.
func JobHits(w io.Writer, in JobInput) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: in.Width}}
	p.jobHits(&in)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the hits: %w", err)
	}
	return nil
}

func (p *printer) jobHits(in *JobInput) {
	t := totalHits(in.Hits)
	p.line("")
	p.field("job", "%s", equation(&t))
	for _, wrong := range imbalances(in.Hits, in.Received) {
		p.field("", "%s", wrong)
	}
	p.field("lost", "%s", orNone(Plural(upToEnd(total(t.Dropped), in.LostAfter), "event"), reasonsText(t.Dropped)))
	p.lostAfter(in.LostAfter)
}
