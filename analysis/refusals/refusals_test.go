// SPDX-License-Identifier: Apache-2.0

package refusals

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Stacks of the made events: of the caching allocator's own calls, of an extension's, and of the backward pass's threads.
const (
	stackSegment event.StackID = iota + 1
	stackOther
	stackNative
	stackAsync
	stackAgain
	stackBackward
)

// refusalsOf is what a list of events says of refused requests, of a process with a caching allocator or without.
// Times are the numbers of the events, from 1.
func refusalsOf(cache bool, events ...event.Event) ([]Refusal, int) {
	allocator := &event.Module{Path: "/torch/lib/libc10_cuda.so"}
	driver := event.Frame{Kind: event.FrameNative, Func: "cuMemAlloc_v2", Module: &event.Module{Path: "/lib/libcuda.so.1"}}
	async := event.Frame{Kind: event.FrameNative, Func: "cudaMallocAsync", Module: &event.Module{Path: "/lib/libcudart.so.13"}}
	python := event.Frame{Kind: event.FramePython, Func: "main", File: "/app/train.py", Line: 1}
	known := map[event.StackID]*event.Stack{
		stackSegment: {Frames: []event.Frame{driver, {Kind: event.FrameNative, Module: allocator}, python}},
		stackOther:   {Frames: []event.Frame{driver, {Kind: event.FrameNative, Func: "extension"}, python}},
		stackAsync:   {Frames: []event.Frame{async, {Kind: event.FrameNative, Module: allocator, Func: "mallocAsync"}, python}},
		stackAgain:   {Frames: []event.Frame{async, {Kind: event.FrameNative, Module: allocator, Func: "mallocAsync", Line: 9}, python}},
		stackNative:  {Frames: []event.Frame{{Kind: event.FrameNative, Func: "torch::autograd::Engine"}}},
		// of a node that python made in the forward pass
		stackBackward: {Frames: []event.Frame{{Kind: event.FrameNative, Func: "torch::autograd::Engine"}, stacks.Mark(), python}},
	}
	var l Log
	for i := range events {
		e := &events[i]
		e.Time, e.PID = uint64(i+1), 1
		if e.TID == 0 {
			e.TID = 1
		}
		l.See(e)
	}
	return l.Failed(&Program{Stack: func(id event.StackID) *event.Stack { return known[id] },
		Cache: func(pid uint32) bool { return cache && pid == 1 }})
}

func refuse(layer event.Layer, stack event.StackID) event.Event {
	return event.Event{Kind: event.KindOutOfMemory, Layer: layer, Size: 64, Call: "cudaMalloc", Stack: stack}
}

func give(layer event.Layer, stack event.StackID) event.Event {
	e := refuse(layer, stack)
	e.Kind = event.KindAlloc
	return e
}

func on(tid uint32, e event.Event) event.Event {
	e.TID = tid
	return e
}

// TestRefusalsAsync: PyTorch's backend cudaMallocAsync, in a process without a caching allocator, asks again from another place of its own.
func TestRefusalsAsync(t *testing.T) {
	ask := func(kind event.Kind, stack event.StackID, size uint64) event.Event {
		return event.Event{Kind: kind, Layer: event.LayerDevice, Size: size, Call: "cudaMallocAsync", Stack: stack}
	}
	first, again, given := ask(event.KindOutOfMemory, stackAsync, 64), ask(event.KindOutOfMemory, stackAgain, 64),
		ask(event.KindAlloc, stackAgain, 64)
	small := ask(event.KindAlloc, stackAsync, 8)
	for name, tt := range map[string]struct {
		events            []event.Event
		failed, recovered int
		tries             int // of the first
	}{
		"once":                            {[]event.Event{first}, 1, 0, 0},
		"twice":                           {[]event.Event{first, again}, 1, 0, 1},
		"given the second time":           {[]event.Event{first, given}, 0, 1, 0},
		"from the same place":             {[]event.Event{first, first}, 2, 0, 0},
		"two requests, each asked twice":  {[]event.Event{first, again, first, again}, 2, 0, 1},
		"another request between":         {[]event.Event{first, small, again}, 2, 0, 0},
		"another thread":                  {[]event.Event{first, on(2, again)}, 2, 0, 0},
		"another size":                    {[]event.Event{first, ask(event.KindOutOfMemory, stackAgain, 65)}, 2, 0, 0},
		"refused twice, then a small one": {[]event.Event{first, again, small}, 1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			failed, recovered := refusalsOf(false, tt.events...)
			require.Len(t, failed, tt.failed)
			require.Equal(t, tt.recovered, recovered)
			if tt.failed > 0 {
				require.Len(t, failed[0].Tries, tt.tries)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	try, reported, got := refuse(event.LayerDevice, stackSegment), refuse(event.LayerAllocator, stackOther),
		give(event.LayerAllocator, stackOther)
	other, given := refuse(event.LayerDevice, stackOther), give(event.LayerDevice, stackOther)
	type want struct {
		time   uint64
		tries  int
		wentOn bool
	}
	for name, tt := range map[string]struct {
		events    []event.Event
		failed    []want
		recovered int
	}{
		"reported after two tries":             {[]event.Event{got, try, try, reported}, []want{{4, 2, false}}, 0},
		"caught":                               {[]event.Event{try, reported, got}, []want{{2, 1, true}}, 0},
		"asked again and refused again":        {[]event.Event{try, reported, try, reported}, []want{{2, 1, true}, {4, 1, false}}, 0},
		"without asking the driver":            {[]event.Event{reported}, []want{{1, 0, false}}, 0},
		"another thread went on":               {[]event.Event{reported, on(2, got)}, []want{{1, 0, false}}, 0},
		"the program went on for the backward": {[]event.Event{refuse(event.LayerAllocator, stackNative), on(2, got)}, []want{{1, 0, true}}, 0},
		"a backward pass of a line went on":    {[]event.Event{refuse(event.LayerAllocator, stackBackward), on(2, got)}, []want{{1, 0, true}}, 0},
		"recovered":                            {[]event.Event{try, give(event.LayerDevice, stackSegment), got}, nil, 1},
		"recovered at the third":               {[]event.Event{try, try, give(event.LayerDevice, stackSegment), got}, nil, 1},
		"two that recovered":                   {[]event.Event{try, got, try, got}, nil, 2},
		"pages were given in between": {[]event.Event{try, give(event.LayerDevice, stackSegment), try, reported},
			[]want{{4, 2, false}}, 0},
		"another thread's report": {[]event.Event{try, on(2, reported), give(event.LayerDevice, stackSegment)},
			[]want{{2, 0, false}}, 1},
		"an extension's":                      {[]event.Event{other}, []want{{1, 0, false}}, 0},
		"an extension's, that went on":        {[]event.Event{other, got}, []want{{1, 0, true}}, 0},
		"an extension's, given the next time": {[]event.Event{other, given}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			failed, recovered := refusalsOf(true, tt.events...)
			var got []want
			for i := range failed {
				got = append(got, want{failed[i].Event.Time, len(failed[i].Tries), failed[i].WentOn})
			}
			require.Equal(t, tt.failed, got)
			require.Equal(t, tt.recovered, recovered)
		})
	}
}

// TestManyRefusals: of a program that was refused memory more often than is kept, the first and the last failure
// are there, and the counts are those of all.
func TestManyRefusals(t *testing.T) {
	try, reported, got := refuse(event.LayerDevice, stackSegment), refuse(event.LayerAllocator, stackOther),
		give(event.LayerAllocator, stackOther)
	other, given := refuse(event.LayerDevice, stackOther), give(event.LayerDevice, stackOther)
	const n = 3 * keptRefusals
	for name, tt := range map[string]struct {
		round             []event.Event // n times
		then              []event.Event
		failed, recovered int
		tries             int  // of the last
		wentOn            bool // of the last
	}{
		"recovered, then fatal":               {[]event.Event{try, try, got}, []event.Event{try, try, reported}, 1, n, 2, false},
		"caught":                              {[]event.Event{try, reported, got}, nil, n, 0, 1, true},
		"caught, then fatal":                  {[]event.Event{try, reported, got}, []event.Event{reported}, n + 1, 0, 0, false},
		"caught once, then recovered":         {[]event.Event{try, got}, nil, 0, n, 0, false},
		"an extension's":                      {[]event.Event{other, got}, nil, n, 0, 0, true},
		"an extension's, given the next time": {[]event.Event{other, given}, []event.Event{try, reported}, 1, n, 1, false},
		"of a thread that waits":              {[]event.Event{on(2, try), on(2, got)}, []event.Event{reported}, 1, n, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			var events []event.Event
			for range n {
				events = append(events, tt.round...)
			}
			failed, recovered := refusalsOf(true, append(events, tt.then...)...)
			require.Equal(t, tt.recovered, recovered)
			all := len(failed)
			for i := range failed {
				all += failed[i].Skipped
			}
			require.Equal(t, tt.failed, all)
			if tt.failed == 0 {
				return
			}
			require.LessOrEqual(t, len(failed), keptOOMs)
			last := failed[len(failed)-1]
			require.Len(t, last.Tries, tt.tries)
			require.Equal(t, tt.wentOn, last.WentOn)
			if tt.then != nil {
				require.EqualValues(t, n*len(tt.round)+len(tt.then), last.Event.Time, "the very last")
			}
		})
	}
}

// TestManyRefusalsAsync: of the backend cudaMallocAsync, which asks twice, each request counts once.
func TestManyRefusalsAsync(t *testing.T) {
	ask := func(stack event.StackID) event.Event {
		return event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerDevice, Size: 64, Call: "cudaMallocAsync", Stack: stack}
	}
	var events []event.Event
	for range 3 * keptRefusals {
		events = append(events, ask(stackAsync), ask(stackAgain))
	}
	failed, recovered := refusalsOf(false, events...)
	require.Zero(t, recovered)
	require.Len(t, failed, keptOOMs)
	all := len(failed)
	for i := range failed {
		all += failed[i].Skipped
	}
	require.Equal(t, 3*keptRefusals, all)
}
