// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
)

// interimTime is the length of a recording, nanoseconds, after which growth in a job that trains is growth even if no
// training was seen: an evaluation that collects results for so long needs attention.
const interimTime = 600e9

// interim moves all findings to Suspects if the process holds optimizer state, but no training was seen. The recording
// is then part of an evaluation or a rollout, which often collects results and drops them at its end.
func (r *Report) interim(d *detector, o *Options) {
	if !o.Optimizer || len(r.Findings) == 0 || float64(r.Steps.Count)*r.Steps.Period >= interimTime || d.trains(r.Steps.Source) {
		return
	}
	r.Interim = true
	r.Suspects, r.Findings = r.Findings, nil
}

// trains reports whether a backward pass or an optimizer ran.
func (d *detector) trains(source steps.Source) bool {
	if source == steps.SourceOptimizer || source == steps.SourceBackward {
		return true
	}
	for id, s := range d.sources {
		if s.stack == nil { // its frames were not known when it was first seen
			d.noteTraining(d.resolve(id))
		}
	}
	return d.trained
}

// noteTraining notes whether a stack runs a backward pass or an optimizer. s may be nil.
func (d *detector) noteTraining(s *event.Stack) {
	if !d.trained && s != nil {
		d.trained = advice.SignsOf(s.Frames)&(advice.Backward|advice.Optimizer) != 0
	}
}
