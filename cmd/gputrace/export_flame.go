package main

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis"
	"github.com/gputrace/gputrace/export/folded"
	"github.com/gputrace/gputrace/export/speedscope"
)

// warnOverdrawn says by what a flame graph exceeds the allocators' totals: it cannot show less than nothing.
func warnOverdrawn(in *exportInput, views ...*analysis.View) {
	most := uint64(0)
	for _, v := range views {
		most = max(most, v.Overdrawn())
	}
	if most > 0 {
		in.Warn(fmt.Errorf("frees were lost: what is shown is up to %d bytes more than the allocator has", most))
	}
}

func writeFolded(w io.Writer, in *exportInput, view *analysis.View) error {
	warnOverdrawn(in, view)
	return folded.Write(w, view)
}

func writeSpeedscope(w io.Writer, in *exportInput, view *analysis.View) error {
	s := speedscope.Input{
		Name: commandLine(in.Info.Cmdline, in.Info.Name), Exporter: "gputrace " + version,
		Profiles: []speedscope.Profile{{Name: "in use, " + in.Moment, View: view}},
	}
	views := []*analysis.View{view}
	if in.Selection == (analysis.Selection{}) {
		peak := in.Trace.Peak()
		views = append(views, peak)
		s.Profiles = append(s.Profiles, speedscope.Profile{Name: "in use, at the peak of each device", View: peak})
	}
	s.Profiles = append(s.Profiles, speedscope.Profile{Name: "allocated", View: view, Measure: analysis.Allocated})
	warnOverdrawn(in, views...)
	return speedscope.Write(w, s)
}
