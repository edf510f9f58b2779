// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// budget is how many instructions the verifier may look at for one program: it gives up at a million, and the kernels that cannot
// be booted here may need more than those that can.
const budget = 300_000

// print tells all of a kernel: for whom a check fails, what belongs to it.
func (r *result) print(w io.Writer) {
	fmt.Fprintf(w, "\n== Linux %s, %s\n", r.Release, r.Took.Round(time.Second))
	for _, name := range sortedKeys(r.Programs) {
		fmt.Fprintf(w, "   %-16s %9d verified instructions\n", name, r.Programs[name])
	}
	for _, c := range r.Checks {
		state := "ok  "
		if !c.OK {
			state = "FAIL"
		}
		fmt.Fprintf(w, "   %s  %-18s %4d s  %s\n", state, c.Name, c.Seconds, c.Detail)
		for _, line := range c.log {
			fmt.Fprintln(w, "         |", line)
		}
	}
}

// largest is the program that the verifier had most to do with.
func (r *result) largest() (name string, instructions int) {
	for n, i := range r.Programs {
		if i > instructions {
			name, instructions = n, i
		}
	}
	return name, instructions
}

// overBudget looks at the oldest and the newest kernel that took the programs.
func overBudget(w io.Writer, results []*result, enforced bool) (over bool) {
	loaded := slices.DeleteFunc(slices.Clone(results), func(r *result) bool { return len(r.Programs) == 0 })
	if len(loaded) == 0 {
		return false
	}
	for _, r := range []*result{loaded[0], loaded[len(loaded)-1]} {
		if name, n := r.largest(); n > budget {
			fmt.Fprintf(w, "\nLinux %s: %s takes %d verified instructions, more than %d\n", r.Release, name, n, budget)
			over = enforced
		}
	}
	return over
}

// header of the table, and its cells.
var header = []string{"Linux", "links", "memory is read", "verified instructions", "stacks complete", "checks"}

func (r *result) row() []string {
	row := []string{r.Release}
	for _, name := range []string{"link", "memory"} {
		row = append(row, orDash(r.Facts[name]))
	}
	_, n := r.largest()
	if n > 0 {
		row = append(row, fmt.Sprint(n))
	} else {
		row = append(row, "-")
	}
	return append(row, orDash(r.Facts["complete"]), r.verdict())
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// verdict names the checks that failed.
func (r *result) verdict() string {
	var names []string
	for _, c := range r.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	switch {
	case len(r.Checks) == 0:
		return "none made"
	case len(names) > 0:
		return "failed: " + strings.Join(names, ", ")
	case r.Series == tooOld:
		return "refused, as it should be"
	}
	return fmt.Sprintf("all %d hold", len(r.Checks))
}

// table is in Markdown, with columns that line up.
func table(results []*result) string {
	rows := [][]string{header}
	for _, r := range results {
		rows = append(rows, r.row())
	}
	widths := make([]int, len(header))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	var out strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			fmt.Fprintf(&out, "| %-*s ", widths[i], cell)
		}
		out.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				out.WriteString("|" + strings.Repeat("-", width+2))
			}
			out.WriteString("|\n")
		}
	}
	return out.String()
}

func printTable(w io.Writer, results []*result) { fmt.Fprintf(w, "\n%s", table(results)) }

// page has the table between the marks.
const page = "docs/kernels.md"

const (
	from = "<!-- make kernels: begin -->\n"
	to   = "<!-- make kernels: end -->\n"
)

// update writes the table where it is shown.
func update(results []*result) error {
	b, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	before, rest, found := strings.Cut(string(b), from)
	_, after, ended := strings.Cut(rest, to)
	if !found || !ended {
		return fmt.Errorf("%s has no place for the table: %s", page, strings.TrimSpace(from))
	}
	if err := os.WriteFile(page, []byte(before+from+table(results)+to+after), 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
