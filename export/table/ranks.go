// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/internal/words"
)

// The columns of the processes of a job.
const (
	rankNameWidth  = 24
	rankBytesWidth = 11
	rankColumns    = (maxWidth - rankNameWidth) / (rankBytesWidth + 1)
	rankSkews      = 4 // shown
)

// Ranks prints the processes of a job, each at its own peak: a row each, a column for each category, and below what is to be said of them.
func Ranks(w io.Writer, t *ranks.Table) error {
	out := bufio.NewWriter(w)
	p := &printer{w: out}
	categories := t.Categories[:min(len(t.Categories), rankColumns-2)]
	head := append([]string{"at the peak", ranks.Total}, categories...)
	p.rankRow(append(head, "at the end")...)
	for i := range t.Processes {
		x := &t.Processes[i]
		row := []string{x.Name, Bytes(uint64(max(0, x.Peak)))}
		for _, c := range categories {
			row = append(row, Bytes(uint64(max(0, x.Categories[c]))))
		}
		p.rankRow(append(row, Bytes(uint64(max(0, x.Live))))...)
	}
	p.line("")
	p.rankNotes(t)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the ranks: %w", err)
	}
	return nil
}

func (p *printer) rankRow(cells ...string) {
	text := Fit(cells[0], rankNameWidth)
	for _, c := range cells[1:] {
		text += fmt.Sprintf(" %*s", rankBytesWidth, Fit(c, min(rankBytesWidth, len([]rune(c)))))
	}
	p.line("%s", text)
}

func (p *printer) rankNotes(t *ranks.Table) {
	for _, s := range t.Skews[:min(len(t.Skews), rankSkews)] {
		if s.Bytes > 0 {
			p.leakField("skew", fmt.Sprintf("%s: %s between %s, which has the most, and %s", s.Category, Bytes(uint64(s.Bytes)), t.Processes[s.Most].Name, t.Processes[s.Least].Name))
		}
	}
	if len(t.Skews) > 0 && !slices.ContainsFunc(t.Skews, func(s ranks.Skew) bool { return s.Bytes > 0 }) {
		p.leakField("skew", "none: all have the same in each category")
	}
	if len(t.Missing) > 0 {
		p.leakField("missing", fmt.Sprintf("of %d ranks: %s", t.World, numbersText(t.Missing)))
	}
	for i := range t.Guests {
		g := &t.Guests[i]
		p.leakField("device", fmt.Sprintf("cuda:%d, which %s uses, is used by %s too: opened at %s, for up to %s each and the context, some hundred MiB",
			g.Device, t.Processes[g.Owner].Name, namesText(t, g.Processes), words.Line(g.Site), Bytes(uint64(g.Peak))))
	}
	for n, i := range t.Growing {
		x := &t.Processes[i]
		text := x.Name + ": " + LeakText(&x.Leaks.Findings[0])
		if lead, ok := t.Lead(); n == 0 && ok {
			text += fmt.Sprintf("; %.3f s before the next", lead.Seconds())
		}
		if n == 0 && len(t.Growing) > 1 {
			text = "first " + text
		}
		p.leakField("growing", text)
	}
}

// shownNumbers is how many ranks are listed.
const shownNumbers = 16

func numbersText(all []int) string { return listText(all, strconv.Itoa) }

func namesText(t *ranks.Table, all []int) string {
	return listText(all, func(n int) string { return t.Processes[n].Name })
}

func listText(all []int, name func(int) string) string {
	var out []string
	for _, n := range all[:min(len(all), shownNumbers)] {
		out = append(out, name(n))
	}
	text := strings.Join(out, ", ")
	if more := len(all) - shownNumbers; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
