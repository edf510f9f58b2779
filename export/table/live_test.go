// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
)

// TestLiveOfOtherAllocators: an allocator without totals has what was seen of it, and makes nothing unknown that PyTorch's reports.
func TestLiveOfOtherAllocators(t *testing.T) {
	const mib = 1 << 20
	torch := heap.Account{Device: event.Device{Type: event.DeviceCUDA}, Allocated: 3 * mib, Reserved: 4 * mib, Peak: 5 * mib}
	bfc := event.Device{Type: event.DeviceCUDA.Of(allocator.BFC)}
	other := heap.Account{Device: bfc, Allocated: event.Unknown, Reserved: event.Unknown, Peak: 7 * mib}
	other.Live.Bytes = 6 * mib
	line := func(accounts ...heap.Account) string {
		return LiveLine(&heap.Totals{Accounts: accounts}, Live{Now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
	}
	const rest = "  other device 0 B  0 blocks/s  lost 0 events"
	require.Equal(t, "03:04:05  torch 3.0 MiB (peak 5.0 MiB)  reserved 4.0 MiB"+rest, line(torch))
	require.Equal(t, "03:04:05  BFC 6.0 MiB since attach (peak 7.0 MiB)"+rest, line(other))
	require.Equal(t, "03:04:05  torch 3.0 MiB  reserved 4.0 MiB  BFC 6.0 MiB since attach"+rest, line(torch, other))
	require.Equal(t, "03:04:05  torch unknown  reserved unknown"+rest, line())
	require.Equal(t, "allocator totals continuous", Continuity([]heap.Account{torch, other}))
	require.Equal(t, "BFC reports no totals", Continuity([]heap.Account{other}))
	whole := other
	whole.Allocated, whole.Before = 8*mib, 2*mib
	require.Equal(t, "03:04:05  BFC 8.0 MiB (peak 7.0 MiB)"+rest, line(whole))
	require.Equal(t, "03:04:05  BFC 14.0 MiB since attach"+rest, line(whole, other), "of one it is not known")
	require.Equal(t, "BFC's total was read from its memory", Continuity([]heap.Account{whole}))
	const comment = "pid 0 cuda:0: BFC has 8.0 MiB (8,388,608 B), of it 2.0 MiB (2,097,152 B) before attach, " +
		"+0 B of lost events; peak 7.0 MiB (7,340,032 B)"
	require.Equal(t, comment, otherComment(&whole))
	other.Device.Type = event.DeviceCUDA.Of(allocator.OTel)
	require.Equal(t, "03:04:05  OpenTelemetry about 6.0 MiB since attach (peak 7.0 MiB)"+rest, line(other))
	require.Equal(t, "OpenTelemetry reports samples: sizes are estimates", Continuity([]heap.Account{other}))
}
