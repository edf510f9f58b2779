// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
)

// JobInput is the input of PrintJob.
type JobInput struct {
	Job       *answer.Job
	Processes int
	Counted   table.JobInput // a row for each process and device, and the losses
	Screen    Screen
	Page      string // path of the page; empty: none
}

// shownGroups is the maximum number of verdicts on processes.
const shownGroups = 4

// PrintJob prints the answer for a job of several processes in the form of Print: which processes grow or failed, what
// holds the memory of all, and a line for each process.
func PrintJob(w io.Writer, in *JobInput) error {
	out := bufio.NewWriter(w)
	p := &printer{w: out, in: &table.Input{Start: max(1, in.Job.All.Start)}, screen: in.Screen, a: in.Job.All, of: &Input{Page: in.Page},
		several: true}
	p.jobHead(in)
	texts := verdict.OfJob(in.Job)
	for i := range texts[:min(shownGroups, len(texts))] {
		p.said(&texts[i])
	}
	if more := len(texts) - shownGroups; more > 0 {
		p.text("", dim, fmt.Sprintf("and %s of other processes: see their own reports", table.Plural(uint64(more), "verdict")))
	}
	p.rows()
	p.rest()
	p.totals()
	fmt.Fprintln(p.w)
	err := out.Flush()
	counted := in.Counted
	counted.Width = in.Screen.Width
	if err = errors.Join(err, table.Job(w, counted)); err != nil {
		return fmt.Errorf("print the answer of a job: %w", err)
	}
	p.where()
	return out.Flush()
}

// jobHead prints how many processes were recorded, on which devices and for how long.
func (p *printer) jobHead(in *JobInput) {
	left := fmt.Sprintf("gputrace  job of %s%s", table.Plural(uint64(in.Processes), "process"), p.devices())
	right := table.Duration(in.Counted.Duration) + ", "
	if lost := in.Counted.Lost(); lost > 0 && lost != event.Unknown {
		right += table.Plural(lost, "event") + " lost"
	} else {
		right += "complete"
	}
	gap := p.screen.width() - visible(left) - len(right)
	if gap < 2 {
		fmt.Fprintf(p.w, "%s\n  %s\n", left, right)
		return
	}
	fmt.Fprintf(p.w, "%s%s%s\n", left, strings.Repeat(" ", gap), right)
}
