// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// cuda is the device of the tests.
var cuda = event.Device{Type: event.DeviceCUDA}

// block is one of PyTorch's.
func block(stack event.StackID, requested, size uint64) *heap.Block {
	return &heap.Block{PID: eventtest.PID, Layer: event.LayerAllocator, Device: cuda, Size: size, Requested: requested, Stack: stack}
}

// churn is a detector after steps of gigabytes that are allocated and freed, and 512 bytes that stay of each.
func churn(steps int) *detector {
	frames := map[event.StackID]*event.Stack{}
	for id := event.StackID(1); id <= 20; id++ {
		frames[id] = eventtest.Stack(eventtest.Report + " /home/a/train.py:" + string(rune('0'+id/10)) + string(rune('0'+id%10)) + ":main")
	}
	d := newDetector(nil, func(id event.StackID) *event.Stack { return frames[id] })
	for step := 1; step <= steps; step++ {
		d.step = step
		for id := event.StackID(1); id < 20; id += 18 {
			d.allocated(block(id, 1<<30, 1<<30))
		}
		d.allocated(block(20, 4, 512))
		for id := event.StackID(1); id < 20; id += 18 {
			d.freed(block(id, 1<<30, 1<<30))
		}
	}
	d.end(steps)
	return d
}

// size is the bytes that a detector keeps alive.
func size(steps int) (d *detector, bytes int64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what has a finalizer
	runtime.ReadMemStats(&before)
	d = churn(steps)
	runtime.GC()
	runtime.ReadMemStats(&after)
	return d, int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

func TestBoundedMemory(t *testing.T) {
	short, small := size(10_000)
	long, large := size(1_000_000)
	require.Less(t, large, small+16<<10, "a million steps take what ten thousand do")
	for steps, d := range map[int]*detector{10_000: short, 1_000_000: long} {
		of, o := &Steps{Count: steps, Last: steps, Period: 1e6}, &Options{Free: map[event.Device]uint64{cuda: 1 << 30}}
		found := d.findings(of, o)
		require.Len(t, found, 1)
		fill(found, of, o)
		f := found[0]
		require.Equal(t, "train.py:20 main", f.Name())
		require.Equal(t, Leak, f.Kind)
		require.Equal(t, High, f.Confidence)
		require.Equal(t, []float64{1, 4, 512, 1}, []float64{f.Blocks, f.Requested, f.Bytes, f.Share})
		require.Equal(t, []int{1, 1, steps}, []int{f.Period, f.First, f.Last})
		require.InDelta(t, steps, f.LiveBlocks, 1)
		require.InDelta(t, 1<<30/512*1e-3, f.Seconds, 1e-6)
		require.Contains(t, f.Advice(), ".item()")
	}
}
