// SPDX-License-Identifier: Apache-2.0

package rows_test

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/rows"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// alloc is an allocation of a torch block of 512 bytes, at the given second.
func alloc(second, addr uint64, stack event.StackID) event.Event {
	return event.Event{
		Time: second * 1e9, PID: 7, TID: 8, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
		Addr: addr, Size: 512, Requested: 500, Stream: 3, Stack: stack,
		Handle: event.Unknown, Context: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown,
	}
}

// list returns the rows of a stream by their addresses. Boot is when its time was 0.
func list(t *testing.T, s *eventtest.Stream, boot time.Time) map[uint64]rows.Row {
	t.Helper()
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	out := map[uint64]rows.Row{}
	table := rows.Table{Trace: trace, Boot: boot}
	require.NoError(t, table.Each(view.Selection{}, func(r *rows.Row) error {
		require.NotContains(t, out, r.Addr)
		out[r.Addr] = *r
		return nil
	}))
	return out
}

// python is a stack of one line of the program's.
func python(id event.StackID, line int) *event.Stack {
	return &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, Func: "train", File: "/home/anna/train.py", Line: line}}}
}

// A stack's columns are of that stack, whatever its number is, and null where there is none.
func TestStackOfARow(t *testing.T) {
	s := &eventtest.Stream{
		Events: []event.Event{alloc(1, 0x1000, 1), alloc(2, 0x2000, 2), alloc(3, 0x3000, 0), alloc(4, 0x4000, 2)},
		Stacks: map[event.StackID]*event.Stack{1: python(1, 10), 2: python(2, 20)},
	}
	got := list(t, s, time.Time{})
	require.Len(t, got, 4)
	for addr, want := range map[uint64]struct {
		id   uint64
		line string
	}{0x1000: {1, "/home/anna/train.py:10"}, 0x2000: {2, "/home/anna/train.py:20"}, 0x4000: {2, "/home/anna/train.py:20"}} {
		r := got[addr]
		require.Equal(t, want.id, *r.StackID)
		require.Equal(t, want.line, *r.LeafPy)
		require.Contains(t, *r.Stack, "train")
	}
	none := got[0x3000]
	require.Nil(t, none.StackID)
	require.Nil(t, none.Stack)
	require.Nil(t, none.LeafPy)
}

// Times are of the wall clock; what is not known, or has not happened, is null and not 0.
func TestColumns(t *testing.T) {
	freed := alloc(3, 0x1000, 1)
	freed.Kind = event.KindFree
	unknown := alloc(4, 0x2000, 0)
	unknown.Requested, unknown.Stream, unknown.TID = event.Unknown, event.Unknown, 0
	s := &eventtest.Stream{
		Events: []event.Event{alloc(1, 0x1000, 1), freed, unknown},
		Stacks: map[event.StackID]*event.Stack{1: python(1, 10)},
	}
	boot := time.Unix(1_700_000_000, 0)
	got := list(t, s, boot)
	require.Len(t, got, 2)
	r := got[0x1000]
	require.Equal(t, boot.Add(time.Second).UnixNano(), *r.TS)
	require.Equal(t, boot.Add(3*time.Second).UnixNano(), *r.FreeTS)
	require.Equal(t, int64(2*time.Second), *r.Dur)
	require.Equal(t, []int64{512, 500, 7, 8}, []int64{*r.Bytes, *r.Requested, *r.PID, *r.TID})
	require.Equal(t, uint64(3), *r.Stream)
	require.Equal(t, []string{"torch", "cuda:0", "event"}, []string{r.Layer, r.Device, r.Origin})
	require.Equal(t, []string{"other", "unknown"}, []string{r.Phase, r.Category})
	require.Nil(t, r.Step)
	require.Nil(t, r.Holder)
	r = got[0x2000]
	require.Equal(t, boot.Add(4*time.Second).UnixNano(), *r.TS)
	require.Nil(t, r.FreeTS)
	require.Nil(t, r.Dur)
	require.Nil(t, r.Requested)
	require.Nil(t, r.Stream)
	require.Nil(t, r.TID)
	require.Nil(t, r.Call)
}

// A name of the program's that is no UTF-8 is made some: readers of tables refuse the file else.
func TestNamesAreUTF8(t *testing.T) {
	st := python(1, 10)
	st.Frames[0].Func = "f\xff"
	got := list(t, &eventtest.Stream{Events: []event.Event{alloc(1, 0x1000, 1)}, Stacks: map[event.StackID]*event.Stack{1: st}}, time.Time{})
	require.True(t, utf8.ValidString(*got[0x1000].Stack), "%q", *got[0x1000].Stack)
}

// The columns of phases are those of the stack, of the lifetime, of the steps and of what holds the block at the end.
func TestPhaseColumns(t *testing.T) {
	st := eventtest.Stack("a.so!f /v/site-packages/torch/nn/modules/module.py:1798:Module._call_impl /home/anna/train.py:3:main")
	freed := alloc(3, 0x1000, 0)
	freed.Kind = event.KindFree
	s := &eventtest.Stream{
		Events: []event.Event{alloc(1, 0x1000, 1), alloc(2, 0x2000, 1), freed},
		Stacks: map[event.StackID]*event.Stack{1: st},
	}
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	trace.SetSteps(func(time uint64) int { return int(time/1e9) - 1 })
	key := heap.BlockKey{PID: 7, Layer: event.LayerAllocator, Addr: 0x2000, Time: 2e9}
	trace.SetHeld(map[heap.BlockKey]view.HeldBlock{key: {Holder: "model.*", Name: "model.a", Category: phases.Parameters}})
	var got []rows.Row
	table := rows.Table{Trace: trace}
	require.NoError(t, table.Each(view.Selection{}, func(r *rows.Row) error {
		got = append(got, *r)
		return nil
	}))
	require.Equal(t, []string{"forward", "temporary"}, []string{got[0].Phase, got[0].Category})
	require.Nil(t, got[0].Step, "before the first step")
	require.Equal(t, []string{"forward", "parameters", "model.a"}, []string{got[1].Phase, got[1].Category, *got[1].Holder})
	require.EqualValues(t, 1, *got[1].Step)
}
