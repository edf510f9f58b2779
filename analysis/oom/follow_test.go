// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	u       = event.Unknown
	base    = uint64(0x7f0000000000)
	segment = "libcudart.so!cudaMalloc libc10_cuda.so!c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc " +
		"/home/a/train.py:5:main"
	foreign    = "libcudart.so!cudaMalloc libfoo.so!foo /home/a/train.py:60:main"
	asks       = eventtest.Report + " /home/a/train.py:8:grow"
	keeps      = eventtest.Report + " /home/a/train.py:10:load"
	keepsToo   = eventtest.Report + " /home/a/train.py:11:load"
	eventNanos = uint64(1e6) // between the events of a job
)

// program writes events of a caching allocator that has 20 MiB segments; its totals are added up here, as PyTorch does.
type program struct {
	*eventtest.Job
	allocated, reserved uint64
}

func newProgram() *program { return &program{Job: eventtest.NewJob()} }

// now is the time of the latest event.
func (p *program) now() uint64 { return uint64(len(p.Events)) * eventNanos }

// add adds an event of the caching allocator.
func (p *program) add(e event.Event) {
	e.Layer, e.Allocated = event.LayerAllocator, p.allocated
	p.Add(e)
	p.Events[len(p.Events)-1].Reserved = p.reserved
}

func (p *program) block(stack string, at, size, stream uint64) {
	p.allocated += size
	p.add(event.Event{Kind: event.KindAlloc, Addr: base + at, Size: size, Requested: size - 1, Stream: stream, Stack: p.ID(stack)})
}

func (p *program) free(at, size uint64) {
	p.allocated -= size
	p.add(event.Event{Kind: event.KindFree, Addr: base + at, Size: size, Requested: u, Stream: u})
}

func (p *program) driver(kind event.Kind, stack string, at, size uint64) {
	p.Add(event.Event{
		Kind: kind, Layer: event.LayerDevice, Addr: at, Size: size, Requested: u, Stream: u, Allocated: u, Call: "cudaMalloc", Stack: p.ID(stack),
	})
}

func (p *program) segment(at, size uint64) {
	p.reserved += size
	p.driver(event.KindAlloc, segment, base+at, size)
}

// fail is a request that PyTorch reports as refused, after the driver has refused it so often.
func (p *program) fail(size uint64, tries int) {
	for range tries {
		p.driver(event.KindOutOfMemory, segment, 0, size)
	}
	p.add(event.Event{Kind: event.KindOutOfMemory, Size: size, Requested: u, Stream: u, Stack: p.ID(asks)})
}

func (p *program) find(t *testing.T, in Input) *Report {
	t.Helper()
	return p.findWith(t, in, nil)
}

func (p *program) findWith(t *testing.T, in Input, o *view.Options) *Report {
	t.Helper()
	trace, err := view.NewTrace(&p.Stream, o)
	require.NoError(t, err)
	in.Trace = trace
	in.Steps, err = steps.Find(trace, nil)
	require.NoError(t, err)
	out, err := Find(&in)
	require.NoError(t, err)
	return out
}

// divided is a device whose memory lies in two segments of the large pool, one of it of another stream, one of the small pool, and
// beside PyTorch. Then 16 MiB are refused.
func divided() *program {
	p := newProgram()
	p.segment(0, 20*mib)
	p.block(keeps, 0, 2*mib, 0)
	p.block(keepsToo, 10*mib, 3*mib, 0)
	p.segment(100*mib, 20*mib)
	p.block(keepsToo, 100*mib, 4*mib, 7)
	p.segment(200*mib, 2*mib)
	p.block(keeps, 200*mib, 512, 0)
	p.driver(event.KindAlloc, foreign, base+300*mib, 5*mib)
	p.fail(16*mib, 2)
	return p
}

// TestFindCase: all of a case, by hand.
func TestFindCase(t *testing.T) {
	p := divided()
	at := p.now()
	r := p.find(t, Input{Ended: true, Exit: new(1), Leaks: &leaks.Report{Findings: []leaks.Finding{
		{Device: event.Device{Type: event.DeviceCUDA}, Layer: event.LayerAllocator, LiveBytes: 1},
		{Device: event.Device{Type: event.DeviceCUDA}, Layer: event.LayerDevice},
		{Device: event.Device{Type: event.DeviceCUDA, Index: 1}, Layer: event.LayerAllocator},
	}}})
	require.Len(t, r.Cases, 1)
	require.Zero(t, r.More+r.Recovered)
	c := &r.Cases[0]
	require.Empty(t, c.Findings, "without steps")
	require.Len(t, c.Outside, 1, "what grows beside PyTorch")
	require.Equal(t, []any{1, uint32(eventtest.PID), uint32(eventtest.PID), at, 0, true, No, "train.py:8 grow"},
		[]any{c.Number, c.PID, c.TID, c.Time, c.Step, c.Reported, c.Caught, c.Site})
	require.Equal(t, event.Device{Type: event.DeviceCUDA}, c.Device)
	require.Equal(t, []uint64{16 * mib, 16 * mib, 2, 0}, []uint64{c.Requested, c.Asked, uint64(c.Tries), c.Flushed})
	const allocated = 9*mib + 512
	require.Equal(t, balance.Torch{
		Reserved: 42 * mib, Allocated: allocated, Requested: allocated - 4, Pending: u, InactiveSplit: 42*mib - allocated, Free: 0,
	}, c.Torch)
	require.EqualValues(t, 5*mib, c.Other.Bytes)
	require.Len(t, c.Owners, 1)
	require.Equal(t, []uint64{u, u, u, u, u, u}, []uint64{c.Context, c.Total, c.Others, c.Free, c.Before60, c.Healthy}, "nothing was read")
	require.Equal(t, []PoolFree{
		{Stream: 7, Reserved: 20 * mib, Free: 16 * mib, Largest: 16 * mib, Request: true},
		{Stream: 0, Reserved: 20 * mib, Free: 15 * mib, Largest: 8 * mib, Request: true},
		{Small: true, Stream: 0, Reserved: 2 * mib, Free: 2*mib - 512, Largest: 2*mib - 512},
	}, []PoolFree{c.Pools[pool(c, 7)], c.Pools[pool(c, 0)], c.Pools[2]}, "the stream of the request is not known")
	require.EqualValues(t, 31*mib, c.Pieces)
	require.EqualValues(t, 16*mib, c.Largest)
	require.Equal(t, []Pin{
		{base + 100*mib, 20 * mib, 16 * mib, 16 * mib,
			[]Holding{{"train.py:11 load", view.NoHolder, "", heap.Count{Objects: 1, Bytes: 4 * mib}}}},
		{base, 20 * mib, 15 * mib, 8 * mib, []Holding{
			{"train.py:11 load", view.NoHolder, "", heap.Count{Objects: 1, Bytes: 3 * mib}},
			{"train.py:10 load", view.NoHolder, "", heap.Count{Objects: 1, Bytes: 2 * mib}},
		}},
		{base + 200*mib, 2 * mib, 2*mib - 512, 2*mib - 512,
			[]Holding{{"train.py:10 load", view.NoHolder, "", heap.Count{Objects: 1, Bytes: 512}}}},
	}, c.Pins)
	require.Len(t, c.Top, 2)
	require.Equal(t, []any{"train.py:11 load", uint64(7 * mib), uint64(2)}, []any{c.Top[0].Site, c.Top[0].Bytes, c.Top[0].Objects})
	require.Equal(t, []any{"train.py:10 load", uint64(2*mib + 512), uint64(2)}, []any{c.Top[1].Site, c.Top[1].Bytes, c.Top[1].Objects})
	sum := uint64(0)
	for _, s := range c.Categories {
		sum += s.Bytes
	}
	require.EqualValues(t, allocated, sum)
	require.Same(t, c, r.Main())
	require.Equal(t, 1, r.Fatal())
}

// pool is the index of the pool of large blocks of a stream.
func pool(c *Case, stream uint64) int {
	for i := range c.Pools {
		if !c.Pools[i].Small && c.Pools[i].Stream == stream {
			return i
		}
	}
	return -1
}

// TestFindNothing: where nothing failed, nothing is looked for.
func TestFindNothing(t *testing.T) {
	p := newProgram()
	p.block(keeps, 0, mib, 0)
	r := p.find(t, Input{})
	require.Empty(t, r.Cases)
	require.Nil(t, r.Main())
	require.Zero(t, r.Fatal())
}

// TestFindReadings: what was read of the device, of other processes, of limits, of private pools and of holders.
func TestFindReadings(t *testing.T) {
	p := divided()
	at := p.now()
	driver := func(used figures.Bytes) []figures.DriverUse {
		return []figures.DriverUse{{Device: 0, Used: used, All: 90 * mib, Total: 100 * mib}}
	}
	r := p.find(t, Input{Readings: []figures.Reading{
		{Time: 1, Driver: driver(3 * mib), Others: []figures.Processes{{Device: 0, By: []figures.ProcessUse{{PID: 1, Used: 1}}}}},
		{
			Time: at - 1, Driver: driver(57 * mib), Limits: []figures.Limit{{Device: 1, Bytes: 1}, {Device: 0, Bytes: 44 * mib}},
			Others: []figures.Processes{{Device: 1, By: []figures.ProcessUse{{PID: 2, Used: 2}}},
				{Device: 0, By: []figures.ProcessUse{{PID: 3, Used: 20 * mib}, {PID: 4, Used: 10 * mib}}}},
			Private: []figures.Range{{Device: 0, Addr: base + 100*mib, Size: 20 * mib}, {Device: 1, Addr: base, Size: 20 * mib}},
			Held:    []figures.HeldAt{{Site: "train.py:11 load", Holder: "old", Bytes: mib, Blocks: 1}},
		},
		{Time: at + 5, Driver: driver(1), Limits: []figures.Limit{{Device: 0, Bytes: 7}}}, // of later
		{Time: at + 9, Failed: at, Held: []figures.HeldAt{
			{Site: "train.py:11 load", Holder: "model.weight", What: "parameters", Bytes: 4 * mib, Blocks: 1},
			{Site: "train.py:11 load", Holder: view.NoHolder, Bytes: 1, Blocks: 1},
			{Site: "train.py:10 load", Holder: "too much", Bytes: 3 * mib, Blocks: 1},
		}},
	}})
	c := &r.Cases[0]
	// The driver's 57 MiB are 42 of segments, 5 of libfoo's, and 10 more. Of the device's 90 MiB in use 3 are of no process.
	require.Equal(t, []uint64{100 * mib, 10 * mib, 30 * mib, 3 * mib, 10 * mib, at - 1},
		[]uint64{c.Total, c.Context, c.Others, c.Rest, c.Free, c.Read})
	require.Equal(t, []figures.ProcessUse{{PID: 3, Used: 20 * mib}, {PID: 4, Used: 10 * mib}}, c.By)
	private := c.Pools[pool(c, 7)]
	require.True(t, private.Private)
	require.False(t, private.Request)
	require.EqualValues(t, 15*mib, c.Pieces)
	require.EqualValues(t, 8*mib, c.Largest)
	require.Equal(t, at+9, c.HeldAt)
	require.Equal(t, Holding{"train.py:11 load", "model.weight", phases.OfHolder("parameters"), heap.Count{Objects: 1, Bytes: 4 * mib}},
		c.Top[0])
	require.Equal(t, []any{"train.py:11 load", view.NoHolder, uint64(3 * mib)}, []any{c.Top[1].Site, c.Top[1].Holder, c.Top[1].Bytes})
	require.Equal(t, []any{"train.py:10 load", view.NoHolder, uint64(2*mib + 512)}, []any{c.Top[2].Site, c.Top[2].Holder, c.Top[2].Bytes})
}

// TestFindDriverMoved: a reading in the middle of a change says nothing of the context, and one that has less than is known nothing either.
func TestFindDriverMoved(t *testing.T) {
	for name, reading := range map[string]figures.Reading{
		"moved": {Moved: true, Driver: []figures.DriverUse{{Device: 0, Used: 57 * mib, Total: 100 * mib}}},
		"less":  {Driver: []figures.DriverUse{{Device: 0, Used: 47*mib - 1, Total: 100 * mib}}},
		"none":  {Driver: []figures.DriverUse{{Device: 0, Used: figures.Unknown, Total: 100 * mib}}},
	} {
		p := divided()
		reading.Time = p.now() - 1
		c := &p.find(t, Input{Readings: []figures.Reading{reading}}).Cases[0]
		require.Equal(t, u, c.Context, name)
		require.EqualValues(t, 100*mib, c.Total, name)
		require.Equal(t, u, c.Free, name)
	}
	p := divided()
	c := &p.find(t, Input{Readings: []figures.Reading{{Time: p.now() - 1,
		Driver: []figures.DriverUse{{Device: 0, Used: 47 * mib, Total: 100 * mib}}}}}).Cases[0]
	require.Zero(t, c.Context, "as much as is known")
}

// TestFindUnknownBlocks: where a block lies in no known segment, or the allocator has more than is known, nothing is said of free memory.
func TestFindUnknownBlocks(t *testing.T) {
	outside := divided()
	outside.Events = outside.Events[:len(outside.Events)-3]
	outside.block(keeps, 900*mib, mib, 0)
	outside.fail(16*mib, 2)
	more := newProgram()
	more.segment(0, 20*mib)
	more.allocated = mib // before the attach
	more.block(keeps, 0, mib, 0)
	more.fail(16*mib, 2)
	for name, p := range map[string]*program{"outside": outside, "before the attach": more} {
		c := &p.find(t, Input{}).Cases[0]
		require.Empty(t, c.Pools, name)
		require.Empty(t, c.Pins, name)
		require.Zero(t, c.Pieces+c.Largest, name)
	}
}

// TestFindFlushed: what the allocator returned between the first refusal and the report.
func TestFindFlushed(t *testing.T) {
	p := newProgram()
	p.segment(0, 20*mib)
	p.block(keeps, 0, mib, 0)
	p.segment(100*mib, 20*mib)
	p.block(keepsToo, 100*mib, 2*mib, 0)
	p.free(100*mib, 2*mib)
	p.driver(event.KindOutOfMemory, segment, 0, 16*mib)
	p.reserved -= 20 * mib
	p.driver(event.KindFree, segment, base+100*mib, u)
	p.fail(16*mib, 1)
	c := &p.find(t, Input{}).Cases[0]
	require.Equal(t, 2, c.Tries)
	require.EqualValues(t, 20*mib, c.Flushed)
	require.EqualValues(t, 20*mib, c.Torch.Reserved)
	require.Equal(t, Unknown, c.Caught, "it may go on yet")
}

// TestFindCourse: what was allocated a minute before, and the peaks of the steps, of which only ten are kept.
func TestFindCourse(t *testing.T) {
	p := newProgram()
	p.segment(0, 64*mib)
	p.block(keeps, 0, mib, 0)
	for i := range uint64(15) {
		size := (i%4 + 1) * mib
		for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
			p.block(stack, 10*mib, size+uint64(k), 0)
			p.free(10*mib, size+uint64(k))
		}
	}
	for i := range p.Events { // eight seconds a step
		p.Events[i].Time = uint64(i+1) * 1e9
	}
	n := len(p.Events)
	p.fail(60*mib, 1)
	for i := n; i < len(p.Events); i++ {
		p.Events[i].Time = uint64(i+1) * 1e9
	}
	c := &p.find(t, Input{}).Cases[0]
	require.Positive(t, c.Step)
	require.EqualValues(t, mib, c.Before60)
	require.Len(t, c.Steps, keptSteps)
	require.Equal(t, c.Step-1, c.Steps[keptSteps-1].Step)
	for i := range c.Steps[1:] {
		require.Equal(t, c.Steps[i].Step+1, c.Steps[i+1].Step)
	}
	require.EqualValues(t, 5*mib+3, c.Healthy, "four MiB and three bytes beside the one that stays")
}

// TestFindMany: of many that failed the first and the last are looked at, and each has its moment.
func TestFindMany(t *testing.T) {
	p := newProgram()
	p.segment(0, 20*mib)
	for i := range uint64(maxCases + 5) {
		p.fail(16*mib+i, 0)
		p.block(keeps, i*1024, 512, 0)
	}
	r := p.find(t, Input{Ended: true})
	require.Len(t, r.Cases, maxCases)
	require.Equal(t, 5, r.More)
	require.EqualValues(t, 16*mib+maxCases-2, r.Cases[maxCases-2].Requested)
	last := &r.Cases[maxCases-1]
	require.Equal(t, maxCases+5, last.Number)
	require.EqualValues(t, 16*mib+maxCases+4, last.Requested)
	require.EqualValues(t, 512*(maxCases+4), last.Torch.Allocated, "at the failing call")
	require.Equal(t, u, last.Asked)
	for i := range r.Cases {
		require.Equal(t, Yes, r.Cases[i].Caught)
	}
	require.Zero(t, r.Fatal())
	require.Same(t, last, r.Main(), "all were survived")
}

// TestDivide: a row's blocks are given to their holders, as far as there are any left.
func TestDivide(t *testing.T) {
	row := func(bytes, objects uint64) Holding {
		return Holding{Site: "a", Holder: view.NoHolder, Category: "inputs", Count: heap.Count{Bytes: bytes, Objects: objects}}
	}
	held := func(bytes, blocks uint64) map[string][]figures.HeldAt {
		return map[string][]figures.HeldAt{"a": {{Site: "a", Holder: "x", Bytes: bytes, Blocks: blocks}},
			"b": {{Site: "b", Holder: "y", Bytes: 1, Blocks: 1}}}
	}
	x := func(bytes, objects uint64) Holding {
		return Holding{Site: "a", Holder: "x", Category: "inputs", Count: heap.Count{Bytes: bytes, Objects: objects}}
	}
	for name, tt := range map[string]struct {
		row  Holding
		held map[string][]figures.HeldAt
		want []Holding
	}{
		"all":             {row(10, 2), held(10, 2), []Holding{x(10, 2)}},
		"a part":          {row(10, 2), held(4, 1), []Holding{x(4, 1), row(6, 1)}},
		"more bytes":      {row(10, 2), held(11, 2), []Holding{row(10, 2)}},
		"more blocks":     {row(10, 2), held(10, 3), []Holding{row(10, 2)}},
		"nothing is left": {row(10, 2), held(0, 0), []Holding{row(10, 2)}},
		"of another line": {row(10, 2), nil, []Holding{row(10, 2)}},
	} {
		require.Equal(t, tt.want, divide(tt.row, tt.held), name)
	}
	shared := held(10, 2)
	divide(row(10, 2), shared)
	require.Equal(t, []Holding{row(10, 2)}, divide(row(10, 2), shared), "they are given once")
}

// TestLostBefore: events that were lost within ten seconds may be missing.
func TestLostBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		pid      uint32
		from, to uint64
		want     bool
	}{
		"meanwhile":        {7, 90e9, 110e9, true},
		"ten seconds":      {7, 80e9, 90e9, true},
		"longer ago":       {7, 80e9, 90e9 - 1, false},
		"later":            {7, 100e9 + 1, 101e9, false},
		"at once":          {7, 100e9, 101e9, true},
		"another's events": {8, 90e9, 110e9, false},
	} {
		h := heap.New()
		h.RecordLoss(tt.pid, event.Loss{From: tt.from, To: tt.to, Events: 1})
		require.Equal(t, tt.want, lostBefore(h, &Case{PID: 7, Time: 100e9}), name)
	}
}

// TestPages: an expandable segment is asked for by pages; what had to be free is all of them.
func TestPages(t *testing.T) {
	p := divided()
	p.Events = p.Events[:len(p.Events)-3]
	p.fail(50*mib, 2)
	for i := range p.Events {
		if e := &p.Events[i]; e.Kind == event.KindOutOfMemory && e.Layer == event.LayerDevice {
			e.Call, e.Size = "cuMemCreate", 20*mib
		}
	}
	c := &p.find(t, Input{}).Cases[0]
	require.Equal(t, []uint64{50 * mib, 20 * mib}, []uint64{c.Asked, c.Page})
	require.Equal(t, 2, c.Tries)
}

// TestPlace: the device of a driver's call is that of the process's caching allocator, where it has one and the call names no other.
func TestPlace(t *testing.T) {
	device := func(index int8) event.Device { return event.Device{Type: event.DeviceCUDA, Index: index} }
	alloc := func(pid uint32, index int8) event.Event {
		return event.Event{
			Time: 1, PID: pid, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: device(index), Addr: 0x1000 * uint64(pid), Size: 512,
			Allocated: 512,
			Reserved:  1024, Requested: 512, Stream: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
		}
	}
	for _, c := range []struct {
		name       string
		events     []event.Event
		call, want int8
	}{
		{"not named", []event.Event{alloc(7, 1)}, -1, 1},
		{"the same", []event.Event{alloc(7, 1)}, 1, 1},
		{"another one", []event.Event{alloc(7, 1)}, 0, 0},
		{"of two", []event.Event{alloc(7, 0), alloc(7, 1)}, -1, -1},
		{"another process's", []event.Event{alloc(8, 0), alloc(7, 1)}, -1, 1},
		{"no allocator", []event.Event{alloc(8, 0)}, -1, -1},
	} {
		h := heap.New()
		for i := range c.events {
			h.Apply(&c.events[i])
		}
		found := &Case{PID: 7, Device: device(c.call)}
		found.place(h)
		require.Equal(t, device(c.want), found.Device, c.name)
	}
}

// TestDriverErrorBehind: a program that asks for memory after an extension was refused some has not survived that for sure: CUDA keeps the
// error, and PyTorch's next call can fail of it. When two more steps began it has.
func TestDriverErrorBehind(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after int // whole steps
		goesOn        bool
		want          Answer
	}{
		"in the last step":     {12, 0, true, Unknown},
		"one step more":        {12, 1, true, Unknown},
		"four more":            {12, 4, true, Yes},
		"steps are not known":  {0, 0, true, Yes},
		"nothing came behind":  {12, 0, false, No},
		"nothing, and no step": {0, 0, false, No},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 64*mib)
			step := func() {
				for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
					p.block(stack, 10*mib, mib+uint64(k), 0)
					p.free(10*mib, mib+uint64(k))
				}
			}
			for range tt.before {
				step()
			}
			p.driver(event.KindOutOfMemory, foreign, 0, 5*mib)
			if tt.goesOn {
				p.block(keeps, 15*mib, 512, 0)
			}
			for range tt.after {
				step()
			}
			c := &p.find(t, Input{Ended: true, Exit: new(1)}).Cases[0]
			require.Equal(t, tt.before > 0, c.Step > 0)
			require.Equal(t, tt.want, c.Caught)
		})
	}
}

// TestLoads: what recurs while a model is loaded is no step, so that there is no peak of the steps before.
func TestLoads(t *testing.T) {
	for _, loads := range []bool{false, true} {
		p := newProgram()
		p.segment(0, 64*mib)
		for i := range uint64(12) {
			for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
				p.block(stack, (4*i+uint64(k))*mib, mib, 0)
			}
		}
		p.fail(16*mib, 1)
		c := &p.find(t, Input{Leaks: &leaks.Report{Steps: leaks.Steps{Loads: loads}}}).Cases[0]
		require.Equal(t, loads, c.Step == 0)
		require.Equal(t, loads, c.Healthy == u)
	}
}

// TestTotalLater: how large the device is was read after the failure only, which is enough to say that a request is
// larger. Where the driver is not there it is what CUDA reported to the program.
func TestTotalLater(t *testing.T) {
	find := func(readings ...figures.Reading) *Case {
		p := newProgram()
		p.segment(0, 20*mib)
		p.block(keeps, 0, mib, 0)
		p.fail(80*mib, 1)
		p.block(keeps, mib, mib, 0)
		for i := range readings {
			readings[i].Time = p.now() + 5
		}
		return &p.find(t, Input{Readings: readings}).Cases[0]
	}
	later := figures.Reading{Driver: []figures.DriverUse{{Device: 1, Total: mib}, {Device: 0, Used: 30 * mib, Total: 40 * mib}}}
	reported := figures.Reading{Sizes: []figures.DeviceSize{{Device: 1, Bytes: mib}, {Device: 0, Bytes: 44 * mib}}}
	c := find(later)
	require.EqualValues(t, 40*mib, c.Total)
	require.Equal(t, u, c.Free, "that was not read in time")
	require.Equal(t, AbsurdRequest, c.Decision)
	c = find(reported)
	require.EqualValues(t, 44*mib, c.Total)
	require.Equal(t, AbsurdRequest, c.Decision)
	require.EqualValues(t, 40*mib, find(reported, later).Total, "the driver knows it better")
}

// TestFindings: of what grows, what of this device, of PyTorch's memory, was there when the request failed counts,
// and only where steps are known.
func TestFindings(t *testing.T) {
	p := trained(8, false)
	leaked := uint64(0)
	for n := range uint64(6) {
		for k, stack := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam} {
			p.block(stack, 10*mib, mib+uint64(k), 0)
			p.free(10*mib, mib+uint64(k))
		}
		p.block(asks, (30+n)*mib, mib, 0)
		leaked += mib
	}
	at := len(p.Events)
	p.failIn(eventtest.Forward, 200*mib)
	device := event.Device{Type: event.DeviceCUDA}
	r := p.find(t, Input{Leaks: &leaks.Report{Findings: []leaks.Finding{
		{Device: device, Layer: event.LayerAllocator, LiveBytes: 900 * mib, Confidence: leaks.High, First: 8,
			Stacks: []event.StackID{p.ID(asks)}},
		{Device: device, Layer: event.LayerAllocator, LiveBytes: 900 * mib, Confidence: leaks.High, First: 8,
			Stacks: []event.StackID{p.ID(foreign)}},
		{Device: event.Device{Type: event.DeviceCUDA, Index: 1}, Layer: event.LayerAllocator, LiveBytes: 9},
		{Device: device, Layer: event.LayerDevice},
	}}})
	c := &r.Cases[0]
	require.Len(t, c.Findings, 1, "%d events", at)
	require.Equal(t, leaked, c.Findings[0].LiveBytes)
	require.Equal(t, leaked, c.growing())
	require.Len(t, c.Outside, 1)
}

// TestFollows: what earlier steps needed after a request, by the number of the request within its step.
func TestFollows(t *testing.T) {
	for name, tt := range map[string]struct {
		made int // how often the line has allocated in the step of the failure before it is refused
		want uint64
	}{"the first of its step": {0, 12 * mib}, "the second": {1, 5 * mib}, "a third, which no step has": {2, u}} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 256*mib)
			input := func() { p.block(eventtest.Input, 0, mib, 0) }
			line := func(n uint64) { p.block(eventtest.Forward, (10+10*n)*mib, 7*mib, 0) }
			for range 6 {
				input()
				line(0)
				line(1)
				p.block(eventtest.Backward, 40*mib, 5*mib, 0)
				p.free(40*mib, 5*mib)
				p.free(20*mib, 7*mib)
				p.free(10*mib, 7*mib)
				p.block(eventtest.Adam, 60*mib, mib, 0)
				p.free(60*mib, mib)
				p.free(0, mib)
			}
			input()
			for n := range tt.made {
				line(uint64(n))
			}
			p.failIn(eventtest.Forward, 7*mib)
			c := &p.find(t, Input{}).Cases[0]
			require.Positive(t, c.Step)
			require.Equal(t, tt.want, c.Follows)
		})
	}
}

// TestUnreturned: segments that are free as a whole and were not returned before the failure belong to a private
// pool, which one the reading says if there is one.
func TestUnreturned(t *testing.T) {
	for name, tt := range map[string]struct {
		reading []figures.Reading
		want    PoolOwner
	}{
		"not read": {nil, ""},
		"a CUDA graph's": {[]figures.Reading{{Private: []figures.Range{{Addr: base + 100*mib, Size: 200 * mib, Pool: [2]uint64{4, 0}}}}},
			GraphPool},
		"a MemPool": {[]figures.Reading{{Private: []figures.Range{{Addr: base + 100*mib, Size: 200 * mib, Pool: [2]uint64{0, 4}}}}}, ProgramPool},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 20*mib)
			p.block(keeps, 0, 2*mib, 0)
			p.segment(100*mib, 200*mib)
			p.block(keeps, 100*mib, 150*mib, 0)
			p.free(100*mib, 150*mib)
			p.fail(300*mib, 2)
			c := &p.find(t, Input{Readings: tt.reading}).Cases[0]
			require.Equal(t, []PoolFree{
				{Stream: 0, Reserved: 20 * mib, Free: 18 * mib, Largest: 18 * mib, Request: true},
				{Stream: u, Reserved: 200 * mib, Free: 200 * mib, FreeWhole: 200 * mib, Largest: 200 * mib, Private: true, Owner: tt.want},
			}, c.Pools)
			require.EqualValues(t, 200*mib, c.InOtherPools())
		})
	}
}

// TestStreamOfLine: where blocks of several streams are in use, the request is of the stream in which its line has always allocated.
func TestStreamOfLine(t *testing.T) {
	p := divided()
	p.Events = p.Events[:len(p.Events)-3]
	p.block(asks, 104*mib, mib, 7)
	p.fail(16*mib, 2)
	c := &p.find(t, Input{}).Cases[0]
	require.Equal(t, []uint64{7, 15 * mib}, []uint64{c.Pools[0].Stream, c.Pieces})
	require.True(t, c.Pools[0].Request)
	require.False(t, c.Pools[1].Request)
}
