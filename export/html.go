// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// writePage writes the page. All of the trace is in it: a selection is what is selected when it opens.
func writePage(w io.Writer, in *Input) error {
	if in.Selection.MinSize > 0 {
		in.Warn(errors.New("the page shows blocks of all sizes, with a filter by size: --min-size is left out"))
	}
	if failed, _ := in.Trace.Refusals(); len(failed) > 0 && in.source != nil && in.Info.PID != 0 {
		in.watchSteps()
		if _, err := in.source.OOM(); err != nil {
			return err
		}
	}
	b, err := pageModel(in)
	if err != nil {
		return err
	}
	verdict, steps, err := pageVerdict(in)
	if err != nil {
		return err
	}
	end := in.Trace.End()
	sum := Summary(end, in.Info, in.End)
	program := cmp.Or(strings.Join(in.Info.Cmdline, " "), in.Info.Name, in.Path)
	exit, exitBytes := in.exit()
	return html.Write(w, html.Input{
		Exit: exit, ExitBytes: exitBytes, Model: b, View: end, Program: program, Script: words.ScriptLine(in.Info.Cmdline, in.Info.Name),
		Verdict: verdict, Steps: steps,
		Capacity: capacityOf(in), PID: in.Info.PID, Facts: pageFacts(in), Started: in.Info.Started,
		Start: in.Info.Attached, Notes: pageNotes(in, b), Lost: sum.EventsLost(), Selection: pageSelection(in),
	})
}

// pageModel condenses the trace. What is concluded of a recording is found out in the same two replays; where that
// is known, as when the first screen was printed before, it takes these two, or none if they were made for the page
// too.
func pageModel(in *Input) (*pagemodel.Model, error) {
	o := &pagemodel.Options{Asked: askedOf(pageSelection(in))}
	if in.source == nil {
		return pagemodel.New(in.Trace, o)
	}
	if b := in.source.page; b != nil && o.Asked == nil {
		in.source.page = nil // a builder makes one model
		return b.Model(), nil
	}
	b := pagemodel.NewBuilder(in.Trace, o)
	if in.Info.PID != 0 {
		_, err := in.source.answer(b)
		return b.Model(), err
	}
	in.watchSteps()
	if err := in.source.replay(b.Survey()); err != nil {
		return nil, err
	}
	if _, err := in.source.leaksWith(b.Lifetimes()); err != nil {
		return nil, err
	}
	return b.Model(), nil
}

// askedOf are the times at which a page must have a moment, to show what was asked for as every other format does.
func askedOf(s view.Selection) []uint64 {
	switch {
	case s.To != 0:
		return []uint64{s.From, s.To}
	case s.Moment.IsTime():
		return []uint64{s.Moment.Time}
	}
	return nil
}

// pageSelection is what is asked for; of nothing that is, the last request that failed and was not survived.
func pageSelection(in *Input) view.Selection {
	if in.Selection.To != 0 || in.Selection.Moment.Kind != moment.Unset || in.source == nil || in.source.oom == nil {
		return in.Selection
	}
	if c := in.source.oom.Main(); c != nil && c.Caught != oom.Yes {
		return view.Selection{Moment: moment.Moment{Kind: moment.OutOfMemory, Time: c.Time}}
	}
	return in.Selection
}

// pageFacts are what is known of program and machine.
func pageFacts(in *Input) []html.Fact {
	var out []html.Fact
	add := func(name, value string) {
		if value != "" {
			out = append(out, html.Fact{Name: name, Value: value})
		}
	}
	if in.Info.PID != 0 {
		add("pid", fmt.Sprint(in.Info.PID))
	}
	add("job", in.Info.Rank.Label())
	if in.End != nil && in.End.Memory != nil {
		for _, d := range in.End.Memory.Driver {
			name := "device"
			if d.Device >= 0 {
				name = fmt.Sprintf("device %d", d.Device)
			}
			add(name, d.Name)
		}
	}
	add("Python", in.Info.Python)
	add("PyTorch", in.Info.PyTorch)
	add("CUDA", in.Info.CUDA)
	add("driver", in.Info.Driver)
	add("Linux", in.Info.Kernel)
	add("gputrace", in.Info.Gputrace)
	return out
}

// pageNotes say what limits the figures.
func pageNotes(in *Input, b *pagemodel.Model) []string {
	var out []string
	if b.First > in.Trace.First() {
		out = append(out, "The recording kept its last part only (--max-size, --max-age). What was in use when that begins is in the figures, "+
			"with its "+
			"stacks; of a peak before it the size alone is known.")
	}
	if in.Trace.Damage != nil {
		out = append(out, fmt.Sprintf("The recording is damaged, and shown as far as it is whole: %v", in.Trace.Damage))
	}
	if in.End != nil && in.End.Error != "" {
		out = append(out, fmt.Sprintf("%s; the last %d events are not in the recording", in.End.Error, in.End.NotWritten))
	}
	if in.End != nil && in.End.StackRecordsLost > 0 {
		out = append(out, fmt.Sprintf("%d stacks did not fit the ring: their events have none", in.End.StackRecordsLost))
	}
	if b.Inferred > 0 {
		out = append(out, fmt.Sprintf("%s in use at the end were allocated after holders were read: they are shown with what held most blocks "+
			"of their line", table.Bytes(b.Inferred)))
	}
	return out
}
