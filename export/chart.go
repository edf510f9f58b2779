// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/chart"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/internal/words"
)

func writePNG(w io.Writer, in *Input) error { return writeChart(w, in, chart.PNG) }

func writeSVG(w io.Writer, in *Input) error { return writeChart(w, in, chart.SVG) }

func writeChart(w io.Writer, in *Input, f chart.Format) error {
	b, concluded, err := chartModel(in)
	if err != nil {
		return err
	}
	return chart.Write(w, f, chart.Input{
		Browse: b, Verdict: sentenceOf(concluded), Start: in.Info.Attached, From: in.Selection.From, To: in.Selection.To,
		Capacity: totals(capacityOf(in)),
		Title: fmt.Sprintf("GPU memory of %s, %s", words.ScriptLine(in.Info.Cmdline, in.Info.Name),
			in.Info.Started.Format("2006-01-02 15:04:05 MST")),
	})
}

// chartModel condenses the trace. What is concluded of a recording is found out in the same replays.
func chartModel(in *Input) (*pagemodel.Model, *answer.Answer, error) {
	o := &pagemodel.Options{Points: chart.Points}
	if !in.Judged() {
		b, err := pagemodel.New(in.Trace, o)
		return b, nil, err
	}
	b := pagemodel.NewBuilder(in.Trace, o)
	concluded, err := in.source.answer(b)
	if err != nil {
		return nil, nil, err
	}
	return b.Model(), concluded, nil
}

func totals(of map[event.Device]html.Capacity) map[event.Device]uint64 {
	out := map[event.Device]uint64{}
	for device, c := range of {
		out[device] = c.Total
	}
	return out
}
