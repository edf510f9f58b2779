// SPDX-License-Identifier: Apache-2.0

package export

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/chrome"
	"github.com/gputrace/gputrace/export/perfetto"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// Limits of a timeline by default. Browsers hold 2 to 4 GB of a trace.
const (
	perfettoEvents    = 5_000_000
	chromeEvents      = 1_000_000 // of four times the bytes
	timelineLifetimes = 1000
	timelineMoments   = 24
)

// timelineOf chooses the part of a recording that fits a timeline with this number of events.
func timelineOf(in *Input, events uint64) (*view.Timeline, error) {
	s := in.Selection
	o := &view.TimelineOptions{MinSize: s.MinSize, MaxEvents: events, Lifetimes: timelineLifetimes, Moments: timelineMoments,
		Phases: maxSlices}
	if s.To != 0 {
		o.From, o.To = s.From+1, s.To // a selection begins after From
	}
	in.watchSteps()
	tl, err := in.Trace.Timeline(o)
	if errors.Is(err, view.ErrEmptyRange) {
		return nil, exit.Usage("%w", err)
	}
	return tl, err
}

// zipped has content written through gzip when the file's name asks for it.
func zipped(w io.Writer, file string, content func(io.Writer) error) error {
	if !strings.HasSuffix(file, ".gz") {
		return content(w)
	}
	z := gzip.NewWriter(w)
	if err := content(z); err != nil {
		return err
	}
	return z.Close()
}

// warnLeft says what a timeline left out of what it was asked for.
func warnLeft(in *Input, tl *view.Timeline, events uint64) {
	if tl.MinSize > in.Selection.MinSize {
		in.Warn(fmt.Errorf("more than %d events: allocations below %d bytes are left out; --from and --to choose a part, --min-size a size",
			events, tl.MinSize))
	}
	if tl.Until < tl.To {
		in.Warn(fmt.Errorf("more than %d events: nothing is shown of the last %.3f s but what is in use; --from and --to choose another part",
			events, time.Duration(tl.To-tl.Until).Seconds()))
	}
	if tl.MinSize > in.Selection.MinSize || tl.Until < tl.To {
		in.Warn(fmt.Errorf("%d of %d allocations are left out, %d of %d bytes", tl.Left.Objects, tl.Left.Objects+tl.Shown.Objects,
			tl.Left.Bytes, tl.Left.Bytes+tl.Shown.Bytes))
	}
}

func writePerfetto(w io.Writer, in *Input) error {
	limit := uint64(perfettoEvents)
	if len(in.Profiles) > 0 {
		limit /= 2 // allocations are on two tracks
	}
	tl, err := timelineOf(in, limit)
	if err != nil {
		return err
	}
	p := perfetto.Input{
		Timeline: tl, Trace: in.Trace, PID: in.Info.PID, Name: in.Info.Name, Cmdline: in.Info.Cmdline,
		Started: in.Info.Started, StartedBoot: in.Info.StartedBoot, Phases: tl.Phases,
	}
	if err := addProfiles(in, &p, tl); err != nil {
		return err
	}
	if p.Steps, err = stepsOf(in, tl); err != nil {
		return err
	}
	comments, err := exportComments(in)
	if err != nil {
		return err
	}
	for i, text := range comments {
		p.Attributes = append(p.Attributes, perfetto.Attribute{Key: fmt.Sprintf("gputrace.%02d", i), Text: text})
	}
	if err := zipped(w, in.File, func(w io.Writer) error { return perfetto.Write(w, p) }); err != nil {
		return err
	}
	warnLeft(in, tl, limit)
	return nil
}

// maxSlices is how many steps and times of phases a timeline shows at most.
const maxSlices = 200_000

// stepsOf are the steps that a timeline shows.
func stepsOf(in *Input, tl *view.Timeline) (steps []view.StepSpan, err error) {
	if tl.MorePhases {
		in.Warn(fmt.Errorf("more than %d changes between phases: later ones are left out; --from and --to choose a part", maxSlices))
	}
	if in.source == nil {
		return nil, nil
	}
	found, err := in.source.Steps()
	if err != nil {
		return nil, err
	}
	for n := max(1, found.At(tl.From)); found.First() > 0 && n <= found.Last() && len(steps) < maxSlices; n++ {
		from, to, ok := found.Span(n)
		if ok && from <= tl.To {
			steps = append(steps, view.StepSpan{Number: n, From: max(from, tl.From), To: min(to, tl.To)})
		}
	}
	return steps, nil
}

func writeChrome(w io.Writer, in *Input) error {
	tl, err := timelineOf(in, chromeEvents)
	if err != nil {
		return err
	}
	c := chrome.Input{
		Timeline: tl, Trace: in.Trace, PID: in.Info.PID, Name: words.CommandLine(in.Info.Cmdline, in.Info.Name),
		Started: in.Info.Started, StartedBoot: in.Info.StartedBoot, Phases: tl.Phases,
	}
	if c.Comments, err = exportComments(in); err != nil {
		return err
	}
	if c.Steps, err = stepsOf(in, tl); err != nil {
		return err
	}
	if err := zipped(w, in.File, func(w io.Writer) error { return chrome.Write(w, c) }); err != nil {
		return err
	}
	warnLeft(in, tl, chromeEvents)
	return nil
}
