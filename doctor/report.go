// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/internal/words"
)

// jsonVersion changes when the meaning of a field does.
const jsonVersion = 1

// WriteJSON writes a report for a program to read. version is gputrace's own.
func WriteJSON(w io.Writer, r *Report, version string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Format   string `json:"format"`
		Version  int    `json:"version"`
		Gputrace string `json:"gputrace"`
		*Report
	}{"gputrace doctor", jsonVersion, version, r})
}

// foldable are the groups about the machine: where nothing in them is wrong, a line is enough.
var foldable = []Group{Kernel, Rights, Limits, Attach}

// Text is how a report is written for people.
type Text struct {
	Version string // of gputrace
	All     bool   // each check has a line; else a group about the machine with nothing but ok is one line
	Width   int    // of a line; 0: it is not known, and a check is a line
}

// page is a report as text.
type page struct {
	strings.Builder
	width int
}

// line writes what is the case, behind a state and a name; what there is no room for is below it.
func (p *page) line(state, name, says string) {
	for _, line := range words.Lines(fmt.Sprintf("  %-8s %-28s %s", state, name, says), p.width, 13) {
		p.WriteString(line + "\n")
	}
}

// text writes a text of its own.
func (p *page) text(text string) {
	for _, line := range words.Lines(text, p.width, 2) {
		p.WriteString(line + "\n")
	}
}

// WriteText writes a line a check, and below those that failed the lines that mend it, which are not broken: they are to be copied.
func WriteText(w io.Writer, r *Report, t Text) error {
	b := page{width: t.Width}
	head := "gputrace " + t.Version
	if r.PID != 0 {
		head += fmt.Sprintf(" · pid %d %s", r.PID, words.Line(r.Program))
	}
	b.text(head)
	folded, some := false, false // the group above is one line, some group is
	for checks := r.Checks; len(checks) > 0; {
		n := 1
		for n < len(checks) && checks[n].Group == checks[0].Group {
			n++
		}
		if !t.All && isFine(checks[:n]) {
			if !folded {
				b.WriteString("\n")
			}
			b.line(OK.String(), string(checks[0].Group), foldedText(checks[:n]))
			folded, some = true, true
		} else {
			b.group(checks[:n])
			folded = false
		}
		checks = checks[n:]
	}
	if some {
		b.WriteString("\n-v shows each check\n")
	}
	b.WriteString("\n")
	b.text(words.Line(r.Verdict))
	_, err := io.WriteString(w, b.String())
	return err
}

// isFine reports whether a group about the machine has nothing but ok.
func isFine(checks []Check) bool {
	return slices.Contains(foldable, checks[0].Group) && !slices.ContainsFunc(checks, func(c Check) bool { return c.State != OK })
}

// foldedText says how many checks there are, and what the first one says, or which they are.
func foldedText(checks []Check) string {
	const shown = 3
	if g := checks[0].Group; g == Kernel || g == Attach {
		return fmt.Sprintf("%s: %s", checkCount(len(checks)), words.Line(checks[0].Says))
	}
	var names []string
	for _, c := range checks[:min(shown, len(checks))] {
		names = append(names, c.Name)
	}
	text := fmt.Sprintf("%s: %s", checkCount(len(checks)), strings.Join(names, ", "))
	if len(checks) > shown {
		text += " ..."
	}
	return text
}

// group writes each check of a group.
func (p *page) group(checks []Check) {
	fmt.Fprintf(p, "\n%s\n", checks[0].Group)
	var shown []Fix
	for _, c := range checks {
		p.line(c.State.String(), c.Name, words.Line(c.Says))
		if len(c.Fixes) > 0 && slices.Equal(c.Fixes, shown) {
			p.WriteString("           fixed by the same\n")
			continue
		}
		for _, f := range c.Fixes {
			shown = c.Fixes
			fmt.Fprintf(p, "           %-12s %s\n", f.Where+":", words.Line(f.Line))
		}
	}
}

func checkCount(n int) string {
	if n == 1 {
		return "1 check"
	}
	return fmt.Sprintf("%d checks", n)
}
