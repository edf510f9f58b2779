// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/folded"
	"github.com/gputrace/gputrace/export/speedscope"
	"github.com/gputrace/gputrace/internal/words"
)

// warnOverdrawn says by what a flame graph exceeds the allocators' totals: it cannot show less than nothing.
func warnOverdrawn(in *Input, views ...*view.View) {
	most := uint64(0)
	for _, v := range views {
		most = max(most, v.Overdrawn())
	}
	if most > 0 {
		in.Warn(fmt.Errorf("frees were lost: what is shown is up to %d bytes more than the allocator has", most))
	}
}

func writeFolded(w io.Writer, in *Input, v *view.View) error {
	warnOverdrawn(in, v)
	return folded.Write(w, v)
}

func writeFlameGraph(w io.Writer, in *Input, v *view.View) error {
	warnOverdrawn(in, v)
	return folded.WriteSVG(w, v, in.Moment)
}

func writeSpeedscope(w io.Writer, in *Input, v *view.View) error {
	s := speedscope.Input{
		Name: words.CommandLine(in.Info.Cmdline, in.Info.Name), Exporter: "gputrace " + in.Version,
		Profiles: []speedscope.Profile{{Name: "in use, " + in.Moment, View: v}},
	}
	views := []*view.View{v}
	if in.Selection.AtEnd() {
		peak := in.Trace.Peak()
		views = append(views, peak)
		s.Profiles = append(s.Profiles, speedscope.Profile{Name: "in use, at the peak of each device", View: peak})
	}
	s.Profiles = append(s.Profiles, speedscope.Profile{Name: "allocated", View: v, Measure: view.Allocated})
	warnOverdrawn(in, views...)
	return speedscope.Write(w, s)
}
