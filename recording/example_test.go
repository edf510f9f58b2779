package recording_test

import (
	"errors"
	"fmt"
	"io"
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
	fmt.Println(site.Inuse.Bytes, "bytes by", r.Stack(site.Stack).Frames[0].Label())
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
		Time: 1, PID: 4242, Kind: event.KindAlloc, Layer: event.LayerTorch, Device: event.Device{Type: event.DeviceCUDA},
		Addr: 0x1000_0000, Size: 1 << 20, Requested: 1 << 20, Allocated: 1 << 20, Reserved: 2 << 20,
		Handle: event.Unknown, Context: event.Unknown, Stack: stack.ID,
	}})
	return errors.Join(err, w.Close(&recording.End{Reason: recording.ReasonStopped}))
}

// A reader is an event.Source: its events can be taken one by one.
func ExampleReader_Read() {
	r, err := recording.Open("../cmd/gputrace/testdata/recording-1.0.gputrace")
	if err != nil {
		panic(err)
	}
	defer r.Close()
	allocations := 0
	buf := make([]event.Event, 0, 1024)
	for {
		buf, err = r.Read(buf[:0])
		for _, e := range buf {
			if e.Kind == event.KindAlloc && e.Layer == event.LayerTorch {
				allocations++
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(err)
		}
	}
	fmt.Println(allocations > 0)
	// Output: true
}
