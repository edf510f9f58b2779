// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/doctor"
	"github.com/gputrace/gputrace/internal/words"
)

// examine writes what the doctor finds; the error has no text: the verdict is the last line.
func examine(o doctorOptions) error {
	r := doctor.Run(doctor.Options{PID: o.pid, For: o.duration, CacheDir: o.cacheDir, Memory: o.memory})
	write := writeReport
	if o.json {
		write = writeReportJSON
	}
	if err := write(os.Stdout, r); err != nil {
		return err
	}
	if !r.Works {
		return coded(exitError, errors.New(""))
	}
	return nil
}

// doctorVersion is that of the JSON: it changes when the meaning of a field does.
const doctorVersion = 1

func writeReportJSON(w io.Writer, r *doctor.Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Format   string `json:"format"`
		Version  int    `json:"version"`
		Gputrace string `json:"gputrace"`
		*doctor.Report
	}{"gputrace doctor", doctorVersion, version, r})
}

// writeReport writes a line a check, and below those that failed the lines that mend it.
func writeReport(w io.Writer, r *doctor.Report) error {
	var b strings.Builder
	fmt.Fprintf(&b, "gputrace %s", version)
	if r.PID != 0 {
		fmt.Fprintf(&b, " · pid %d %s", r.PID, words.Line(r.Program))
	}
	b.WriteString("\n")
	group, shown := doctor.Group(""), []doctor.Fix(nil)
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
