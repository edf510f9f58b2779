// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestSamples: the samples add up to what the allocators and the driver said, by pid, layer and device.
func TestPortions(t *testing.T) {
	stack1 := eventtest.Stack("libc10.so!c10::reportMemoryUsageToProfiler libtorch_cpu.so!at::empty " + eventtest.Own)
	cuda0 := event.Device{Type: event.DeviceCUDA}
	account := heap.Account{PID: 7, Device: cuda0, Allocated: 700, Before: 300, Lost: -100, BeforeBlocks: heap.Count{Bytes: 300, Objects: 2}}
	s := &heap.Snapshot{
		Totals: heap.Totals{Accounts: []heap.Account{account, {PID: 8, Allocated: event.Unknown, Live: heap.Count{Bytes: 50}}}},
		Sites: []heap.Site{
			{PID: 7, Layer: event.LayerAllocator, Device: cuda0, Stack: 1, Alloc: heap.Count{Objects: 9, Bytes: 900},
				Inuse: heap.Count{Objects: 5, Bytes: 500}},
			{PID: 7, Layer: event.LayerAllocator, Device: cuda0, Origin: heap.OriginBefore, Inuse: heap.Count{Objects: 2, Bytes: 300}},
			{PID: 8, Layer: event.LayerAllocator, Inuse: heap.Count{Objects: 1, Bytes: 50}},
			{PID: 7, Layer: event.LayerDevice, Segment: true, Alloc: heap.Count{Objects: 1, Bytes: 1 << 20},
				Inuse: heap.Count{Objects: 1, Bytes: 1 << 20}},
			{PID: 7, Layer: event.LayerDevice, Alloc: heap.Count{Objects: 1, Bytes: 60}, Inuse: heap.Count{Objects: 1, Bytes: 60}},
			{PID: 7, Layer: event.LayerHost, Alloc: heap.Count{Objects: 1, Bytes: 9}, Inuse: heap.Count{Objects: 1, Bytes: 9}},
		},
	}
	v := New(s, func(event.StackID) *event.Stack { return stack1 }, nil)
	sum, names := int64(0), []string{}
	for p := range v.Samples(InUse, nil) {
		sum += p.Bytes
		names = append(names, p.Names()...)
		require.Equal(t, p.Site != nil && p.Site.Site.Stack == 1, p.Frames() != nil)
		require.Equal(t, p.Frames() != nil, p.NeedsName(p.Frames()))
	}
	require.Equal(t, []string{"gpt.py:38 Block.forward", stacks.NoStack, stacks.NoStack, stacks.BeforeAttach, stacks.LostEvents}, names)
	require.EqualValues(t, 700+50+60, sum)
	require.EqualValues(t, 700+50+60, v.Total())
	require.EqualValues(t, 100, v.Overdrawn())

	sum = 0
	for p := range v.Samples(Allocated, nil) {
		sum += p.Bytes
	}
	require.EqualValues(t, 900+60, sum)
	for range v.Samples(InUse, nil) { // can be left
		break
	}

	j := &Joined{before: map[accountID][]figures.HeldPart{{7, cuda0}: {{Holder: "cache", Bytes: 200, Blocks: 1}}}}
	names = nil
	for p := range v.Samples(InUse, j) {
		if p.Name == stacks.BeforeAttach {
			names = append(names, p.Names()...)
		}
	}
	require.Equal(t, []string{"cache", stacks.BeforeAttach, stacks.BeforeAttach}, names)
}
