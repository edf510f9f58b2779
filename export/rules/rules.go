// SPDX-License-Identifier: Apache-2.0

// Package rules prints what became of the rules of a check.
package rules

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/gputrace/gputrace/analysis/gate"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// checkWords are the statuses as people see them.
var checkWords = map[gate.Status]string{gate.Passed: "passed", gate.Failed: "FAILED", gate.Unknown: "UNKNOWN"}

// Write prints what became of each rule, a sentence each, and in the end whether all are met. width is of the screen, characters; 0: 80.
func Write(w io.Writer, c *gate.Check, width int) error {
	out := bufio.NewWriter(w)
	p := &layout.Printer{W: out, Width: width}
	failed, all := 0, 0
	for i := range c.Reports {
		r := &c.Reports[i]
		p.Line("%s", words.Line(r.Name))
		for j := range r.Results {
			x := &r.Results[j]
			all++
			if x.Status != gate.Passed {
				failed++
			}
			for k, text := range Texts(x) {
				head := ""
				if k == 0 {
					head = checkWords[x.Status]
				}
				p.Field(head, "%s", words.Line(text))
			}
		}
	}
	if failed > 0 {
		p.Line("check failed: %d of %s not met", failed, table.Plural(uint64(all), "rule"))
	} else {
		p.Line("check passed: %s", table.Plural(uint64(all), "rule"))
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("print the check: %w", err)
	}
	return nil
}

// Texts says what became of a rule: the first sentence has the rule, its bound and what was measured; each further one what else
// fails it.
func Texts(r *gate.Result) []string {
	var out []string
	switch {
	case r.Status == gate.Unknown:
		out = []string{unknownText(r)}
	case r.Rule == gate.MaxPeak:
		out = eachFound(r, peakText)
	case r.Rule == gate.MaxGrowth:
		out = growthTexts(r)
	case r.Rule == gate.NoLeaks && r.Status == gate.Failed:
		out = eachFound(r, func(_ *gate.Result, f *gate.Found) string { return "growing: " + grownText(f) })
	case r.Rule == gate.NoLeaks:
		out = append([]string{table.LeakSentence(r.Leaks)}, toleratedTexts(r)...)
	case r.Rule == gate.NoOOM:
		out = refusedTexts(r)
	case r.Rule == gate.Baseline:
		out = baselineTexts(r)
	case r.Rule == gate.Command:
		out = []string{fmt.Sprintf("exit code %d", int(r.Measured))}
	}
	out[0] = string(r.Rule) + ": " + out[0]
	return out
}

func eachFound(r *gate.Result, text func(*gate.Result, *gate.Found) string) []string {
	var out []string
	for i := range r.Found {
		out = append(out, text(r, &r.Found[i]))
	}
	return out
}

// toleratedTexts says what grows and is allowed to.
func toleratedTexts(r *gate.Result) []string {
	var out []string
	for _, all := range [][]leaks.Finding{r.Leaks.Findings, r.Leaks.Notes} {
		for i := range all {
			out = append(out, "tolerated: "+table.LeakText(&all[i]))
		}
	}
	if most := r.LeakTolerance; most != nil {
		return append(out, fmt.Sprintf("--leak-tolerance allows a line %s each step", table.MeanBytes(*most)))
	}
	return append(out, leaks.Tolerance+" (--leak-tolerance)")
}

// unknownText says why a rule could not be judged.
func unknownText(r *gate.Result) string {
	switch {
	case r.Leaks != nil:
		return "it is not known whether memory grows: " + strings.TrimPrefix(table.LeakSentence(r.Leaks), "unknown: ")
	case r.Rule == gate.Baseline:
		return "there is no memory of a peak to compare"
	}
	return "no use of GPU memory was recorded"
}

// peakText is the peak of a device.
func peakText(r *gate.Result, f *gate.Found) string {
	text := fmt.Sprintf("%s reached %s", f.What, table.Bytes(uint64(f.Measured)))
	if f.Measured > f.Bound {
		text += fmt.Sprintf(", %s above the limit of %s", table.Bytes(uint64(f.Measured-f.Bound)), table.Bytes(uint64(r.Bound)))
	} else {
		text += fmt.Sprintf(" of at most %s", table.Bytes(uint64(r.Bound)))
	}
	if f.LineBytes > 0 {
		text += fmt.Sprintf("; the largest part, %s, is of %s", table.Bytes(f.LineBytes), table.Place(&f.Line))
	}
	return text
}

// growthTexts are what memory grows by, and each line that it grows at.
func growthTexts(r *gate.Result) []string {
	if r.Status == gate.Passed {
		return []string{fmt.Sprintf("memory grows by %s each step, of at most %s, in %s",
			table.StepBytes(r.Measured), table.MeanBytes(r.Bound), table.Plural(uint64(r.Leaks.Steps.Count), "step"))}
	}
	head := fmt.Sprintf("memory grows by %s each step, %s above the limit of %s", table.StepBytes(r.Measured), table.StepBytes(r.By()),
		table.MeanBytes(r.Bound))
	return append([]string{head}, eachFound(r, func(_ *gate.Result, f *gate.Found) string { return grownText(f) })...)
}

// grownText is a finding and what holds it.
func grownText(f *gate.Found) string {
	text := table.LeakText(f.Finding)
	if f.Finding.Holder != "" {
		text += "; held by " + table.LeakHolder(f.Finding)
	}
	if f.Finding.Confidence == leaks.Low {
		text += " (few periods were seen: a queue that fills looks the same)"
	}
	return text
}

// shownRefused is how many refused requests are shown.
const shownRefused = 5

func refusedTexts(r *gate.Result) []string {
	if len(r.Found) == 0 {
		return []string{"no request was refused"}
	}
	out := []string{table.Plural(uint64(r.Measured), "request") + " refused"}
	for i := range r.Found {
		if f := &r.Found[i]; i < shownRefused {
			out = append(out, fmt.Sprintf("out of memory: %s on %s, asked for by %s", table.Bytes(uint64(f.Measured)), f.What, table.Place(&f.Line)))
		}
	}
	return out
}

// baselineTexts are what has more than the baseline, or that nothing has.
func baselineTexts(r *gate.Result) []string {
	if r.Status == gate.Passed {
		return []string{fmt.Sprintf("the peak is %s that of the baseline, and no line or category is more than %s above its own",
			partText(r.Measured), table.Percent(r.Tolerance))}
	}
	return eachFound(r, func(r *gate.Result, f *gate.Found) string {
		what := f.What
		switch f.Kind {
		case gate.OfLine:
			what = table.Place(&f.Line)
		case gate.OfCategory:
			what = "category " + f.What
		}
		text := fmt.Sprintf("%s: %s at the peak, ", what, table.Bytes(uint64(f.Measured)))
		if f.Bound == 0 {
			return text + "none in the baseline"
		}
		return text + fmt.Sprintf("%s or %s more than the baseline's %s; %s is allowed",
			table.Bytes(uint64(f.Measured-f.Bound)), table.Percent((f.Measured-f.Bound)/f.Bound), table.Bytes(uint64(f.Bound)),
			table.Percent(r.Tolerance))
	})
}

// partText is a change of a part: "equal to", "1.2 % above".
func partText(part float64) string {
	switch {
	case math.IsNaN(part):
		return "not comparable with"
	case part == 0:
		return "equal to"
	case part < 0:
		return table.Percent(-part) + " below"
	}
	return table.Percent(part) + " above"
}
