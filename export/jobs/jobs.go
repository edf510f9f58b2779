// SPDX-License-Identifier: Apache-2.0

// Package jobs prints what a job of many processes says first: which of them grow, and the largest lines and holders over all.
package jobs

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// Answer is what a job says first.
type Answer struct {
	Verdicts []Verdict
	When     string      // of what the rows are: "in use at the end"
	Lines    []ranks.Row // over all processes, the largest first
	Holders  []ranks.Row // likewise; nil: not known
}

// Verdict is the verdict on some processes of a job.
type Verdict struct {
	Word    string // "GROWING"
	Text    string // "ranks 0-3: train.py:41 main keeps 2.0 MiB more each step"
	Finding *leaks.Finding
}

// Notes is what is known beside a verdict; nil: nothing.
func (v *Verdict) Notes() (out []string) {
	if v.Finding == nil {
		return nil
	}
	if v.Finding.Holder != "" {
		out = append(out, "held by "+table.LeakHolder(v.Finding))
	}
	if !math.IsNaN(v.Finding.Seconds) {
		out = append(out, "full in "+table.LeakLimit(v.Finding))
	}
	if a := v.Finding.Advice(); a != "" {
		out = append(out, a)
	}
	return out
}

// Print prints the answer on a screen of so many characters; 0: it is not known.
func Print(w io.Writer, a *Answer, width int) error {
	out := bufio.NewWriter(w)
	p := &printer{layout.Printer{W: out, Width: width}}
	for i := range a.Verdicts {
		v := &a.Verdicts[i]
		p.Wrap(v.Word+"  "+words.Line(v.Text), layout.FieldIndent)
		for _, note := range v.Notes() {
			p.Wrap(strings.Repeat(" ", layout.FieldIndent)+words.Line(note), layout.FieldIndent)
		}
	}
	p.shares(a.When+", by line", a.Lines)
	p.shares("by holder", a.Holders)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the answer of a job: %w", err)
	}
	return nil
}

type printer struct{ layout.Printer }

// shownShares is how many lines and holders of a job are printed, and leastShares the part of all that each must have.
const (
	shownShares = 5
	leastShares = 0.01
)

// shares prints the largest lines or holders of all processes, and which processes have them.
func (p *printer) shares(title string, rows []ranks.Row) {
	shown := rows[:min(shownShares, len(rows))]
	which := 0
	for i := range shown {
		if shown[i].Share < leastShares {
			shown = shown[:i]
			break
		}
		which = max(which, utf8.RuneCountInString(shown[i].Which))
	}
	if len(shown) == 0 {
		return
	}
	figures := func(bytes, share, of string) string { return fmt.Sprintf(" %10s %6s  %-*s", bytes, share, which, of) }
	width := len(figures("", "", ""))
	p.Plain("  " + layout.Pad(title, p.TableColumns()-layout.RowIndent-width) + figures("", "", ""))
	for i := range shown {
		r := &shown[i]
		l := layout.LabelOf(words.Line(r.Name))
		if l.Place == "" { // of a holder both ends tell
			l.Name = strings.TrimRight(layout.FitMiddle(l.Name, p.TableColumns()-layout.RowIndent-width), " ")
		}
		p.Row(l, figures(table.Bytes(r.Bytes), table.Share(r.Share), r.Which))
	}
}
