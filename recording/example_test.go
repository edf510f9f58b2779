// SPDX-License-Identifier: Apache-2.0

package recording_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// A recording is written as events come, with the names of their stacks, and replayed into a live set.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "trace.gputrace")
	if err := record(path); err != nil {
		panic(err)
	}
	r, err := recording.Open(path)
	if err != nil {
		panic(err)
	}
	defer r.Close()
	h := heap.New()
	if err := h.Replay(r); err != nil {
		panic(err)
	}
	site := h.Snapshot().Sites[0]
	fmt.Println(r.Info().Name, "pid", r.Info().PID, "ended:", r.End().Reason)
	f := r.Stack(site.Stack).Frames[0]
	fmt.Printf("%d bytes by %s (%s:%d)\n", site.Inuse.Bytes, f.Func, f.File, f.Line)
	// Output:
	// train.py pid 4242 ended: stopped
	// 1048576 bytes by step (train.py:7)
}

// record writes a recording of one allocation.
func record(path string) error {
	stack := event.Stack{ID: 7, Frames: []event.Frame{{Kind: event.FramePython, Func: "step", File: "train.py", Line: 7}}}
	resolve := func(event.StackID) *event.Stack { return &stack }
	w, err := recording.Create(path, &recording.Info{PID: 4242, Name: "train.py"}, resolve, nil)
	if err != nil {
		return err
	}
	err = w.Write([]event.Event{{
		Time: 1, PID: 4242, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA},
		Addr: 0x1000_0000, Size: 1 << 20, Requested: 1 << 20, Allocated: 1 << 20, Reserved: 2 << 20,
		Handle: event.Unknown, Context: event.Unknown, Stack: stack.ID,
	}})
	return errors.Join(err, w.Close(&recording.End{Reason: recording.ReasonStopped}))
}
