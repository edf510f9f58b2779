// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/layout"
	"github.com/gputrace/gputrace/internal/words"
)

// WhatIf writes what replays came to: a table for each device, and what was assumed. batches nil: one recording. width is that of the
// screen, characters; 0: it is not known.
func WhatIf(w io.Writer, reports []whatif.Report, batches *whatif.Batches, width int) error {
	p := &printer{Printer: layout.Printer{W: bufio.NewWriter(w), Width: width}}
	for i := range reports {
		if i > 0 {
			p.Plain("")
		}
		p.whatIf(&reports[i])
	}
	if batches != nil {
		p.Plain("")
		p.Wrap(batchText(batches), layout.RowIndent)
	}
	if err := p.W.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

func (p *printer) whatIf(r *whatif.Report) {
	device, first := "unlimited memory", &r.Rows[0]
	if first.Settings.Device > 0 {
		device = "a device of " + Bytes(first.Settings.Device)
	}
	if first.Fraction > 0 {
		device += fmt.Sprintf(", of which the process may use %g", first.Fraction)
	}
	p.Wrap(fmt.Sprintf("process %d, %s: %s requests, replayed on %s", r.PID, r.Device, countText(r.Allocs), device), layout.RowIndent)
	p.Plain("")
	p.replays(r)
	p.Plain("")
	if unknown := slices.ContainsFunc(rowNumbers(r), r.Unknown); unknown {
		p.Wrap(fmt.Sprintf("  UNKNOWN  what other settings would have reserved: %s were reserved before the recording began, under the recorded "+
			"settings. Record "+
			"the program from its start (gputrace run), or after torch.cuda.empty_cache()", Bytes(r.Before)), 2*layout.RowIndent)
	}
	for _, note := range whatIfNotes(r) {
		p.Wrap("  "+note, 2*layout.RowIndent)
	}
}

// rowNumbers are the numbers of the rows.
func rowNumbers(r *whatif.Report) []int {
	out := make([]int, len(r.Rows))
	for i := range out {
		out[i] = i
	}
	return out
}

// widthReplay is the width of a figure of a replay, characters.
const widthReplay = 12

// replays is the table of the replays: each with the first request that fails beside it, or below where there is no room for that.
func (p *printer) replays(r *whatif.Report) {
	figures := func(peak, room string) string { return fmt.Sprintf(" %*s %*s", widthReplay, peak, widthReplay, room) }
	const title, last = "PYTORCH_CUDA_ALLOC_CONF", "first request that fails"
	confs := len(title)
	for i := range r.Rows {
		confs = max(confs, utf8.RuneCountInString(confText(r, i)))
	}
	row := func(conf, figures, failure string) {
		line := "  " + layout.Pad(conf, confs) + figures
		if utf8.RuneCountInString(line)+2+utf8.RuneCountInString(failure) <= p.Columns() {
			p.Plain(line + "  " + failure)
			return
		}
		p.Line("%s", line)
		p.Wrap("      "+failure, 4*layout.RowIndent)
	}
	row(title, figures("peak", "head-room"), last)
	for i := range r.Rows {
		room := "-"
		if n := r.Rows[i].HeadRoom; n != event.Unknown {
			room = Bytes(n)
		}
		if r.Unknown(i) {
			row(confText(r, i), figures("unknown", "unknown"), "unknown")
			continue
		}
		row(confText(r, i), figures(Bytes(r.Rows[i].Peak), room), failureText(&r.Rows[i]))
	}
}

// confText is the settings of a row.
func confText(r *whatif.Report, i int) string {
	conf := cmp.Or(r.Rows[i].Conf(), "(none)")
	if i == 0 {
		conf += ", as recorded"
	}
	return conf
}

// failureText is the first request that fails: "step 3, train.py:88 main: 64.0 MiB".
func failureText(r *whatif.Row) string {
	if r.Failed == nil {
		if r.Retries > 0 {
			return "none; all cached memory was returned " + Plural(uint64(r.Retries), "time")
		}
		return "none"
	}
	out := words.Line(r.Site) + ": " + Bytes(r.Failed.Requested)
	if r.Phase != phases.Other && r.Phase != phases.Unknown {
		out = string(r.Phase) + ", " + out
	}
	if r.Step > 0 {
		out = fmt.Sprintf("step %d, ", r.Step) + out
	}
	return out
}

// whatIfNotes say how far the replays can be believed.
func whatIfNotes(r *whatif.Report) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch c := &r.Check; {
	case c.Exact():
		add("Check: under the recorded settings the replay reserves what PyTorch did, after each of %s events.", countText(c.Compared))
	case c.Compared == 0:
		add("Check: the recording does not say what PyTorch reserved.")
	default:
		add("Check: under the recorded settings the replay reserves what PyTorch did after %s of %s events: the figures are estimates.",
			countText(c.Equal), countText(c.Compared))
	}
	if r.Before > 0 {
		add("The replays begin with the %s that were reserved when the recording began, in the segments of that moment.", Bytes(r.Before))
	}
	if r.Guessed > 0 {
		add("For %s the size is not known; the size of the block was taken.", Plural(r.Guessed, "request"))
	}
	if r.Lost > 0 {
		add("Events were lost, %s: requests from then are missing.", Plural(r.Lost, "gap"))
	}
	if r.Rows[0].Settings.Device > 0 {
		add("%s", outsideText(r))
	}
	if r.Rows[0].Past != nil || r.Rows[len(r.Rows)-1].Past != nil {
		add("A request that failed when it was recorded does not fail in some replays: what the program would have done next is not known.")
	}
	return out
}

func outsideText(r *whatif.Report) string {
	seen := Bytes(r.PeakOutside) + " of it are other libraries' at most"
	if r.OutsideUnknown {
		return "Of the device, " + seen + ". The use of the context and other processes is not known, and was taken as 0: --outside sets it."
	}
	return strings.TrimSpace("Of the device, " + Bytes(r.Outside) + " are the context's and other processes', and " + seen + ".")
}

// batchText is the sentence on the largest batch.
func batchText(b *whatif.Batches) string {
	text := fmt.Sprintf("Sufficient memory, from %s: %s and %s a sample", Plural(uint64(b.Points), "recording"), floatBytes(b.Intercept),
		floatBytes(b.Slope))
	if b.Points > 2 {
		text += fmt.Sprintf(", off by up to %s", floatBytes(b.Residual))
	}
	if b.Known {
		text += fmt.Sprintf(". A batch of %.0f fits, and one of %.0f does not", b.Largest, b.Fails)
		if b.Fails > b.Largest+1 {
			text += "; between them it is not known"
		}
		if b.Replayed {
			text += ", by replays of the requests that such a batch makes"
		}
	}
	return text + ", if the program is the same but for the batch, and what it needs grows evenly with it."
}

func floatBytes(v float64) string {
	if v < 0 {
		return "-" + Bytes(uint64(-v))
	}
	return Bytes(uint64(v))
}
