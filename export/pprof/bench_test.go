// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"io"
	"testing"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// BenchmarkWrite writes a profile of 10,000 stacks of 60 frames.
func BenchmarkWrite(b *testing.B) {
	known := map[event.StackID]*event.Stack{}
	r := &recorder{heap.New(), map[event.Device]uint64{}, 1 << 40}
	for i := range 10000 {
		id := event.StackID(i + 1)
		st := &event.Stack{ID: id}
		for j := range 30 {
			st.Frames = append(st.Frames, native(torch, uint64(i*7+j*13)%20000*16, "at::f", "_Zf"),
				line("/home/a/model.py", (i*3+j*11)%5000, "forward"))
		}
		known[id] = st
		r.torch(7, cuda0, id, 512)
	}
	snapshot := r.h.Snapshot()
	b.ReportAllocs()
	for b.Loop() {
		v := view.New(snapshot, func(id event.StackID) *event.Stack { return known[id] }, nil)
		if err := Write(io.Discard, Input{View: v}); err != nil {
			b.Fatal(err)
		}
	}
}
