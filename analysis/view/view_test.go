// SPDX-License-Identifier: Apache-2.0

package view

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	allocators "github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

var cuda0 = event.Device{Type: event.DeviceCUDA, Index: 0}

// count is live memory of which as much again was freed already.
func count(objects, bytes uint64) (alloc, inuse heap.Count) {
	return heap.Count{Objects: 2 * objects, Bytes: 2 * bytes}, heap.Count{Objects: objects, Bytes: bytes}
}

func site(layer event.Layer, pid uint32, stack event.StackID, objects, bytes uint64) heap.Site {
	s := heap.Site{Layer: layer, Device: cuda0, PID: pid, Stack: stack}
	s.Alloc, s.Inuse = count(objects, bytes)
	return s
}

var knownStacks = map[event.StackID]*event.Stack{
	1: eventtest.Stack("a.so!at::empty " + eventtest.Library + " " + eventtest.Own),
	2: eventtest.Stack("b.so!at::zeros " + eventtest.Own),
	3: eventtest.Stack(eventtest.Report + " libc10_cuda.so!? a.so!at::empty libc.so.6!start_thread"),
	4: eventtest.Stack("libcuda.so.1!cuMemAlloc_v2 libcudart.so.13!cudaMalloc libc10_cuda.so!? " + eventtest.Own),
	5: eventtest.Stack("libcuda.so.1!cuMemCreate libnccl.so.2!ncclCommInit /home/a/t.py:9:main"),
	6: {ID: 6, Status: event.StatusLost},
}

func resolve(id event.StackID) *event.Stack { return knownStacks[id] }

func snapshot() *heap.Snapshot {
	segment := site(event.LayerDevice, 7, 9, 1, 1<<21)
	segment.Segment = true
	return &heap.Snapshot{
		Totals: heap.Totals{Accounts: []heap.Account{{PID: 7, Device: cuda0, Allocated: 10000, Before: 4000, Live: heap.Count{Bytes: 6000}}}},
		Sites: []heap.Site{
			site(event.LayerAllocator, 7, 0, 1, 100),
			site(event.LayerAllocator, 7, 1, 3, 3000),
			site(event.LayerAllocator, 7, 2, 2, 2000),
			site(event.LayerAllocator, 7, 3, 4, 700),
			site(event.LayerAllocator, 7, 6, 1, 150),
			site(event.LayerAllocator, 7, 77, 1, 50),
			site(event.LayerDevice, 7, 4, 1, 1<<20), // a segment without a block yet
			site(event.LayerDevice, 7, 5, 1, 10000),
			segment,
			site(event.LayerDevice, 8, 4, 1, 500), // a process whose allocator does not report: it is not cached
			site(event.LayerHost, 7, 5, 1, 1<<30),
		},
	}
}

func TestNames(t *testing.T) {
	v := New(snapshot(), resolve, nil)
	var names []string
	for i := range v.Sites {
		names = append(names, v.Sites[i].Name+" / "+v.Sites[i].Status())
	}
	require.Equal(t, []string{
		"[no stack] / no stack", "gpt.py:38 Block.forward / complete", "gpt.py:38 Block.forward / complete", "at::empty / complete",
		"[unknown stack] / lost", "[unknown stack] / unknown stack", "gpt.py:38 Block.forward / complete", "t.py:9 main / complete",
		"[unknown stack] / unknown stack", "gpt.py:38 Block.forward / complete", "t.py:9 main / complete",
	}, names)
}

func TestTables(t *testing.T) {
	v := New(snapshot(), resolve, nil)
	require.EqualValues(t, 10000+10000+500, v.Total())

	python := v.ByPython(0)
	require.Equal(t, []Row{
		{Name: "t.py:9", Func: "main", File: "/home/a/t.py", Line: 9, Bytes: 10000, Blocks: 1, Share: 10000. / 20500},
		{Name: "gpt.py:38", Func: "Block.forward", File: "/home/a/gpt.py", Line: 38, Bytes: 5500, Blocks: 6, Share: 5500. / 20500},
	}, python.Rows)
	native := v.ByNative(0)
	require.Equal(t, []Row{
		{Name: "at::empty", Bytes: 700, Blocks: 4, Share: 700. / 20500},
		{Name: "[unknown stack]", Bytes: 200, Blocks: 2, Share: 200. / 20500},
		{Name: "[no stack]", Bytes: 100, Blocks: 1, Share: 100. / 20500},
	}, native.Rows)
	// Every live byte that was seen is in exactly one of the two.
	require.EqualValues(t, 6000+10000+500, python.Bytes+native.Bytes)

	top := v.ByNative(1)
	require.Len(t, top.Rows, 1)
	require.Equal(t, Table{Rows: native.Rows[:1], More: 2, Bytes: 1000, Blocks: 7}, top)
}

func TestDevices(t *testing.T) {
	v := New(snapshot(), resolve, nil)
	require.Equal(t, []Device{
		{PID: 7, Device: cuda0, Segments: heap.Count{Objects: 2, Bytes: 1<<21 + 1<<20}, Other: heap.Count{Objects: 1, Bytes: 10000}},
		{PID: 8, Device: cuda0, Other: heap.Count{Objects: 1, Bytes: 500}},
	}, v.Devices())
}

func TestStacks(t *testing.T) {
	v := New(snapshot(), resolve, nil)
	require.Equal(t, []StackUse{
		{"complete", 3000 + 2000 + 700 + 10000 + 500, 11}, {"lost", 150, 1}, {"no stack", 100, 1}, {"unknown stack", 50, 1},
	}, v.Stacks())
}

func TestLibraryOption(t *testing.T) {
	v := New(snapshot(), resolve, &Options{Library: []string{"/home/a/gpt"}})
	require.Equal(t, "linear.py:125 Linear.forward", v.Sites[1].Name) // all library: the innermost
}

func TestUnknownTotalCountsWhatWasSeen(t *testing.T) {
	s := snapshot()
	s.Accounts[0].Allocated = event.Unknown
	require.EqualValues(t, 6000+10000+500, New(s, resolve, nil).Total())
}

func TestSource(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gpt.py")
	long := strings.Repeat("x", 3*4096)
	content := strings.Repeat("\n", 36) + long + "\n\t x =\ty + \x1b[31m\xff z\n" // line 37 is long, 38 is asked for
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	var opened []string
	closed := 0
	v := New(snapshot(), resolve, &Options{Source: func(path string) io.Reader {
		opened = append(opened, path)
		if path != "/home/a/gpt.py" {
			return nil
		}
		f, err := os.Open(file)
		require.NoError(t, err)
		return &closer{f, &closed}
	}})
	rows := v.ByPython(0).Rows
	require.Equal(t, []string{"", "x = y + �[31m� z"}, []string{rows[0].Source, rows[1].Source})
	require.ElementsMatch(t, []string{"/home/a/gpt.py", "/home/a/t.py"}, opened)
	require.Equal(t, 1, closed)
}

type closer struct {
	*os.File
	n *int
}

func (c *closer) Close() error {
	*c.n++
	return c.File.Close()
}

func TestSourceEndsBeforeTheLine(t *testing.T) {
	v := New(snapshot(), resolve, &Options{Source: func(string) io.Reader { return strings.NewReader("one\ntwo") }})
	require.Empty(t, v.ByPython(1).Rows[0].Source)
}

// Blocks that are known from the allocator state only are named after that. Those from before are in the account's figure.
func TestOrigins(t *testing.T) {
	s := snapshot()
	before, recovered := site(event.LayerAllocator, 7, 0, 2, 4000), site(event.LayerAllocator, 7, 0, 1, 60)
	before.Origin, recovered.Origin = heap.OriginBefore, heap.OriginRecovered
	s.Sites = []heap.Site{before, recovered}
	v := New(s, resolve, nil)
	require.Equal(t, []string{stacks.BeforeAttach, stacks.LostEvents}, []string{v.Sites[0].Name, v.Sites[1].Name})
	require.Equal(t, []bool{false, true}, []bool{v.Sites[0].Counted(), v.Sites[1].Counted()})
	require.Equal(t, []Row{{Name: stacks.LostEvents, Bytes: 60, Blocks: 1, Share: 60.0 / 10000}}, v.ByNative(0).Rows)
}

// TestAside: estimates from samples are the figures if there are no others, and in no sum beside exact ones.
func TestAside(t *testing.T) {
	s := snapshot()
	exact := New(s, resolve, nil).Total()
	sampled := site(event.LayerAllocator, 7, 0, 2, 4000)
	sampled.Device.Type = sampled.Device.Type.Of(allocators.OTel)
	account := heap.Account{PID: 7, Device: sampled.Device, Allocated: event.Unknown, Live: sampled.Inuse}
	s.Sites, s.Accounts = append(s.Sites, sampled), append(s.Accounts, account)
	v := New(s, resolve, nil)
	require.Equal(t, exact, v.Total())
	require.True(t, v.Sites[0].Counted())
	require.False(t, v.Sites[len(v.Sites)-1].Counted())
	alone := New(&heap.Snapshot{Sites: []heap.Site{sampled}, Totals: heap.Totals{Accounts: []heap.Account{account}}}, resolve, nil)
	require.EqualValues(t, 4000, alone.Total())
	require.EqualValues(t, 4000, alone.ByNative(0).Bytes)
}

// TestBackwardSite: a site in the backward pass is one, named by the line of forward that it follows.
func TestBackwardSite(t *testing.T) {
	marked := *eventtest.Stack("a.so!at::empty " + eventtest.Own)
	marked.Frames = append(append([]event.Frame{marked.Frames[0]}, stacks.Mark()), marked.Frames[1:]...)
	known := map[event.StackID]*event.Stack{1: eventtest.Stack("a.so!at::empty " + eventtest.Own), 2: &marked}
	v := New(&heap.Snapshot{Sites: []heap.Site{site(event.LayerAllocator, 7, 1, 1, 512), site(event.LayerAllocator, 7, 2, 1, 512)}},
		func(id event.StackID) *event.Stack { return known[id] }, nil)
	require.False(t, v.Sites[0].Backward)
	require.True(t, v.Sites[1].Backward)
	require.Equal(t, "[backward of] "+v.Sites[0].Name, v.Sites[1].Name)
}
