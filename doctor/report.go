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

// WriteText writes a line a check, and below those that failed the lines that mend it. version is that of gputrace.
func WriteText(w io.Writer, r *Report, version string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "gputrace %s", version)
	if r.PID != 0 {
		fmt.Fprintf(&b, " · pid %d %s", r.PID, words.Line(r.Program))
	}
	b.WriteString("\n")
	group, shown := Group(""), []Fix(nil)
	for _, c := range r.Checks {
		if c.Group != group {
			group = c.Group
			fmt.Fprintf(&b, "\n%s\n", group)
		}
		fmt.Fprintf(&b, "  %-8s %-28s %s\n", c.State, c.Name, words.Line(c.Says))
		if len(c.Fixes) > 0 && slices.Equal(c.Fixes, shown) {
			b.WriteString("           mended by the same\n")
			continue
		}
		for _, f := range c.Fixes {
			shown = c.Fixes
			fmt.Fprintf(&b, "           %-12s %s\n", f.Where+":", words.Line(f.Line))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", words.Line(r.Verdict))
	_, err := io.WriteString(w, b.String())
	return err
}
