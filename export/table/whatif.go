// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/words"
)

// WhatIf writes what replays came to: a table for each device, and what was assumed. batches nil: one recording.
func WhatIf(w io.Writer, reports []whatif.Report, batches *whatif.Batches) error {
	b := bufio.NewWriter(w)
	for i := range reports {
		if i > 0 {
			fmt.Fprintln(b)
		}
		whatIf(b, &reports[i])
	}
	if batches != nil {
		fmt.Fprintln(b)
		batchText(b, batches)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

func whatIf(w io.Writer, r *whatif.Report) {
	first := &r.Rows[0]
	device := "a device without an end"
	if first.Settings.Device > 0 {
		device = "a device of " + Bytes(first.Settings.Device)
	}
	if first.Fraction > 0 {
		device += fmt.Sprintf(", of which the process may use %g", first.Fraction)
	}
	fmt.Fprintf(w, "process %d, %s: %s requests, replayed on %s\n\n", r.PID, r.Device, countText(r.Allocs), device)
	fmt.Fprintf(w, "  %-36s %12s %12s  %s\n", "PYTORCH_CUDA_ALLOC_CONF", "peak", "head-room", "first request that fails")
	for i := range r.Rows {
		row := &r.Rows[i]
		conf := row.Conf()
		if conf == "" {
			conf = "(none)"
		}
		if i == 0 {
			conf += ", as recorded"
		}
		room := "-"
		if row.HeadRoom != event.Unknown {
			room = Bytes(row.HeadRoom)
		}
		fmt.Fprintf(w, "  %-36s %12s %12s  %s\n", conf, Bytes(row.Peak), room, failureText(row))
	}
	fmt.Fprintln(w)
	for _, note := range whatIfNotes(r) {
		fmt.Fprintln(w, "  "+note)
	}
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
		add("Check: under the recorded settings the replay reserves what PyTorch did after %s of %s events: the figures are estimates.", countText(c.Equal), countText(c.Compared))
	}
	if r.Before > 0 {
		add("The replays begin with the %s that were reserved when the recording began, in the segments of then.", Bytes(r.Before))
	}
	if r.Guessed > 0 {
		add("Of %s the size is not known; that of its block was taken.", Plural(r.Guessed, "request"))
	}
	if r.Lost > 0 {
		add("Events were lost, %s: what was asked for then is missing.", Plural(r.Lost, "gap"))
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
		return "Of the device, " + seen + ". What the context and other processes use is not known, and was taken as 0: --outside says it."
	}
	return strings.TrimSpace("Of the device, " + Bytes(r.Outside) + " are the context's and other processes', and " + seen + ".")
}

// batchText is the sentence on the largest batch.
func batchText(w io.Writer, b *whatif.Batches) {
	fmt.Fprintf(w, "Peak over batch, of %s: %s and %s a sample", Plural(uint64(b.Points), "recording"), floatBytes(b.Intercept), floatBytes(b.Slope))
	if b.Points > 2 {
		fmt.Fprintf(w, ", off by up to %s", floatBytes(b.Residual))
	}
	if b.Known {
		fmt.Fprintf(w, ". The largest batch is about %.0f", b.Largest)
	}
	fmt.Fprintln(w, ", if the program is the same but for the batch, and its peak grows evenly with it.")
}

func floatBytes(v float64) string {
	if v < 0 {
		return "-" + Bytes(uint64(-v))
	}
	return Bytes(uint64(v))
}
