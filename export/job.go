// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
)

// JobPageName is the page of a job, beside the folders of its processes.
const JobPageName = "report.html"

// JobProcess is a process of a job, at the end of its recording.
type JobProcess struct {
	ranks.Identity
	Name   string         // "rank 0, pid 4711 train.py"
	Folder string         // of its results, in that of the job's
	Answer *answer.Answer // nil: nothing is concluded
	View   *view.View
	Held   []table.HeldInput
}

// JobAnswer returns what is concluded of a job, from what is concluded of each of its processes.
func JobAnswer(all []JobProcess) *answer.Job {
	var processes []answer.Process
	for i := range all {
		processes = append(processes, answer.Process{Identity: all[i].Identity, Answer: all[i].Answer})
	}
	return answer.NewJob(processes)
}

// endedBelow is how often as large the peaks of a job must be as what is in use at the end for its processes to have freed what they had.
const endedBelow = 2

// jobTables are the largest lines and holders over all processes, and of when they are. Holders are those of the end; nil: not known.
func jobTables(all []JobProcess, growing bool) (when string, lines, holders []ranks.Row) {
	when = "in use at the end"
	var ids []ranks.Identity
	var end, peak uint64
	for i := range all {
		ids = append(ids, all[i].Identity)
		end, peak = end+all[i].View.Total(), peak+all[i].View.AtPeak().Total()
	}
	ended := !growing && peak > endedBelow*end
	if ended {
		when = "in use at the peak of each process"
	}
	var byLine, byHolder []ranks.Part
	for i := range all {
		v := all[i].View
		if ended {
			v = v.AtPeak()
		}
		for _, r := range view.GroupRows(v.Rows(), view.ByLine) {
			byLine = append(byLine, ranks.Part{Process: i, Name: strings.TrimSpace(r.Name + " " + r.Func), Source: r.Source,
				Bytes: uint64(max(0, r.Bytes)), Blocks: r.Blocks})
		}
		byHolder = append(byHolder, heldParts(i, all[i].Held)...)
	}
	if !ended {
		holders = ranks.Rows(byHolder, ids)
	}
	return when, ranks.Rows(byLine, ids), holders
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

// WriteJobPage writes the page of a job, whose results are in dir, with write: what is concluded of it, and its
// processes with links to their pages. A job of one process has the page of that. Where no process has a page, the
// job has none.
func WriteJobPage(dir string, all []JobProcess, job *answer.Job, write func(name string, content func(io.Writer) error) error) error {
	if len(all) == 1 {
		return writeOnlyPage(filepath.Join(dir, all[0].Folder, JobPageName), write)
	}
	in := html.JobInput{Title: fmt.Sprintf("GPU memory of a job of %s", table.Plural(uint64(len(all)), "process"))}
	if job == nil {
		job = JobAnswer(all)
	}
	in.When, in.Lines, in.Holders = jobTables(all, job.All.Growing())
	for i, t := range verdict.OfJob(job) {
		v := html.JobVerdict{Kind: verdictKinds[t.Word], Word: t.Word, Text: t.Text}
		for _, n := range t.Notes {
			v.Notes = append(v.Notes, n.Name+": "+n.Text)
		}
		if a := job.Groups[i].Answer; t.Word == verdict.Growing {
			v.Notes = append(v.Notes, findingNotes(&a.Leaks.Findings[0])...)
		}
		in.Verdicts = append(in.Verdicts, v)
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

// writeOnlyPage writes the page of the only process of a job, which needs no other file, as that of the job.
func writeOnlyPage(path string, write func(name string, content func(io.Writer) error) error) error {
	page, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("page of the job: %w", err)
	}
	defer page.Close()
	return write(JobPageName, func(w io.Writer) error {
		if _, err := io.Copy(w, page); err != nil {
			return fmt.Errorf("page of the job: %w", err)
		}
		return nil
	})
}

// findingNotes is what is known of a finding beside its size.
func findingNotes(f *leaks.Finding) (out []string) {
	if f.Holder != "" {
		out = append(out, "held by "+table.LeakHolder(f))
	}
	if a := f.Advice(); a != "" {
		out = append(out, a)
	}
	return out
}

func jobProcess(p *JobProcess) html.JobProcess {
	out := html.JobProcess{Name: p.Name}
	out.Verdict = sentenceOf(p.Answer)
	for i := range p.View.Snapshot.Accounts {
		a := &p.View.Snapshot.Accounts[i]
		out.Devices = append(out.Devices, html.JobDevice{Device: a.Device.String(), Live: a.Allocated, Peak: a.Peak, Reserved: a.Reserved})
	}
	if len(out.Devices) == 0 {
		out.Devices = []html.JobDevice{{Device: "-", Live: event.Unknown, Peak: event.Unknown, Reserved: event.Unknown}}
	}
	return out
}
