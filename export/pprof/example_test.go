// SPDX-License-Identifier: Apache-2.0

package pprof_test

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/heap"
)

// A profile is written from a view of a live set; its total is the allocator's, to the byte.
func Example() {
	stack := event.Stack{ID: 7, Frames: []event.Frame{{Kind: event.FramePython, Func: "step", File: "train.py", Line: 7}}}
	h := heap.New()
	h.Apply(&event.Event{
		Time: 1, PID: 4242, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
		Addr: 0x1000_0000, Size: 1 << 20, Requested: 1 << 20, Allocated: 1 << 20, Reserved: 2 << 20,
		Handle: event.Unknown, Context: event.Unknown, Stack: stack.ID,
	})
	v := view.New(h.Snapshot(), func(event.StackID) *event.Stack { return &stack }, nil)

	var out bytes.Buffer
	if err := pprof.Write(&out, pprof.Input{View: v, Kind: pprof.InUse, Time: time.Unix(0, 0)}); err != nil {
		panic(err)
	}
	p, err := profile.Parse(&out) // as go tool pprof reads it
	if err != nil {
		panic(err)
	}
	for i, t := range p.SampleType {
		fmt.Println(t.Type, p.Sample[0].Value[i], t.Unit)
	}
	// Output:
	// alloc_objects 1 count
	// alloc_space 1048576 bytes
	// inuse_objects 1 count
	// inuse_space 1048576 bytes
}
