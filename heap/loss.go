// SPDX-License-Identifier: Apache-2.0

package heap

import "github.com/gputrace/gputrace/event"

// lossMergeWindow is the time without a loss that ends a loss interval, nanoseconds.
const lossMergeWindow = 1e9

// RecordLoss records that events of a process were lost. Losses must be passed in the order of their times; losses
// within lossMergeWindow of each other form one interval.
func (h *Heap) RecordLoss(pid uint32, l event.Loss) {
	for i := len(h.lossIntervals) - 1; i >= 0; i-- {
		if last := &h.lossIntervals[i]; last.PID == pid {
			if l.From <= last.To+lossMergeWindow {
				last.To = max(last.To, l.To)
				last.Events += l.Events
				return
			}
			break
		}
	}
	if len(h.lossIntervals) == maxLossIntervals {
		h.lossIntervals = append(h.lossIntervals[:0], h.lossIntervals[1:]...)
	}
	h.lossIntervals = append(h.lossIntervals, LossInterval{pid, l})
	h.lossIntervalCount++
}
