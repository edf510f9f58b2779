// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestLossIntervals: losses that follow each other are one interval, those of another process or a second later are another; the last
// ones are kept, and all are counted.
func TestLossIntervals(t *testing.T) {
	h := New()
	const ms = 1_000_000
	lose := func(pid uint32, from, to, events uint64) {
		h.RecordLoss(pid, event.Loss{From: from * ms, To: to * ms, Events: events})
	}
	lose(1, 10, 20, 5)
	lose(1, 20, 30, 6)
	lose(2, 25, 30, 1)
	lose(1, 1030, 1040, 7)
	lose(1, 2041, 2050, 8)
	require.Equal(t, []LossInterval{
		{1, event.Loss{From: 10 * ms, To: 1040 * ms, Events: 18}}, {2, event.Loss{From: 25 * ms, To: 30 * ms, Events: 1}},
		{1, event.Loss{From: 2041 * ms, To: 2050 * ms, Events: 8}},
	}, h.Totals().LossIntervals)
	for i := range uint64(maxLossIntervals) {
		lose(3, 10_000*(i+1), 10_000*(i+1)+1, i)
	}
	totals := h.Totals()
	require.EqualValues(t, maxLossIntervals+3, totals.LossIntervalCount)
	require.Len(t, totals.LossIntervals, maxLossIntervals)
	require.EqualValues(t, 0, totals.LossIntervals[0].Events)
	require.EqualValues(t, maxLossIntervals-1, totals.LossIntervals[maxLossIntervals-1].Events)
}
