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
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// Columns and limits of the table of a job's processes.
const (
	rankCategories = 6
	rankSkews      = 4
)

// Ranks prints the processes of a job, each at its own peak: a row each, a column for each category, and below what is to be said of them.
// width is that of the screen, characters; 0: 80.
func Ranks(w io.Writer, t *ranks.Table, width int) error {
	out := bufio.NewWriter(w)
	p := &printer{Printer: layout.Printer{W: out, Width: width}}
	categories := t.Categories[:min(len(t.Categories), rankCategories)]
	head := append([]string{"at the peak", ranks.Total}, categories...)
	var rows [][]string
	for i := range t.Processes {
		x := &t.Processes[i]
		row := []string{words.Line(x.Name), Bytes(uint64(max(0, x.Peak)))}
		for _, c := range categories {
			row = append(row, Bytes(uint64(max(0, x.Categories[c]))))
		}
		rows = append(rows, append(row, Bytes(uint64(max(0, x.Live)))))
	}
	p.Grid(append(head, "at the end"), rows, 1)
	p.line("")
	p.rankNotes(t)
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the ranks: %w", err)
	}
	return nil
}

func (p *printer) rankNotes(t *ranks.Table) {
	for _, s := range t.Skews[:min(len(t.Skews), rankSkews)] {
		if s.Bytes > 0 {
			p.leakField("skew", fmt.Sprintf("%s: %s between %s, which has the most, and %s", s.Category, Bytes(uint64(s.Bytes)),
				t.Processes[s.Most].Name, t.Processes[s.Least].Name))
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
		has := "up to " + Bytes(uint64(g.Peak)) + " each and a context"
		if g.Peak == 0 {
			has = "a context each"
		}
		p.leakField("device", fmt.Sprintf("cuda:%d, which %s uses, is used by %s too: opened at %s, %s, which takes some hundred MiB by itself",
			g.Device, t.Processes[g.Owner].Name, namesText(t, g.Processes), words.Line(g.Site), has))
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
