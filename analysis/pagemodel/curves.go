// SPDX-License-Identifier: Apache-2.0

package pagemodel

import "github.com/gputrace/gputrace/analysis/view"

// NewCurves is New with the curves, the peaks and what was refused alone: no groups and lifetimes. It replays the trace once.
func NewCurves(t *view.Trace, o *Options) (*Model, error) {
	s := newSurvey(t, o.withDefaults())
	if err := t.Replay(&view.Visitor{Before: s.before, Event: s.event, Allocated: s.allocated, Freed: s.freed, Moved: s.moved, Done: s.done}); err != nil {
		return nil, err
	}
	return s.model(), nil
}
