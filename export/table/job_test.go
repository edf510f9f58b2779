// SPDX-License-Identifier: Apache-2.0

package table

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

// TestJob: a row for each process and device, and their sums; one that is not known makes the sum unknown.
func TestJob(t *testing.T) {
	cuda := func(i int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: i} }
	two := &heap.Totals{
		Accounts: []heap.Account{
			{Device: cuda(0), Allocated: 3 << 20, Peak: 4 << 20, Reserved: 8 << 20, Allocs: 7},
			{Device: cuda(1), Allocated: 1 << 20, Peak: 1 << 20, Reserved: 2 << 20, Allocs: 1000},
		},
		Drivers: []heap.DriverAccount{
			{Layer: event.LayerDevice, Device: cuda(0), Live: heap.Count{Bytes: 9 << 20}, Segments: heap.Count{Bytes: 8 << 20}},
			{Layer: event.LayerHost, Device: cuda(0), Live: heap.Count{Bytes: 5 << 20}},
		},
	}
	rows := append(JobRows("rank 0, pid 7 train.py", two), JobRows("pid 8 "+strings.Repeat("x", 60), &heap.Totals{})...)
	hits := []figures.Hits{{Probe: "p", Hits: 6, Emitted: 4, Quiet: map[string]uint64{"call entered": 1},
		Dropped: map[string]uint64{"ring full": 1}}}
	goldens(t, "job", func(w io.Writer, width int) error {
		return Job(w, JobInput{Duration: 1500 * time.Millisecond, Hits: hits, Received: 4, Rows: rows, Width: width})
	})

	var b strings.Builder
	rows[0].Live = event.Unknown
	require.NoError(t, Job(&b, JobInput{Hits: hits, Received: 3, Rows: rows}))
	require.Regexp(t, `total of 2 processes\n? +unknown +10\.0 MiB`, b.String())
	require.Contains(t, b.String(), "4 events emitted, 3 received\n")

	b.Reset()
	require.NoError(t, Job(&b, JobInput{Hits: hits, Received: 4, Rows: rows, LostAfter: 1}))
	require.Contains(t, b.String(), "\nlost     0 events: ring full 1\n")
	require.Contains(t, b.String(), "1 more after the recording, while holders were read\n")

	lost := JobRows("pid 9", &heap.Totals{LossIntervalCount: 1})
	require.Equal(t, []uint64{event.Unknown, event.Unknown, event.Unknown, event.Unknown},
		[]uint64{lost[0].Live, lost[0].Peak, lost[0].Reserved, lost[0].Other})
}
