// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
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
var header = []string{"Linux", "object", "links", "memory is read", "verified instructions", "stacks complete", "checks"}

// row is the kernel's, of a run with that object.
func (r *result) row(object string) []string {
	row := []string{r.Release, object}
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

// verdict names the checks that failed, and says when not all were made (-checks).
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
	if all := r.Facts["checks"]; all != "" && all != fmt.Sprint(len(r.Checks)) {
		return fmt.Sprintf("%d of %s made, all hold", len(r.Checks), all)
	}
	return fmt.Sprintf("all %d hold", len(r.Checks))
}

// table is in Markdown, with columns that line up.
func table(rows [][]string) string {
	rows = append([][]string{header}, rows...)
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

// rows are those of a run.
func rows(results []*result, object string) (out [][]string) {
	for _, r := range results {
		out = append(out, r.row(object))
	}
	return out
}

// objectDigits is how many digits of its SHA-256 name an object.
const objectDigits = 8

// objectName tells one object from another: a row is of the kernel side in the tree when it has that one's.
func objectName(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("name the object: %w", err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))[:objectDigits], nil
}

// page has the table between the marks.
const page = "docs/measured/kernels.md"

const (
	from = "<!-- make kernels: begin -->\n"
	to   = "<!-- make kernels: end -->\n"
)

// update writes the rows of the kernels that were booted where they are shown. Those of other series stay, each with its object.
func update(booted [][]string, arch *architecture) error {
	b, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	before, table, after := "", string(b), ""
	if arch.name != "amd64" { // it has a table of its own, behind a heading
		before, table, _ = strings.Cut(table, "\n## "+arch.name+"\n")
		before += "\n## " + arch.name + "\n"
	} else if first, rest, found := strings.Cut(table, "\n## arm64\n"); found {
		table, after = first, "\n## arm64\n"+rest
	}
	text, err := merge(table, booted)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	if err := os.WriteFile(page, []byte(before+text+after), 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// merge puts rows into the table of a page, instead of those of the same series, in the order of the series.
func merge(text string, booted [][]string) (string, error) {
	before, rest, found := strings.Cut(text, from)
	shown, after, ended := strings.Cut(rest, to)
	if !found || !ended {
		return "", errors.New("no place for the table: " + strings.TrimSpace(from))
	}
	all := slices.Clone(booted)
	for n, line := range strings.Split(strings.TrimSpace(shown), "\n") {
		row := cells(line)
		if n < 2 || slices.ContainsFunc(booted, func(b []string) bool { return series(b[0]) == series(row[0]) }) {
			continue
		}
		if len(row) != len(header) {
			return "", fmt.Errorf("the row %q has not the columns of the table", line)
		}
		all = append(all, row)
	}
	slices.SortStableFunc(all, func(a, b []string) int {
		x, y := series(a[0]), series(b[0])
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]))
	})
	return before + from + table(all) + to + after, nil
}

// cells are those of a row in Markdown.
func cells(line string) (out []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "| "), "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}

// series is 6 and 18 of "6.18.15+deb13-cloud-amd64".
func series(release string) (n [2]int) {
	_, _ = fmt.Sscanf(release, "%d.%d", &n[0], &n[1]) // what is no release is before all
	return n
}
