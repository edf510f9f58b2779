// SPDX-License-Identifier: Apache-2.0

package export

import (
	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/steps"
)

// answerSpare takes the last reading of the allocator's state, and the requests that were refused first.
func (s *Source) answerSpare(in *answer.Input, table *steps.Table) {
	out := &in.Spare
	for _, r := range s.Trace.Readings() {
		if len(r.Torch) > 0 {
			out.Torch, out.Time = r.Torch, r.Time
		}
	}
	if s.End != nil && s.End.Memory != nil && len(s.End.Memory.Torch) > 0 {
		out.Torch, out.Time = s.End.Memory.Torch, in.End
	}
	out.Steps, out.Times = table, s.Trace.Recovered()
	_, out.Recovered = s.Trace.Refusals()
}
