// SPDX-License-Identifier: Apache-2.0

package refusals

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// Stacks of the made events: of the caching allocator's own calls, of an extension's, and of the backward pass's threads.
const (
	stackSegment event.StackID = iota + 1
	stackOther
	stackNative
)

// refusalsOf is what a list of events says of refused requests. Times are the numbers of the events, from 1.
func refusalsOf(events ...event.Event) ([]Refusal, int) {
	allocator := &event.Module{Path: "/torch/lib/libc10_cuda.so"}
	driver := event.Frame{Kind: event.FrameNative, Func: "cuMemAlloc_v2", Module: &event.Module{Path: "/lib/libcuda.so.1"}}
	python := event.Frame{Kind: event.FramePython, Func: "main", File: "/app/train.py", Line: 1}
	known := map[event.StackID]*event.Stack{
		stackSegment: {Frames: []event.Frame{driver, {Kind: event.FrameNative, Module: allocator}, python}},
		stackOther:   {Frames: []event.Frame{driver, {Kind: event.FrameNative, Func: "extension"}, python}},
		stackNative:  {Frames: []event.Frame{{Kind: event.FrameNative, Func: "torch::autograd::Engine"}}},
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
	return l.Failed(&Program{Stack: func(id event.StackID) *event.Stack { return known[id] }, Cache: func(pid uint32) bool { return pid == 1 }})
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

func TestRefusals(t *testing.T) {
	try, reported, got := refuse(event.LayerDevice, stackSegment), refuse(event.LayerTorch, stackOther), give(event.LayerTorch, stackOther)
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
		"the program went on for the backward": {[]event.Event{refuse(event.LayerTorch, stackNative), on(2, got)}, []want{{1, 0, true}}, 0},
		"recovered":                            {[]event.Event{try, give(event.LayerDevice, stackSegment), got}, nil, 1},
		"recovered at the third":               {[]event.Event{try, try, give(event.LayerDevice, stackSegment), got}, nil, 1},
		"two that recovered":                   {[]event.Event{try, got, try, got}, nil, 2},
		"pages were given in between":          {[]event.Event{try, give(event.LayerDevice, stackSegment), try, reported}, []want{{4, 2, false}}, 0},
		"another thread's report":              {[]event.Event{try, on(2, reported), give(event.LayerDevice, stackSegment)}, []want{{2, 0, false}}, 1},
		"an extension's":                       {[]event.Event{other}, []want{{1, 0, false}}, 0},
		"an extension's, that went on":         {[]event.Event{other, got}, []want{{1, 0, true}}, 0},
		"an extension's, given the next time":  {[]event.Event{other, given}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			failed, recovered := refusalsOf(tt.events...)
			var got []want
			for i := range failed {
				got = append(got, want{failed[i].Event.Time, len(failed[i].Tries), failed[i].WentOn})
			}
			require.Equal(t, tt.failed, got)
			require.Equal(t, tt.recovered, recovered)
		})
	}
}
