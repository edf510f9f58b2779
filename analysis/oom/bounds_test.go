// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/refusals"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// mpsDevice is as c10/core/DeviceType.h numbers it.
const mpsDevice event.DeviceType = 13

const asyncCall = "libcudart.so!cudaMallocAsync libc10_cuda.so!c10::cuda::CUDACachingAllocator::CudaMallocAsync::mallocAsync " +
	"/home/a/train.py:5:main"

// TestAsyncTotals: the blocks of PyTorch's own calls of cudaMallocAsync add up by device, in a process without a caching allocator.
func TestAsyncTotals(t *testing.T) {
	trace, err := view.NewTrace(&eventtest.Stream{Stacks: map[event.StackID]*event.Stack{1: eventtest.Stack(asyncCall),
		2: eventtest.Stack(foreign)}}, nil)
	require.NoError(t, err)
	a := newAsync(trace)
	block := func(size uint64, change func(*heap.Block)) *heap.Block {
		b := &heap.Block{PID: 7, Layer: event.LayerDevice, Size: size, Stack: 1, Call: "cudaMallocAsync"}
		change(b)
		return b
	}
	plain := func(*heap.Block) {}
	for _, change := range []func(*heap.Block){
		func(b *heap.Block) { b.Layer = event.LayerAllocator }, func(b *heap.Block) { b.Size = u }, func(b *heap.Block) { b.Stack = 2 },
		func(b *heap.Block) { b.Stack, b.Call = 1, "cudaMallocAsync"; b.PID = 8 },
	} {
		a.caches[8] = true
		_, ok := a.allocated(block(10, change))
		require.False(t, ok)
		_, ok = a.freed(block(10, change))
		require.False(t, ok)
	}
	_, ok := a.only(7)
	require.False(t, ok, "there is none")
	require.False(t, a.has(7, event.Device{}))

	total, ok := a.allocated(block(10, plain))
	require.True(t, ok)
	require.EqualValues(t, 10, total)
	total, _ = a.allocated(block(30, plain))
	require.EqualValues(t, 40, total)
	total, ok = a.freed(block(10, plain))
	require.True(t, ok)
	require.EqualValues(t, 30, total)
	total, _ = a.freed(block(99, plain))
	require.Zero(t, total, "what was there before is in no total")
	require.True(t, a.has(7, event.Device{}))
	_, ok = a.only(7)
	require.True(t, ok)
	_, ok = a.only(9)
	require.False(t, ok)
	a.allocated(block(5, func(b *heap.Block) { b.Device.Index = 1 }))
	_, ok = a.only(7)
	require.False(t, ok, "there are two")
}

// TestLess: what is left of memory is never less than nothing.
func TestLess(t *testing.T) {
	of := func(objects, bytes uint64) heap.Count { return heap.Count{Objects: objects, Bytes: bytes} }
	require.Equal(t, of(3, 60), less(of(5, 100), of(2, 40)))
	require.Equal(t, of(0, 0), less(of(1, 10), of(2, 40)))
}

// TestCourseOfTotal: the total is kept once a second, and its peak of each step; the peaks of the last ten steps
// before a failure are kept apart.
func TestCourseOfTotal(t *testing.T) {
	f := &follower{in: &Input{Steps: &steps.Table{Source: steps.SourceOptimizer}}, totals: map[accountKey]*course{}}
	key := accountKey{7, event.Device{}}
	f.noteTotal(key, &event.Event{Time: 5e9}, 10, 15)
	f.noteTotal(key, &event.Event{Time: 6e9 - 1}, 90, 97)
	f.noteTotal(key, &event.Event{Time: 6e9}, 30, 97)
	f.noteTotal(key, &event.Event{Time: 7e9 - 1}, 20, 97)
	require.Equal(t, []point{{5e9, 10}, {6e9, 30}}, f.totals[key].points)
	require.Equal(t, []stepUse{{StepPeak: StepPeak{0, 90}, idle: 7}}, f.totals[key].steps)
	f.note(&event.Event{PID: 7, Time: 9e9, Allocated: u})
	f.note(&event.Event{PID: 7, Time: 9e9, Allocated: 50})
	require.Len(t, f.totals[key].points, 3)

	course := &course{points: []point{{10e9, 1}, {20e9, 2}, {30e9, 3}}, last: 70}
	var peaks []StepPeak
	for n := range 15 {
		peaks = append(peaks, StepPeak{n, uint64(100 - n)})
		course.steps = append(course.steps, stepUse{StepPeak: peaks[n], floor: uint64(10 * n), idle: uint64(50 - n), other: uint64(30 + n)})
	}
	f.totals[key] = course
	c := &Case{PID: 7, Time: 80e9, Step: 14, Before60: u, Healthy: u, usual: unknownUsual()}
	f.setCourse(c)
	require.EqualValues(t, 2, c.Before60, "a minute before, exactly")
	require.EqualValues(t, 99, c.Healthy, "what comes before the first step is none")
	require.Equal(t, peaks[4:14], c.Steps, "that of the failure is not complete")
	require.Equal(t, []uint64{140, 89, 37, 31}, []uint64{c.floor, c.rise, c.idle, c.usualOther})
	c = &Case{PID: 7, Time: 79e9, Step: 99, Before60: u, Healthy: u, usual: unknownUsual()}
	f.setCourse(c)
	require.EqualValues(t, 1, c.Before60)
	require.Equal(t, peaks[5:], c.Steps)
	c = &Case{PID: 8, Time: 79e9, Before60: u, Healthy: u, usual: unknownUsual()}
	f.setCourse(c)
	require.EqualValues(t, u, c.Before60)
	f.totals[key] = &totalOfStepZero
	c = &Case{PID: 7, Time: 1, Before60: u, Healthy: u, usual: unknownUsual()}
	f.setCourse(c)
	require.EqualValues(t, u, c.Before60)
	require.EqualValues(t, u, c.Healthy)
	require.Empty(t, c.Steps)
}

var totalOfStepZero = course{points: []point{{1, 5}}, steps: []stepUse{{StepPeak: StepPeak{0, 5}}}}

// TestCaught: a program that went on has caught the failure; one that ended with it has not, and else that is not known.
func TestCaught(t *testing.T) {
	trace, err := view.NewTrace(&eventtest.Stream{}, nil)
	require.NoError(t, err)
	for _, c := range []struct {
		what          string
		ended, wentOn bool
		exit          *int
		want          Answer
	}{
		{"it ended, with which status is not known", true, false, nil, Unknown}, {"it failed", true, false, new(1), No},
		{"it ended by itself", true, false, new(0), Yes}, {"it went on, and failed", true, true, new(1), Yes},
		{"it runs", false, false, nil, Unknown},
	} {
		f := newFollower(&Input{Trace: trace, Steps: &steps.Table{}, Ended: c.ended, Exit: c.exit})
		f.wait(&refusals.Refusal{WentOn: c.wentOn, Reported: true, Event: event.Event{Size: 5, PID: 7, Time: 3, Layer: event.LayerAllocator}}, 4)
		require.Equal(t, c.want, f.cases[0].Caught, c.what)
		require.Equal(t, 4, f.cases[0].Number)
		require.EqualValues(t, u, f.cases[0].Asked)
	}

	p := trained(8, false)
	p.failIn(eventtest.Forward, 16*mib)
	for n := 1; n <= 3; n++ {
		q := trained(8, false)
		q.failIn(eventtest.Forward, 16*mib)
		for range n {
			for _, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
				q.block(stack, 10*mib, mib, 0)
				q.free(10*mib, mib)
			}
		}
		for i := range q.Events[len(p.Events):] {
			q.Events[len(p.Events)+i].TID = 99
		}
		got := q.find(t, Input{Ended: true}).Cases[0].Caught
		require.Equal(t, n >= 2, got == Yes, "another thread went on for %d steps", n)
	}
}

// TestSameEvent: two refusals are the same when all is the same that tells them apart.
func TestSameEvent(t *testing.T) {
	x := event.Event{Time: 1, PID: 2, TID: 3, Layer: event.LayerAllocator}
	require.True(t, isSame(&x, &x))
	for _, change := range []func(*event.Event){
		func(e *event.Event) { e.Time++ }, func(e *event.Event) { e.PID++ }, func(e *event.Event) { e.TID++ },
		func(e *event.Event) { e.Layer = event.LayerDevice },
	} {
		y := x
		change(&y)
		require.False(t, isSame(&x, &y))
	}
}

// TestOnMPS: the limit of MPS is of all that Metal counts for the process, and a request above the limit is absurd.
func TestOnMPS(t *testing.T) {
	mps := func(change func(*Case)) *Case {
		return made(func(c *Case) {
			c.Device.Type, c.Tries, c.Asked, c.asks = mpsDevice, 0, u, true
			c.Other, c.Context = heap.Count{Objects: 1, Bytes: 2 * gib}, gib
			change(c)
		})
	}
	c := mps(func(*Case) {})
	require.EqualValues(t, 26*gib, c.OnMPS())
	require.EqualValues(t, 26*gib, c.limited())
	c.Context = u
	require.EqualValues(t, 25*gib, c.OnMPS())
	c.Device.Type = event.DeviceCUDA
	require.EqualValues(t, 23*gib, c.limited())

	c = mps(func(c *Case) { c.limits = []uint64{26*gib + 5} })
	c.decide()
	require.Equal(t, []uint64{26*gib + 5, 0, gib - 5}, []uint64{c.Limit, c.LimitBelow, c.Need})
	require.Equal(t, Limit, c.Decision)
	c = mps(func(c *Case) { c.Requested = 40 * gib })
	c.decide()
	require.NotEqual(t, AbsurdRequest, c.Decision, "more than the device, and the limit is not known")
	c = mps(func(c *Case) { c.Requested, c.limits = 40*gib, []uint64{30 * gib} })
	c.decide()
	require.Equal(t, AbsurdRequest, c.Decision)
	c.Requested = 30 * gib
	require.False(t, c.isAbsurd(), "as large as the limit")
	c.Limit = u
	require.False(t, c.isAbsurd())
}

// TestGrowingBytes: findings count that are certain enough and have a rate.
func TestGrowingBytes(t *testing.T) {
	c := &Case{usual: unknownUsual(), Findings: append(found(5, leaks.Low), append(found(30, leaks.High), found(10, leaks.High)...)...)}
	require.EqualValues(t, 40, c.growing())
	c.net = 25
	require.EqualValues(t, 25, c.growing(), "as much was freed beside them")
	require.Zero(t, (&Case{}).growing())
}

// TestUse: free = total - own - others, and unknown if one of them is.
func TestUse(t *testing.T) {
	of := func(change func(*Case)) uint64 {
		c := &Case{Total: 100, Others: 20, Context: 5, Other: heap.Count{Bytes: 7}, Torch: balance.Torch{Reserved: 30, Allocated: 10}, Free: u}
		change(c)
		c.setUse()
		return c.Free
	}
	require.EqualValues(t, 38, of(func(*Case) {}))
	require.EqualValues(t, 58, of(func(c *Case) { c.Async = true }))
	require.Zero(t, of(func(c *Case) { c.Others = 58 }))
	for _, change := range []func(*Case){
		func(c *Case) { c.Total = u }, func(c *Case) { c.Others = u }, func(c *Case) { c.Context = u }, func(c *Case) { c.Torch.Reserved = u },
		func(c *Case) { c.Others = 59 },
	} {
		require.EqualValues(t, u, of(change))
	}
}

// TestTakeDriver: of a reading the device's size counts and what the others have; of a failing call of the
// asynchronous backend also what its own figure leaves.
func TestTakeDriver(t *testing.T) {
	f := &follower{}
	c := &Case{Time: 9, Total: 1, Context: 2, Others: u}
	use := figures.DriverUse{Device: 1, Used: 40, Total: 100}
	r := &figures.Reading{Time: 8, Others: []figures.Processes{
		{Device: 0, By: []figures.ProcessUse{{Used: 1000}}}, {Device: 1, By: []figures.ProcessUse{{Used: 3}, {Used: 4}}},
	}}
	f.takeDriver(c, r, &use, true, func() uint64 { return 11 })
	require.Equal(t, []uint64{100, 11, 7, 8}, []uint64{c.Total, c.Context, c.Others, c.Read})
	use.Total = figures.Unknown
	f.takeDriver(c, &figures.Reading{}, &use, true, func() uint64 { return u })
	f.takeDriver(c, &figures.Reading{}, &use, false, nil)
	require.Equal(t, []uint64{100, 11, 7}, []uint64{c.Total, c.Context, c.Others}, "what is not known leaves what was")

	async := func(failed, used uint64) uint64 {
		c := &Case{Time: 9, Async: true, Context: 11, Torch: balance.Torch{Allocated: 30}, Other: heap.Count{Bytes: 5}}
		f.takeDriver(c, &figures.Reading{Failed: failed}, &figures.DriverUse{Used: figures.Bytes(used)}, false, nil)
		return c.Context
	}
	require.EqualValues(t, 5, async(9, 40))
	require.Zero(t, async(9, 35))
	require.EqualValues(t, 11, async(9, 34), "less than its own")
	require.EqualValues(t, 11, async(8, 40), "of another moment")
	require.EqualValues(t, 11, async(9, u))
}

// TestSetDevice: a reading up to the failure counts, or one that was made for it; a call that names no device is on
// the only one that was read.
func TestSetDevice(t *testing.T) {
	reading := func(time, failed uint64, devices ...figures.DriverUse) figures.Reading {
		return figures.Reading{Time: time, Failed: failed, Driver: devices}
	}
	use := func(device int, total figures.Bytes) figures.DriverUse {
		return figures.DriverUse{Device: device, Used: 1, Total: total}
	}
	total := func(index int8, readings ...figures.Reading) (uint64, int8) {
		f := &follower{in: &Input{Readings: readings}}
		c := &Case{Time: 9, Total: u, Device: event.Device{Type: event.DeviceCUDA, Index: index}}
		f.setDevice(c)
		return c.Total, c.Device.Index
	}
	for _, tt := range []struct {
		what     string
		index    int8
		readings []figures.Reading
		total    uint64
		device   int8
	}{
		{"at the failure", 0, []figures.Reading{reading(9, 0, use(0, 5))}, 5, 0},
		{"behind it", 0, []figures.Reading{reading(10, 0, use(0, figures.Unknown), use(0, 5))}, 5, 0}, // a device has one size
		{"behind it, where one was read before", 0, []figures.Reading{reading(9, 0, use(0, 4)), reading(10, 0, use(0, 5))}, 4, 0},
		{"made for it", 0, []figures.Reading{reading(10, 9, use(0, 5))}, 5, 0},
		{"another device", 0, []figures.Reading{reading(9, 0, use(1, 5))}, u, 0},
		{"the last of two", 0, []figures.Reading{reading(7, 0, use(0, 5)), reading(8, 0, use(0, 6))}, 6, 0},
		{"no device, one read", -1, []figures.Reading{reading(9, 0, use(3, 5))}, 5, 3},
		{"no device, two read", -1, []figures.Reading{reading(9, 0, use(0, 5), use(1, 6))}, u, -1},
	} {
		got, device := total(tt.index, tt.readings...)
		require.Equal(t, tt.total, got, tt.what)
		require.Equal(t, tt.device, device, tt.what)
	}
}

// TestHoldingsOrder: the largest first, of one size by site, holder and what they are for.
func TestHoldingsOrder(t *testing.T) {
	row := func(bytes uint64, site, holder string, category phases.Category) Holding {
		return Holding{Site: site, Holder: holder, Category: category, Count: heap.Count{Bytes: bytes}}
	}
	want := []Holding{row(9, "z", "", ""), row(5, "a", "x", "c"), row(5, "a", "x", "d"), row(5, "a", "y", "a"), row(5, "b", "a", "a")}
	got := []Holding{want[4], want[2], want[0], want[3], want[1]}
	sortHoldings(got)
	require.Equal(t, want, got)
}
