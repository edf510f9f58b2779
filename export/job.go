// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/jobs"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
)

// JobPageName is the page of a job, beside the folders of its processes.
const JobPageName = "report.html"

// JobProcess is a process of a job, at the end of its recording.
type JobProcess struct {
	ranks.Identity
	Name   string        // "rank 0, pid 4711 train.py"
	Folder string        // of its results, in that of the job's
	Leaks  *leaks.Report // nil: it was not judged
	View   *view.View
	Held   []table.HeldInput
}

// endedBelow is how often as large the peaks of a job must be as what is in use at the end for its processes to have freed what they had.
const endedBelow = 2

// JobAnswer is what a job says first: the verdict on each of its processes, and what holds the memory of all.
func JobAnswer(all []JobProcess) *jobs.Answer {
	out := &jobs.Answer{When: "in use at the end"}
	var ids []ranks.Identity
	var end, peak uint64
	for i := range all {
		ids = append(ids, all[i].Identity)
		end, peak = end+all[i].View.Total(), peak+all[i].View.AtPeak().Total()
	}
	out.Verdicts = jobVerdicts(all, ids)
	growing := len(out.Verdicts) > 0 && out.Verdicts[0].Finding != nil
	ended := !growing && peak > endedBelow*end
	if ended {
		out.When = "in use at the peak of each process"
	}
	var lines, holders []ranks.Part
	for i := range all {
		v := all[i].View
		if ended {
			v = v.AtPeak()
		}
		for _, r := range view.GroupRows(v.Rows(), view.ByLine) {
			lines = append(lines, ranks.Part{Process: i, Name: strings.TrimSpace(r.Name + " " + r.Func), Source: r.Source, Bytes: uint64(max(0, r.Bytes)), Blocks: r.Blocks})
		}
		holders = append(holders, heldParts(i, all[i].Held)...)
	}
	out.Lines = ranks.Rows(lines, ids)
	if !ended { // holders are of the end
		out.Holders = ranks.Rows(holders, ids)
	}
	return out
}

// heldParts is what holds the blocks of a process at the end.
func heldParts(process int, held []table.HeldInput) []ranks.Part {
	var out []ranks.Part
	for _, h := range held {
		if h.Title != table.HeldNow || h.Joined == nil {
			continue
		}
		for _, r := range h.Joined.Rows {
			out = append(out, ranks.Part{Process: process, Name: r.Name, Bytes: r.Bytes, Blocks: r.Blocks})
		}
	}
	return out
}

// jobVerdicts are the verdicts, the worst first: those that are the same of several processes are one.
func jobVerdicts(all []JobProcess, ids []ranks.Identity) []jobs.Verdict {
	var refused, steady, unclear []int
	grows := map[string][]int{}
	var names []string
	for i := range all {
		for _, a := range all[i].View.Snapshot.Accounts {
			if a.OOMs > 0 && (len(refused) == 0 || refused[len(refused)-1] != i) {
				refused = append(refused, i)
			}
		}
		switch r := all[i].Leaks; {
		case r == nil:
		case r.Verdict == leaks.Steady:
			steady = append(steady, i)
		case r.Verdict == leaks.Unclear:
			unclear = append(unclear, i)
		case r.Verdict == leaks.Growing:
			name := r.Findings[0].Name()
			if grows[name] == nil {
				names = append(names, name)
			}
			grows[name] = append(grows[name], i)
		}
	}
	var out []jobs.Verdict
	for _, name := range names {
		f := &all[grows[name][0]].Leaks.Findings[0]
		out = append(out, jobs.Verdict{Word: verdict.Growing, Text: ranks.Which(grows[name], ids) + ": " + table.LeakText(f), Finding: f})
	}
	if len(refused) > 0 {
		out = append(out, jobs.Verdict{
			Word: verdict.OutOfMemory, Text: ranks.Which(refused, ids) + ": a request was refused: gputrace oom, of the folder of the process, says why",
		})
	}
	switch {
	case len(out) > 0:
	case len(steady) == len(all):
		out = append(out, jobs.Verdict{Word: verdict.Steady, Text: fmt.Sprintf("nothing grew from step to step in any of %d processes", len(all))})
	case len(unclear) > 0:
		_, why, _ := strings.Cut(table.LeakSentence(all[unclear[0]].Leaks), ": ")
		out = append(out, jobs.Verdict{Word: verdict.Unknown, Text: ranks.Which(unclear, ids) + ": " + why})
	}
	return out
}

// WriteJobPage writes the page of a job, whose results are in dir, with write: the answer, and its processes with links to their pages. Where no
// process has a page, the job has none.
func WriteJobPage(dir string, all []JobProcess, write func(name string, content func(io.Writer) error) error) error {
	answer := JobAnswer(all)
	in := html.JobInput{Title: fmt.Sprintf("GPU memory of a job of %d processes", len(all)), When: answer.When, Lines: answer.Lines, Holders: answer.Holders}
	for i := range answer.Verdicts {
		v := &answer.Verdicts[i]
		in.Verdicts = append(in.Verdicts, html.JobVerdict{Kind: verdictKinds[v.Word], Word: v.Word, Text: v.Text, Notes: v.Notes()})
	}
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
	out := html.JobProcess{Name: p.Name}
	if p.Leaks != nil {
		out.Verdict = table.LeakSentence(p.Leaks)
	}
	for i := range p.View.Snapshot.Accounts {
		a := &p.View.Snapshot.Accounts[i]
		out.Devices = append(out.Devices, html.JobDevice{Device: a.Device.String(), Live: a.Allocated, Peak: a.Peak, Reserved: a.Reserved})
	}
	if len(out.Devices) == 0 {
		out.Devices = []html.JobDevice{{Device: "-", Live: event.Unknown, Peak: event.Unknown, Reserved: event.Unknown}}
	}
	return out
}
