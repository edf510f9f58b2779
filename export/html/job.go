// SPDX-License-Identifier: Apache-2.0

package html

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"strconv"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/sorts"
)

// JobInput is what WriteJob shows.
type JobInput struct {
	Title     string // one line
	Processes []JobProcess
}

// JobProcess is a process of a job. Sizes are bytes.
type JobProcess struct {
	Name    string // "rank 0, pid 4711 python train.py"
	Link    string // address of its page, from that of the job; empty: there is none
	Verdict string // a sentence; empty: there is none
	Devices []JobDevice
	Lines   []JobRow
	Holders []JobRow
}

// JobDevice is what a process has on a device.
type JobDevice struct {
	Device               string
	Live, Peak, Reserved uint64 // bytes; event.Unknown
}

// JobRow is a line or a holder of a process.
type JobRow struct {
	Name          string
	Title         string // more of it
	Bytes, Blocks uint64
}

// jobTable is the largest rows over all processes.
type jobTable struct {
	Title, Column string
	Rows          []jobRow
}

type jobRow struct {
	JobRow
	Share     string
	Processes int
}

// jobRows is how many rows a table of a job has.
const jobRows = 15

type jobPage struct {
	Title, Policy string
	Style         template.HTML
	Processes     []JobProcess
	Bytes         uint64
	Tables        []jobTable
}

// WriteJob writes the page of a job of several processes: each with a link to its own page, and what is largest over all of them. It has no
// script.
func WriteJob(w io.Writer, in JobInput) error {
	style, err := files.ReadFile("page/page.css")
	if err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	t, err := template.New("job.html").Funcs(template.FuncMap{"bytes": sizeText, "exact": exactText, "count": countText}).ParseFS(files, "page/job.html", "page/head.html")
	if err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	p := jobPage{Title: printable(in.Title), Policy: policy(style, nil), Style: element("<style>", style, "</style>"), Processes: in.Processes}
	for i := range in.Processes {
		q := &p.Processes[i]
		q.Name, q.Verdict = printable(q.Name), printable(q.Verdict)
		for _, d := range q.Devices {
			if d.Live != event.Unknown {
				p.Bytes += d.Live
			}
		}
	}
	for _, table := range []struct {
		title, column string
		of            func(q *JobProcess) []JobRow
	}{
		{"Lines of all processes", "Line", func(q *JobProcess) []JobRow { return q.Lines }},
		{"Holders of all processes", "Holder", func(q *JobProcess) []JobRow { return q.Holders }},
	} {
		if rows := mergeRows(in.Processes, table.of); len(rows) > 0 {
			p.Tables = append(p.Tables, jobTable{table.title, table.column, rows})
		}
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	return nil
}

// mergeRows adds up rows of the same name, the largest first.
func mergeRows(processes []JobProcess, of func(q *JobProcess) []JobRow) []jobRow {
	index, all := map[string]int{}, uint64(0)
	var out []jobRow
	for i := range processes {
		for _, r := range of(&processes[i]) {
			at, ok := index[r.Name]
			if !ok {
				at = len(out)
				index[r.Name] = at
				out = append(out, jobRow{JobRow: JobRow{Name: printable(r.Name), Title: printable(r.Title)}})
			}
			out[at].Bytes, out[at].Blocks = out[at].Bytes+r.Bytes, out[at].Blocks+r.Blocks
			out[at].Processes++
			all += r.Bytes
		}
	}
	sorts.Func(out, func(x, y jobRow) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name)) })
	for i := range out {
		out[i].Share = fmt.Sprintf("%.1f %%", 100*float64(out[i].Bytes)/float64(max(1, all)))
	}
	return out[:min(jobRows, len(out))]
}

// sizeText is bytes in binary units, as the page's script writes them.
func sizeText(n uint64) string {
	if n == event.Unknown {
		return "unknown"
	}
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for ; v >= 1023.95 && unit < 5; unit++ {
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[unit])
}

func exactText(n uint64) string {
	if n == event.Unknown {
		return "unknown"
	}
	return countText(n) + " B"
}

func countText(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
