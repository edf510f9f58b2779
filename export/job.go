// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
)

// JobPageName is the page of a job, beside the folders of its processes.
const JobPageName = "report.html"

// JobProcess is a process of a job, at the end of its recording.
type JobProcess struct {
	Name    string // "rank 0, pid 4711 python train.py"
	Folder  string // of its results, in that of the job's
	Verdict string // as the recording has it; its first line is shown
	View    *view.View
	Held    []table.HeldInput
}

// jobLines is of how many lines and holders of each process a job's page is made.
const jobLines = 1000

// WriteJobPage writes the page of a job, whose results are in dir, with write: its processes with links to their pages, and the largest lines
// and holders over all of them. Where no process has a page, the job has none.
func WriteJobPage(dir string, all []JobProcess, write func(name string, content func(io.Writer) error) error) error {
	in := html.JobInput{Title: fmt.Sprintf("GPU memory of a job of %d processes", len(all))}
	pages := 0
	for i := range all {
		p := jobProcess(&all[i])
		if _, err := os.Stat(filepath.Join(dir, all[i].Folder, JobPageName)); err == nil {
			p.Link = path.Join(all[i].Folder, JobPageName)
			pages++
		}
		in.Processes = append(in.Processes, p)
	}
	if pages == 0 {
		return nil
	}
	return write(JobPageName, func(w io.Writer) error { return html.WriteJob(w, in) })
}

func jobProcess(p *JobProcess) html.JobProcess {
	verdict, _, _ := strings.Cut(p.Verdict, "\n")
	out := html.JobProcess{Name: p.Name, Verdict: verdict}
	for i := range p.View.Snapshot.Accounts {
		a := &p.View.Snapshot.Accounts[i]
		out.Devices = append(out.Devices, html.JobDevice{Device: a.Device.String(), Live: a.Allocated, Peak: a.Peak, Reserved: a.Reserved})
	}
	if len(out.Devices) == 0 {
		out.Devices = []html.JobDevice{{Device: "-", Live: event.Unknown, Peak: event.Unknown, Reserved: event.Unknown}}
	}
	for _, r := range p.View.ByPython(jobLines).Rows {
		out.Lines = append(out.Lines, html.JobRow{Name: strings.TrimSpace(r.Name + " " + r.Func), Title: r.Source, Bytes: uint64(r.Bytes), Blocks: r.Blocks})
	}
	holders := map[string]int{}
	for _, h := range p.Held {
		if h.Title != table.HeldNow || h.Joined == nil {
			continue
		}
		for _, r := range h.Joined.Rows {
			at, ok := holders[r.Name]
			if !ok {
				at = len(out.Holders)
				holders[r.Name] = at
				out.Holders = append(out.Holders, html.JobRow{Name: r.Name})
			}
			out.Holders[at].Bytes, out.Holders[at].Blocks = out.Holders[at].Bytes+r.Bytes, out.Holders[at].Blocks+r.Blocks
		}
	}
	return out
}
