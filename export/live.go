// SPDX-License-Identifier: Apache-2.0

package export

import (
	"io"
	"time"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/verdict"
)

// LiveProcess is the state of one process of a running recording.
type LiveProcess struct {
	PID   int
	View  *view.View
	Leaks *leaks.Report // nil: none yet, or steps are turned off
	// Judged is when Leaks was made.
	Judged time.Time
}

// WriteLive writes the state of a running recording as one line of JSON.
func WriteLive(w io.Writer, now time.Time, processes []LiveProcess) error {
	var out []json.Live
	for i := range processes {
		p := &processes[i]
		one := json.Live{PID: p.PID, Judged: p.Judged, Answer: answer.OfRunning(p.View, p.Leaks)}
		if p.Leaks != nil {
			one.Sentence = verdict.OfGrowth(one.Answer).String()
		}
		out = append(out, one)
	}
	return json.WriteLive(w, now, out)
}
