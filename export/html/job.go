// SPDX-License-Identifier: Apache-2.0

package html

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"

	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/event"
)

// JobInput is what WriteJob shows.
type JobInput struct {
	Title     string // one line
	Verdicts  []JobVerdict
	Processes []JobProcess
	When      string      // of what the rows are: "in use at the end"
	Lines     []ranks.Row // over all processes, the largest first
	Holders   []ranks.Row // likewise; nil: not known
}

// JobVerdict is the verdict on some processes of a job.
type JobVerdict struct {
	Kind       VerdictKind
	Word, Text string
	Notes      []string // what is known beside it
}

// JobProcess is a process of a job. Sizes are bytes.
type JobProcess struct {
	Name    string // "rank 0, pid 4711 train.py"
	Link    string // address of its page, from that of the job; empty: there is none
	Verdict string // a sentence; empty: there is none
	Devices []JobDevice
}

// JobDevice is what a process has on a device.
type JobDevice struct {
	Device               string
	Live, Peak, Reserved uint64 // bytes; event.Unknown
}

// jobTable is the largest rows over all processes.
type jobTable struct {
	Title, Column string
	Rows          []ranks.Row
}

// jobRows is how many rows a table of a job has.
const jobRows = 15

type jobPage struct {
	Title, Policy string
	Style         template.HTML
	Verdicts      []JobVerdict
	Processes     []JobProcess
	Bytes         uint64
	Tables        []jobTable
}

// WriteJob writes the page of a job of several processes: the verdict, what is largest over all of them, and each
// with a link to its own page. It has no script.
func WriteJob(w io.Writer, in JobInput) error {
	style, err := files.ReadFile("page/page.css")
	if err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	t, err := template.New("job.html").Funcs(template.FuncMap{"bytes": sizeText, "exact": exactText, "count": countText,
		"share": shareText}).ParseFS(files, "page/job.html", "page/head.html")
	if err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	p := jobPage{Title: printable(in.Title), Policy: policy(style, nil), Style: element("<style>", style, "</style>"), Verdicts: in.Verdicts,
		Processes: in.Processes}
	for i := range p.Verdicts {
		v := &p.Verdicts[i]
		v.Text = printable(v.Text)
		for k := range v.Notes {
			v.Notes[k] = printable(v.Notes[k])
		}
	}
	for i := range in.Processes {
		q := &p.Processes[i]
		q.Name, q.Verdict = printable(q.Name), printable(q.Verdict)
		for _, d := range q.Devices {
			if d.Live != event.Unknown {
				p.Bytes += d.Live
			}
		}
	}
	for _, table := range []jobTable{{"Lines of all processes, " + in.When, "Line", in.Lines},
		{"Holders of all processes, " + in.When, "Holder", in.Holders}} {
		table.Rows = slices.Clone(table.Rows[:min(jobRows, len(table.Rows))])
		for i := range table.Rows {
			r := &table.Rows[i]
			r.Name, r.Source = printable(r.Name), printable(r.Source)
		}
		if len(table.Rows) > 0 {
			p.Tables = append(p.Tables, table)
		}
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	return nil
}

// shareText is a part of all, as package table writes it.
func shareText(v float64) string {
	p := 100 * v
	switch {
	case p > 0 && p < 1:
		return "<1 %"
	case p >= 99.5 && p < 100:
		return ">99 %"
	}
	return fmt.Sprintf("%.0f %%", p)
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
	for ; v >= 999.95 && unit < 5; unit++ {
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
