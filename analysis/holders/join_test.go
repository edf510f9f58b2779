// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// live is a live torch block of process 7, of the same address and size as block i of mixedReport.
func live(r *scan.Report, i int, origin heap.Origin, stack event.StackID) heap.Block {
	b := &r.Blocks[i]
	return heap.Block{PID: 7, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA}, Addr: b.Addr, Size: b.Size,
		Stack: stack, Origin: origin, Time: 10}
}

func TestJoin(t *testing.T) {
	r := mixedReport()
	r.Time = 100
	young := live(r, 4, heap.OriginEvent, 1) // the address is in the eventtest.Report, but of the block before
	young.Time = 101
	other := live(r, 1, heap.OriginEvent, 1)
	other.PID = 8
	resized := live(r, 2, heap.OriginBefore, 0)
	resized.Size += 512
	segment := live(r, 0, heap.OriginEvent, 1)
	segment.Layer = event.LayerDevice
	blocks := []heap.Block{
		live(r, 0, heap.OriginBefore, 0), live(r, 1, heap.OriginBefore, 0), live(r, 3, heap.OriginEvent, 1),
		live(r, 5, heap.OriginBefore, 0), young, other, resized, segment,
	}
	s := &heap.Snapshot{}
	for _, b := range blocks {
		s.Sites = append(s.Sites, heap.Site{Layer: b.Layer, Device: b.Device, PID: b.PID, Stack: b.Stack, Origin: b.Origin})
	}
	v := view.New(s, func(event.StackID) *event.Stack { return eventtest.Stack(eventtest.Own) }, nil)
	j := New(r).Join(v, slices.Values(blocks))
	line, average := v.Sites[2].Name, "opt.state[model.blocks[0].mlp.weight]['exp_avg']"
	require.NotEqual(t, stacks.BeforeAttach, line)
	kib := func(n uint64) uint64 { return n << 10 }
	total := kib(8+8+6+5+3+2) + 512
	require.Equal(t, total, j.Bytes)
	share := func(bytes uint64) float64 { return float64(bytes) / float64(total) }
	require.Equal(t, []view.HeldSite{
		{Site: stacks.BeforeAttach, Name: "model.blocks[0..1].mlp.weight", Holder: "model.blocks[0..1].mlp.weight", What: "parameters",
			Bytes: kib(16), Blocks: 2, Share: share(kib(16))},
		{Site: stacks.BeforeAttach, Name: view.NoHolder, Holder: view.NoHolder, What: "", Bytes: kib(7) + 512, Blocks: 2,
			Share: share(kib(7) + 512)},
		{Site: line, Name: average, Holder: average, What: "optimizer state", Bytes: kib(6), Blocks: 1, Share: share(kib(6))},
		{Site: line, Name: view.NoHolder, Holder: view.NoHolder, What: "", Bytes: kib(3), Blocks: 1, Share: share(kib(3))},
	}, j.Rows)

	account := heap.Account{PID: 7, Device: event.Device{Type: event.DeviceCUDA}, Before: kib(23) + 512}
	require.Equal(t, []figures.HeldPart{{Holder: "model.blocks[0..1].mlp.weight", Bytes: kib(16), Blocks: 2},
		{Holder: view.NoHolder, Bytes: kib(7) + 512, Blocks: 2}}, j.Before(&account))
	account.Before += 4096 // blocks that nobody knows
	require.Equal(t, []figures.HeldPart{{Holder: "model.blocks[0..1].mlp.weight", Bytes: kib(16), Blocks: 2},
		{Holder: view.NoHolder, Bytes: kib(11) + 512, Blocks: 0}}, j.Before(&account))
	require.Equal(t, []figures.HeldPart{{Holder: "model.blocks[0..1].mlp.weight", Bytes: kib(16), Blocks: 2},
		{Holder: view.NoHolder, Bytes: kib(11) + 512, Blocks: 0}}, j.Before(&account), "nothing is changed by asking")
	require.Equal(t, []figures.HeldPart{{Holder: view.NoHolder, Bytes: 512, Blocks: 0}}, j.Before(&heap.Account{PID: 9, Before: 512}))
	require.Empty(t, j.Before(&heap.Account{PID: 9}))
}

// TestJoinCalls: the blocks of a line that calls a library are also divided by what it calls.
func TestJoinCalls(t *testing.T) {
	r := mixedReport()
	r.Time = 100
	blocks := []heap.Block{live(r, 0, heap.OriginEvent, 1), live(r, 1, heap.OriginEvent, 2), live(r, 3, heap.OriginEvent, 3)}
	s := &heap.Snapshot{}
	for _, b := range blocks {
		s.Sites = append(s.Sites, heap.Site{Layer: b.Layer, Device: b.Device, PID: b.PID, Stack: b.Stack, Origin: b.Origin})
	}
	const main = " /home/a/train.py:9:main"
	j := New(r).Join(view.New(s, func(id event.StackID) *event.Stack {
		return eventtest.Stack(map[event.StackID]string{
			1: eventtest.Report + " /usr/lib/python3/dist-packages/kit/optim.py:20:step" + main,
			2: eventtest.Report + " /usr/lib/python3/dist-packages/kit/loop.py:30:evaluate" + main, 3: eventtest.Report + main,
		}[id])
	}, nil), slices.Values(blocks))
	var got [][2]string
	for _, c := range j.Calls {
		require.Equal(t, "train.py:9 main", c.Site)
		got = append(got, [2]string{c.Call, c.Name})
	}
	require.Equal(t, [][2]string{
		{"loop.py:30 evaluate", "model.blocks[0..1].mlp.weight"}, {"optim.py:20 step", "model.blocks[0..1].mlp.weight"},
	}, got)
	require.Len(t, j.Rows, 2, "by line")
}
