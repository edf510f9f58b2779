// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
)

// Failure returns the time of the failed request that ended the program, CLOCK_BOOTTIME nanoseconds; 0: none did.
func Failure(t *view.Trace, table *steps.Table) uint64 {
	failed, _ := t.Refusals()
	if len(failed) == 0 {
		return 0
	}
	last := &failed[len(failed)-1]
	goesOn := table.Source != steps.SourcePeriod && table.Last() > table.At(last.Event.Time)+1
	if last.WentOn || goesOn {
		return 0
	}
	return last.Event.Time
}
