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

// jsonVersion is that of the JSON: it changes when the meaning of a field does.
const jsonVersion = 1

// WriteJSON writes a report for a program to read. version is that of gputrace.
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

// WriteText writes a line a check, and below those that failed the lines that mend it. A group about the machine with nothing but ok is one
// line, unless all is asked for. version is that of gputrace.
func WriteText(w io.Writer, r *Report, version string, all bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "gputrace %s", version)
	if r.PID != 0 {
		fmt.Fprintf(&b, " · pid %d %s", r.PID, words.Line(r.Program))
	}
	b.WriteString("\n")
	folded, some := false, false // the group above is one line, some group is
	for checks := r.Checks; len(checks) > 0; {
		n := 1
		for n < len(checks) && checks[n].Group == checks[0].Group {
			n++
		}
		if !all && isFine(checks[:n]) {
			if !folded {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "  %-8s %-28s %s\n", OK, checks[0].Group, foldedText(checks[:n]))
			folded, some = true, true
		} else {
			writeGroup(&b, checks[:n])
			folded = false
		}
		checks = checks[n:]
	}
	if some {
		b.WriteString("\n-v shows each check\n")
	}
	fmt.Fprintf(&b, "\n%s\n", words.Line(r.Verdict))
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

// writeGroup writes each check of a group.
func writeGroup(b *strings.Builder, checks []Check) {
	fmt.Fprintf(b, "\n%s\n", checks[0].Group)
	var shown []Fix
	for _, c := range checks {
		fmt.Fprintf(b, "  %-8s %-28s %s\n", c.State, c.Name, words.Line(c.Says))
		if len(c.Fixes) > 0 && slices.Equal(c.Fixes, shown) {
			b.WriteString("           mended by the same\n")
			continue
		}
		for _, f := range c.Fixes {
			shown = c.Fixes
			fmt.Fprintf(b, "           %-12s %s\n", f.Where+":", words.Line(f.Line))
		}
	}
}

func checkCount(n int) string {
	if n == 1 {
		return "1 check"
	}
	return fmt.Sprintf("%d checks", n)
}
