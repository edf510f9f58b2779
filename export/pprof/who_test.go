// SPDX-License-Identifier: Apache-2.0

//go:build linux

package pprof

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// joined has holders of three blocks from before the first event, 3 MiB of the recording's 4.
func joined(view *view.View) *view.Joined {
	r := &scan.Report{PID: 7, Time: 1}
	var blocks []heap.Block
	for i, name := range []string{"kept", "kept", "\xffcache"} {
		b := inspect.Block{Addr: uint64(i+1) << 30, Size: 1 << 20, State: inspect.StateAllocated}
		path := scan.Path{{Kind: scan.StepModule, Name: "__main__"}, {Kind: scan.StepAttribute, Name: name},
			{Kind: scan.StepIndex, Index: int64(i)}}
		r.Blocks = append(r.Blocks, scan.Block{Block: b, Category: scan.CategoryTensor, Path: path})
		blocks = append(blocks, heap.Block{PID: 7, Layer: event.LayerAllocator, Device: cuda0, Addr: b.Addr, Size: b.Size,
			Origin: heap.OriginBefore})
	}
	return holders.New(r).Join(view, slices.Values(blocks))
}

// TestBeforeAttachByHolder: what was allocated before has leaves that name its holders, and adds up to the same.
func TestBeforeAttachByHolder(t *testing.T) {
	_, whole := write(t, inUse)
	_, p := write(t, func(in *Input) { in.Joined = joined(in.View) })
	require.Equal(t, []string{"kept[0..1] < " + BeforeAttach, "\ufffdcache[2] < " + BeforeAttach, BeforeAttach}, stackOf(p, BeforeAttach))
	require.EqualValues(t, 4<<20, sum(p, inuseSpace, "site", BeforeAttach))
	require.EqualValues(t, 3, sum(p, inuseObjects, "site", BeforeAttach))
	require.Equal(t, sum(whole, inuseSpace, "", ""), sum(p, inuseSpace, "", ""))
	for _, s := range p.Sample {
		require.Len(t, s.Label, 7)
	}
	_, p = write(t, func(in *Input) { in.Kind, in.Joined = Alloc, joined(in.View) })
	require.Zero(t, sum(p, inuseSpace, "site", BeforeAttach))
}
