// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"math"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/varpath"
	"github.com/gputrace/gputrace/internal/words"
)

// AlertText is an alert in a sentence.
func AlertText(a *alerts.Alert) string {
	on := ""
	if a.Device != "" {
		on = " on " + a.Device
	}
	text := fmt.Sprintf("alert %s: %s: %s%s", words.Line(a.Rule.Text), a.Process, measuredText(a), on)
	if a.Step > 0 {
		text += fmt.Sprintf(", after step %d", a.Step)
	}
	if a.Since > 0 {
		text += fmt.Sprintf(" (exceeded %s more since the last alert)", Times(a.Since))
	}
	return text
}

// Times is a number of times in words.
func Times(n uint64) string {
	if n == 1 {
		return "once"
	}
	return countText(n) + " times"
}

func measuredText(a *alerts.Alert) string {
	switch {
	case a.Rule.Part:
		return fmt.Sprintf("%s is %s", a.Rule.Kind, Percent(a.Measured))
	case a.Rule.Kind == alerts.Growth:
		return fmt.Sprintf("memory grows by %s each step", MeanBytes(a.Measured))
	case a.Rule.Kind == alerts.Allocation:
		return MeanBytes(a.Measured) + " allocated at once"
	}
	return MeanBytes(a.Measured) + " in use"
}

// AlertLines are the sentence and the lines with the most memory.
func AlertLines(a *alerts.Alert) []string {
	out := []string{AlertText(a)}
	for i := range a.Sites {
		s := &a.Sites[i]
		text := fmt.Sprintf("  %9s  %s", Bytes(s.Bytes), Place(&s.Line))
		if s.Holder != "" {
			text += ", held by " + words.Line(varpath.Readable(s.Holder))
		}
		out = append(out, text)
	}
	return out
}

// Place is a line, with its function.
func Place(c *view.Call) string {
	if c.Name == "" {
		return "an unknown line"
	}
	return words.Line(c.Text())
}

// Percent is a part in percent: "5 %", "0.02 %".
func Percent(part float64) string {
	switch percent := 100 * part; {
	case percent >= 10 || percent == math.Trunc(percent):
		return fmt.Sprintf("%.0f %%", percent)
	case percent >= 0.1:
		return fmt.Sprintf("%.1f %%", percent)
	}
	return fmt.Sprintf("%.2g %%", 100*part)
}
