// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/backward"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// refused is a request that PyTorch reports as failed.
func refused(pid int, at, size, total uint64) event.Event {
	e := alloc(pid, at, 0, size, total)
	e.Kind, e.Stack = event.KindOutOfMemory, 8
	return e
}

// ofThread is an event of another thread.
func ofThread(tid uint32, e event.Event) event.Event {
	e.TID = tid
	return e
}

// readings are those that a recording has.
func readings(t *testing.T, file string) []figures.Reading {
	t.Helper()
	in, err := recording.Open(file)
	require.NoError(t, err)
	defer in.Close()
	var out []figures.Reading
	require.NoError(t, heap.New().Walk(in, heap.Walker{Annotated: func(m *event.Annotation) {
		if m.Kind == event.AnnotationReading {
			var r figures.Reading
			require.NoError(t, json.Unmarshal(m.Reading, &r))
			out = append(out, r)
		}
	}}))
	return out
}

// heldAll has all blocks of a line in one variable.
func heldAll(context.Context) (*Scan, error) {
	return &Scan{Until: second, Join: func(_ *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
		row, none := view.HeldSite{Site: "train.py:1", Name: "main() local x", What: "Tensor"},
			view.HeldSite{Site: "train.py:2", Name: view.NoHolder, Bytes: 1}
		for b := range blocks {
			row.Bytes, row.Blocks = row.Bytes+b.Size, row.Blocks+1
		}
		return &view.Joined{Rows: []view.HeldSite{row, none}, Bytes: row.Bytes}
	}}, nil
}

// TestFailure: when a request fails, the recording is on the disk in a folder of its own, with why it failed; then the driver and the
// holders are read, and what they said is in the recording. With UntilOOM that ends it, unless the thread goes on to allocate.
func TestFailure(t *testing.T) {
	target := &madeTarget{pid: 7, scan: heldAll, memory: &Memory{Time: 5, Driver: []figures.DriverUse{{Used: 512, Total: 4096, All: 4000}},
		Moved: true}}
	s := &madeSource{start: []Target{target}, hang: true, batches: []madeBatch{
		{events: []event.Event{alloc(7, second, 0x1000, 512, 512), refused(7, 2*second, 4096, 512),
			ofThread(8, alloc(7, 3*second, 0x2000, 512, 1024))}},
	}}
	r, n, o := newMade(t, s, func(o *Options) { o.UntilOOM = true })
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(n.notices, "\n"), "out of memory: 4096 kept1")
	require.Empty(t, n.warnings)
	p := results.Processes()[0]
	saved := o.Keeper.(*madeKeeper).kept
	require.Len(t, saved, 1)
	require.Equal(t, saved[0].followed.Load(), saved[0].explained.Load())
	require.Greater(t, saved[0].explained.Load(), int64(1), "once at once, and with all that was read")
	var driver, held []figures.Reading
	for _, r := range readings(t, fileOf(p)) {
		if r.Held != nil {
			held = append(held, r)
		} else {
			driver = append(driver, r)
		}
	}
	require.NotEmpty(t, driver)
	last := driver[len(driver)-1]
	require.Equal(t, 2*second, last.Failed)
	require.EqualValues(t, 5, last.Time)
	require.True(t, last.Moved)
	require.Equal(t, target.memory.Driver, last.Driver)
	require.NotEmpty(t, held)
	require.Equal(t, 2*second, held[0].Failed)
	require.Equal(t, []figures.HeldAt{{Site: "train.py:1", Holder: "main() local x", What: "Tensor", Bytes: 1024, Blocks: 2}},
		held[len(held)-1].Held, "what nobody is known to hold is left out")
}

// TestManyFailures: of the first requests that failed there are folders, of the last the verdict.
func TestManyFailures(t *testing.T) {
	var events []event.Event
	for i := range uint64(keptFailures + 2) {
		events = append(events, alloc(7, (2*i+1)*second, 0x1000*(i+1), 512, 512*(i+1)), refused(7, (2*i+2)*second, 4096, 512*(i+1)))
	}
	s := &madeSource{start: []Target{&madeTarget{pid: 7}}, batches: []madeBatch{{events: events}}}
	r, n, o := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	said := 0
	for _, text := range n.notices {
		if strings.Contains(text, "out of memory: 4096") {
			said++
		}
	}
	require.Equal(t, keptFailures+1, said, "of the sixth there is a reading; the seventh comes too soon after it")
	require.Len(t, o.Keeper.(*madeKeeper).kept, keptFailures)
	p := results.Processes()[0]
	require.Equal(t, "kept5", p.failures.kept.Name())
	require.Equal(t, keptFailures+2, p.failures.count)
}

// TestFails: what the caching allocator is refused it asks for again, and host memory is no device's.
func TestFails(t *testing.T) {
	segment := event.Stack{Frames: []event.Frame{
		{Kind: event.FrameNative, Func: "cudaMalloc"},
		{Kind: event.FrameNative, Func: "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc",
			Module: &event.Module{Path: "/x/libc10_cuda.so"}},
	}}
	own := event.Stack{Frames: []event.Frame{{Kind: event.FrameNative, Func: "cudaMalloc"},
		{Kind: event.FramePython, Func: "main", File: "a.py", Line: 3}}}
	p := begun(t, &madeTarget{pid: 7, stacks: map[event.StackID]*event.Stack{1: &segment, 2: &own}}, nil)
	for name, tt := range map[string]struct {
		layer event.Layer
		stack event.StackID
		want  bool
	}{
		"PyTorch's":           {event.LayerAllocator, 1, true},
		"the allocator's":     {event.LayerDevice, 1, false},
		"the program's":       {event.LayerDevice, 2, true},
		"of an unknown stack": {event.LayerDevice, 3, true},
		"of the host":         {event.LayerHost, 2, false},
	} {
		e := refused(7, second, 1, 0)
		e.Layer, e.Stack = tt.layer, tt.stack
		require.Equal(t, tt.want, p.failures.fails(&e), name)
		n := p.failures.next([]event.Event{alloc(7, 1, 1, 1, 1), e, alloc(7, 1, 1, 1, 1)})
		require.Equal(t, map[bool]int{true: 2, false: 3}[tt.want], n, name)
		require.Equal(t, tt.want, p.failures.seen, name)
	}
}

// begun is a process whose recording has begun.
func begun(t *testing.T, target *madeTarget, change func(*Options)) *Process {
	t.Helper()
	r, _, _ := newMade(t, &madeSource{}, change)
	r.scans = t.Context()
	return r.begin(target)
}

// TestForesee: holders are read beforehand when less than a tenth of a device is free, once a minute.
func TestForesee(t *testing.T) {
	for name, tt := range map[string]struct {
		driver figures.DriverUse
		ago    time.Duration
		want   bool
	}{
		"less than a tenth is free": {figures.DriverUse{Used: 1, Total: 1000, All: 901}, time.Hour, true},
		"a tenth is free":           {figures.DriverUse{Used: 1, Total: 1000, All: 900}, time.Hour, false},
		"a moment ago":              {figures.DriverUse{Used: 1, Total: 1000, All: 999}, time.Second, false},
		"no use":                    {figures.DriverUse{Used: figures.Unknown, Total: 1000, All: 999}, time.Hour, false},
		"no total":                  {figures.DriverUse{Used: 1, Total: figures.Unknown, All: figures.Unknown - 1}, time.Hour, false},
		"no sum":                    {figures.DriverUse{Used: 1, Total: 1000, All: figures.Unknown}, time.Hour, false},
	} {
		f := begun(t, &madeTarget{pid: 7}, nil).failures
		f.held = time.Now().Add(-tt.ago)
		f.foresee(&figures.Reading{Driver: []figures.DriverUse{tt.driver}})
		require.Equal(t, tt.want, f.answers != nil, name)
		if tt.want {
			require.WithinDuration(t, time.Now(), f.held, time.Minute)
		}
	}
	f := begun(t, &madeTarget{pid: 7}, func(o *Options) { o.NoHolders = true }).failures
	f.foresee(&figures.Reading{Driver: []figures.DriverUse{{Used: 1, Total: 1000, All: 999}}})
	require.Nil(t, f.answers, "nobody wants them")
}

// TestReadings: the driver is read after a second, then less often, and a reading that was of before a failure is followed by another.
func TestReadings(t *testing.T) {
	target := &madeTarget{pid: 7, memory: &Memory{Time: 9}}
	f := begun(t, target, nil).failures
	answer := func() {
		t.Helper()
		require.Eventually(t, func() bool { return len(f.reading) == 1 }, 10*time.Second, time.Millisecond)
	}
	f.step()
	require.NotNil(t, f.reading, "the first is due at once")
	require.Equal(t, readFirst, f.pause)
	require.WithinDuration(t, time.Now().Add(readFirst), f.due, readFirst/2)
	first := f.reading
	f.read()
	require.Equal(t, first, f.reading, "one at a time")
	answer()
	f.step()
	require.Nil(t, f.reading)
	f.step()
	require.Nil(t, f.reading, "not before it is due")
	for _, want := range []time.Duration{2 * readFirst, 4 * readFirst, 8 * readFirst, readEvery, readEvery} {
		f.due = time.Now().Add(-1)
		f.step()
		require.Equal(t, want, f.pause)
		answer()
		f.step()
	}
	f.due = time.Now().Add(-1)
	f.step()
	f.failure = 42
	answer()
	f.step()
	require.NotNil(t, f.reading, "that was of before the failure")
	answer()
	f.step()
	require.Zero(t, f.failure, "all is read")

	quiet := begun(t, target, func(o *Options) { o.Keeper = nil }).failures
	quiet.step()
	require.Nil(t, quiet.reading, "nothing is recorded")
}

// TestSettle: a failure is over when the holders too are read; the folder is then written once more, after the writing in progress.
func TestSettle(t *testing.T) {
	ended := false
	f := begun(t, &madeTarget{pid: 7}, func(o *Options) { o.UntilOOM = true }).failures
	f.end = func() { ended = true }
	f.settle()
	require.False(t, ended, "none failed")
	f.failure, f.answers = 5, make(chan holdersAnswer, 1)
	f.settle()
	require.EqualValues(t, 5, f.failure)
	f.answers, f.reading = nil, make(chan figures.Reading, 1)
	f.settle()
	require.EqualValues(t, 5, f.failure)
	f.reading = nil
	f.settle()
	require.Zero(t, f.failure)
	require.False(t, ended, "the thread has allocated since")
	require.Contains(t, strings.Join(f.process.observer.(*noted).notices, "\n"), "survived")
	f.failure, f.last.Kind = 5, event.KindOutOfMemory
	f.settle()
	require.True(t, ended)

	f.kept, f.writing = &madeKept{failed: errors.New("there is no recording")}, make(chan error, 1)
	f.write()
	require.True(t, f.again)
	f.writing <- errors.New("the disk is full")
	f.step()
	n := f.process.observer.(*noted)
	require.Equal(t, []string{"the disk is full"}, n.warnings)
	require.False(t, f.again)
	require.NotNil(t, f.writing)
	require.ErrorContains(t, <-f.writing, "there is no recording")
	f.writing = nil
	f.conclude()
	require.Len(t, n.warnings, 2)
	f.kept = nil
	f.conclude()
	require.Len(t, n.warnings, 2, "there is nothing to write")
}

// TestAsksOnceMore: what PyTorch's backend cudaMallocAsync asks a second time, from another place of its own, is one request; what the
// program asks for is another one.
func TestAsksOnceMore(t *testing.T) {
	own := func(id event.StackID) *event.Stack {
		lib := &event.Module{Path: "/app/torch/lib/libtorch_cuda.so"}
		return &event.Stack{ID: id, Frames: []event.Frame{
			{Kind: event.FrameNative, Func: "cudaMallocAsync", Module: &event.Module{Path: "/app/libcudart.so"}},
			{Kind: event.FrameNative, Func: "malloc", Module: lib},
		}}
	}
	ask := event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerDevice, PID: 7, TID: 7, Size: 4096, Call: "cudaMallocAsync", Stack: 1}
	second := ask
	second.Stack = 2
	given := event.Event{Kind: event.KindAlloc, Layer: event.LayerDevice, PID: 7, TID: 7, Size: 512, Stack: 1}
	other, size, thread, layer := second, second, second, second
	other.Stack, size.Size, thread.TID, layer.Layer = 3, 512, 8, event.LayerAllocator
	for name, tt := range map[string]struct {
		events []event.Event
		want   int // requests that failed
	}{
		"asked again":           {[]event.Event{ask, second}, 1},
		"from the same place":   {[]event.Event{ask, ask}, 2},
		"given between":         {[]event.Event{ask, given, second}, 2},
		"by the program itself": {[]event.Event{ask, other}, 2},
		"another size":          {[]event.Event{ask, size}, 2},
		"another thread":        {[]event.Event{ask, thread}, 2},
		"another layer":         {[]event.Event{ask, layer}, 2},
	} {
		target := &madeTarget{pid: 7, stacks: map[event.StackID]*event.Stack{
			1: own(1), 2: own(2), 3: {ID: 3, Frames: []event.Frame{{Kind: event.FramePython, Func: "f", File: "a.py"}}},
		}}
		f := newFailures(&Process{joiner: backward.New(target.Stack, func() []string { return nil }, maxJoined)}, nil)
		count := 0
		for events := tt.events; len(events) > 0; {
			n := f.next(events)
			if f.seen {
				count++
			}
			events = events[n:]
		}
		require.Equal(t, tt.want, count, name)
	}
}

// TestAwaitWithoutFailure: a reading that no failure asked for is not waited for.
func TestAwaitWithoutFailure(t *testing.T) {
	f := &failures{process: &Process{}, reading: make(chan figures.Reading)}
	f.await()
	require.NotNil(t, f.reading)
}

// TestSettleWrites: what was read for a failure is written to its folder; that of the failure before is left as it
// is where one of too many has none.
func TestSettleWrites(t *testing.T) {
	f := begun(t, &madeTarget{pid: 7}, nil).failures
	f.failure, f.count, f.kept = 5, keptFailures+1, &madeKept{failed: errors.New("there is no recording")}
	f.settle()
	require.Zero(t, f.failure)
	require.Nil(t, f.writing)
	f.failure, f.count = 5, keptFailures
	f.settle()
	require.NotNil(t, f.writing)
	require.ErrorContains(t, <-f.writing, "there is no recording")
	f.writing = nil
}
