// SPDX-License-Identifier: Apache-2.0

package view

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// blocks is objects of 512 bytes each.
func blocks(n uint64) heap.Count { return heap.Count{Objects: n, Bytes: 512 * n} }

func torchBlock(addr, size, time uint64) *heap.Block {
	return &heap.Block{PID: 7, Layer: event.LayerAllocator, Addr: addr, Size: size, Time: time, Requested: event.Unknown}
}

// TestLargestLifetimes: of each layer the largest blocks are kept, of one size the older ones, each with its end.
func TestLargestLifetimes(t *testing.T) {
	l := newLargest(2)
	l.allocated(torchBlock(1, 900, 1), nil)
	require.Empty(t, l.list(), "the range has not begun")
	l.begin(heap.New())
	by := &event.Event{TID: 3}
	l.allocated(torchBlock(10, 500, 10), by)
	l.allocated(torchBlock(20, 300, 20), nil)
	l.allocated(torchBlock(30, 300, 30), by) // no larger than the smallest
	l.allocated(torchBlock(40, event.Unknown, 40), by)
	address := torchBlock(50, 900, 50)
	address.Layer = event.LayerAllocator + 100
	l.allocated(address, by)
	host := torchBlock(60, 1, 60)
	host.Layer = event.LayerHost
	l.allocated(host, by)
	l.freed(torchBlock(10, 500, 10), 70)
	l.freed(torchBlock(30, 300, 30), 75)
	l.freed(torchBlock(20, 300, 20), 5) // a clock that is behind
	require.Equal(t, []Lifetime{{*torchBlock(10, 500, 10), 3, 70}, {*torchBlock(20, 300, 20), 0, 20}, {*host, 3, 0}}, l.list())

	l.allocated(torchBlock(20, 300, 20), by) // its free failed
	l.allocated(torchBlock(80, 400, 80), by) // and then it is too small
	l.freed(torchBlock(20, 300, 20), 90)
	require.Equal(t, []Lifetime{{*torchBlock(10, 500, 10), 3, 70}, {*torchBlock(80, 400, 80), 3, 0}, {*host, 3, 0}}, l.list())
	moved := torchBlock(80, 400, 80)
	moved.Stack = 9
	l.moved(moved)
	l.moved(torchBlock(99, 1, 1))
	require.EqualValues(t, 9, l.list()[1].Block.Stack)
	l.begin(nil) // only the first call counts

	l = newLargest(1)
	l.begin(heap.New())
	l.allocated(torchBlock(10, 300, 10), by)
	l.freed(torchBlock(10, 300, 10), 15)
	l.allocated(torchBlock(10, 300, 10), by)
	require.Zero(t, l.list()[0].End, "a block whose free failed is in use")
	l.allocated(torchBlock(10, 700, 10), by)
	require.EqualValues(t, 700, l.list()[0].Block.Size)

	none := newLargest(0)
	none.begin(heap.New())
	none.allocated(torchBlock(10, 300, 10), by)
	require.Empty(t, none.list())
}

// TestCompletedParts: the parts of a site and a rest are all of it; parts that have too much say nothing.
func TestCompletedParts(t *testing.T) {
	site := func(alloc, inuse uint64) *Site {
		return &Site{Site: heap.Site{Alloc: blocks(alloc), Inuse: blocks(inuse)}}
	}
	parts := func() []SitePart {
		return []SitePart{{TID: 1, Alloc: blocks(3), Inuse: blocks(2)}, {TID: 2, Alloc: blocks(1), Inuse: blocks(1)}}
	}
	rest := func(alloc, inuse uint64) SitePart {
		return SitePart{Stream: event.Unknown, Size: event.Unknown, Age: event.Unknown, Alloc: blocks(alloc), Inuse: blocks(inuse)}
	}
	require.Equal(t, parts(), completed(parts(), site(4, 3)))
	require.Equal(t, append(parts(), rest(1, 0)), completed(parts(), site(5, 3)))
	require.Equal(t, append(parts(), rest(0, 2)), completed(parts(), site(4, 5)))
	require.Equal(t, []SitePart{rest(3, 3)}, completed(parts(), site(3, 3)), "fewer were allocated")
	require.Equal(t, []SitePart{rest(4, 2)}, completed(parts(), site(4, 2)), "fewer are in use")
	require.Equal(t, []SitePart{rest(2, 1)}, completed(nil, site(2, 1)))
	require.Empty(t, completed(nil, site(0, 0)))
}

// TestCountSelected: what is selected of a site is in use in its account: of blocks from before the first event as
// such, where their total is known.
func TestCountSelected(t *testing.T) {
	before := &Site{Site: heap.Site{Origin: heap.OriginBefore, Inuse: blocks(2)}}
	a := &heap.Account{Before: 100, Live: blocks(1)}
	countSelected(a, before)
	require.Equal(t, &heap.Account{Before: 1124, BeforeBlocks: blocks(2), Live: blocks(1)}, a)
	a = &heap.Account{Before: event.Unknown}
	countSelected(a, before)
	require.Equal(t, &heap.Account{Before: event.Unknown, BeforeBlocks: blocks(2)}, a)
	countSelected(a, &Site{Site: heap.Site{Inuse: blocks(3)}})
	require.Equal(t, blocks(3), a.Live)
}

// TestReduceAccount: of what was allocated before the first event there stays what is in no block; a range has none of it.
func TestReduceAccount(t *testing.T) {
	device := event.Device{Type: event.DeviceCUDA, Index: 1}
	site := func(change func(*heap.Site)) Site {
		s := Site{Site: heap.Site{PID: 7, Layer: event.LayerAllocator, Device: device, Origin: heap.OriginBefore, Inuse: blocks(2)}}
		change(&s.Site)
		return s
	}
	sites := []Site{
		site(func(*heap.Site) {}), site(func(s *heap.Site) { s.Layer = event.LayerDevice }),
		site(func(s *heap.Site) { s.Origin = heap.OriginEvent }),
		site(func(s *heap.Site) { s.PID = 8 }), site(func(s *heap.Site) { s.Device.Index = 0 }),
	}
	for _, c := range []struct {
		before, to uint64
		want       heap.Account
	}{
		{5000, 0, heap.Account{Before: 3976, Lost: -9}},
		{1000, 0, heap.Account{Lost: -9}},
		{event.Unknown, 0, heap.Account{Before: event.Unknown, Lost: -9}},
		{5000, 1, heap.Account{}},
	} {
		a := &heap.Account{PID: 7, Device: device, Before: c.before, Lost: -9, Live: blocks(1), BeforeBlocks: blocks(2), Recovered: blocks(3)}
		(&Picker{s: Selection{To: c.to}}).reduceAccount(a, sites)
		c.want.PID, c.want.Device = 7, device
		require.Equal(t, c.want, *a)
	}
}

// TestUnseenSamples: what an allocator's total has beside known blocks is a sample for each holder, and one of lost
// events. Iteration can stop at any of them.
func TestUnseenSamples(t *testing.T) {
	account := &heap.Account{PID: 7, Allocated: 900, Before: 300, Lost: -5, BeforeBlocks: heap.Count{Objects: 2, Bytes: 300}}
	joined := NewJoined([]figures.HeldBefore{{PID: 7, HeldPart: figures.HeldPart{Holder: "a", Bytes: 200, Blocks: 1}},
		{PID: 8, HeldPart: figures.HeldPart{Holder: "b", Bytes: 9}}})
	list := func(a *heap.Account, j *Joined, most int) (out []Sample, all bool) {
		all = unseen(a, j, func(p Sample) bool { out = append(out, p); return len(out) < most })
		return out, all
	}
	sample := func(name, holder string, bytes int64, blocks uint64) Sample {
		return Sample{PID: 7, Layer: event.LayerAllocator, Name: name, Holder: holder, Bytes: bytes, Objects: blocks}
	}
	lost := sample(stacks.LostEvents, NoHolder, -5, 0)
	got, all := list(account, nil, 9)
	require.Equal(t, []Sample{sample(stacks.BeforeAttach, NoHolder, 300, 2), lost}, got)
	require.True(t, all)
	got, _ = list(account, joined, 9)
	require.Equal(t, []Sample{sample(stacks.BeforeAttach, "a", 200, 1), sample(stacks.BeforeAttach, NoHolder, 100, 0), lost}, got)
	for most := 1; most <= 3; most++ {
		got, all = list(account, joined, most)
		require.Len(t, got, most)
		require.False(t, all)
	}
	account.BeforeBlocks.Bytes, account.Lost = 299, 0
	got, all = list(account, nil, 9)
	require.Equal(t, []Sample{sample(stacks.BeforeAttach, NoHolder, 300, 0)}, got, "how many blocks it is, is not known")
	require.True(t, all)
	account.Before = 0
	got, _ = list(account, nil, 9)
	require.Empty(t, got)
	account.Before, account.Allocated = 300, event.Unknown
	got, all = list(account, nil, 9)
	require.Empty(t, got, "there is no total")
	require.True(t, all)
}

// TestSampleNames: a sample without a stack is named by what holds it and where it comes from; one with a stack by
// its frames, below the name of a line that is not the leaf.
func TestSampleNames(t *testing.T) {
	require.Equal(t, []string{"x"}, (&Sample{Name: "x"}).Names())
	require.Equal(t, []string{"x"}, (&Sample{Name: "x", Holder: NoHolder}).Names())
	require.Equal(t, []string{"h", "x"}, (&Sample{Name: "x", Holder: "h"}).Names())
	require.Equal(t, []Label{{Text: "h"}, {Text: "x"}}, (&Sample{Name: "x", Holder: "h"}).Labels())

	st := eventtest.Stack("libfoo.so!foo " + eventtest.Own + " /home/a/gpt.py:99:")
	site := &Site{Stack: st, Own: &st.Frames[1]}
	p := &Sample{Site: site, Name: "gpt.py:38 Block.forward"}
	frames := p.Frames()
	require.True(t, p.NeedsName(frames))
	require.False(t, p.NeedsName(nil))
	require.Equal(t, []Label{
		{Text: "gpt.py:38 Block.forward"}, {Text: "foo", Frame: &frames[0]}, {Text: "Block.forward (gpt.py:38)", Frame: &frames[1]},
		{Text: "[no name] (gpt.py:99)", Frame: &frames[2]},
	}, p.Labels())
	site.Own = &st.Frames[0]
	require.False(t, p.NeedsName(frames))
	require.Len(t, p.Labels(), 3)
	site.Stack = &event.Stack{}
	require.Nil(t, p.Frames())
}

// TestOverdrawn: only totals that are known and less than what is in use count.
func TestOverdrawn(t *testing.T) {
	v := New(&heap.Snapshot{Totals: heap.Totals{Accounts: []heap.Account{
		{Lost: -5}, {Lost: 7}, {Lost: -30}, {Lost: -1000, Allocated: event.Unknown},
	}}}, nil, nil)
	require.EqualValues(t, 35, v.Overdrawn())
}

// TestPowerOfTwo: sizes are calls apart by the power of two that they fit in.
func TestPowerOfTwo(t *testing.T) {
	for size, want := range map[uint64]uint64{
		0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 512: 512, 513: 1024, 1 << 62: 1 << 62, 1<<62 + 1: 1<<62 + 1, event.Unknown: event.Unknown,
	} {
		require.Equal(t, want, powerOfTwo(size))
	}
}

// TestAgeClass: blocks are as old as the largest bound that they have reached.
func TestAgeClass(t *testing.T) {
	const now = 1e15
	for age, want := range map[uint64]uint64{
		0: 0, 1e6 - 1: 0, 1e6: 1e6, 10e6 - 1: 1e6, 10e6: 10e6, 1e9: 1e9, 3600e9 - 1: 600e9, 3600e9: 3600e9, 9000e9: 3600e9,
	} {
		require.Equal(t, want, ageClass(now-age, now), "%d", age)
	}
	require.EqualValues(t, event.Unknown, ageClass(0, now))
	require.Zero(t, ageClass(now+5, now), "a clock that is ahead")
}

// TestWantedBlocks: a range has what was allocated in it by an event, and a least size leaves smaller blocks out.
func TestWantedBlocks(t *testing.T) {
	block := func(time, size uint64, origin heap.Origin) *heap.Block {
		return &heap.Block{Time: time, Size: size, Origin: origin}
	}
	ranged := &Picker{s: Selection{From: 10, To: 20}}
	require.False(t, ranged.wanted(block(10, 1, heap.OriginEvent)))
	require.True(t, ranged.wanted(block(11, 1, heap.OriginEvent)))
	require.False(t, ranged.wanted(block(11, 1, heap.OriginBefore)))
	sized := &Picker{s: Selection{MinSize: 100}}
	for size, want := range map[uint64]bool{99: false, 100: true, event.Unknown: true} {
		require.Equal(t, want, sized.wanted(block(0, size, heap.OriginBefore)))
	}
}

// TestSelectionKinds: which selections are the end, the peak, or end at a time.
func TestSelectionKinds(t *testing.T) {
	for _, c := range []struct {
		s            Selection
		atEnd, atTop bool
		until        uint64
	}{
		{Selection{}, true, false, 0},
		{Selection{Moment: moment.Moment{Kind: moment.End}}, true, false, 0},
		{Selection{MinSize: 1}, false, false, 0},
		{Selection{From: 1, To: 2}, false, false, 2},
		{Selection{Moment: moment.Moment{Kind: moment.Peak}}, false, true, 0},
		{Selection{Moment: moment.Moment{Kind: moment.Peak}, To: 2}, false, false, 2},
		{Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: 9}}, false, false, 9},
	} {
		require.Equal(t, c.atEnd, c.s.AtEnd(), c.s)
		require.Equal(t, c.atTop, c.s.AtPeak(), c.s)
		require.Equal(t, c.until, c.s.Until(), c.s)
	}
}

// TestNewPeaks: the peaks are those of the allocators, and of the driver on devices without one.
func TestNewPeaks(t *testing.T) {
	zero, one := event.Device{Type: event.DeviceCUDA}, event.Device{Type: event.DeviceCUDA, Index: 1}
	s := &heap.Snapshot{Totals: heap.Totals{
		Accounts: []heap.Account{{PID: 7, Device: zero, Peak: 5, PeakTime: 3}},
		Drivers: []heap.DriverAccount{
			{PID: 7, Device: zero, Layer: event.LayerDevice, Peak: 9, PeakTime: 4}, {PID: 7, Device: one, Layer: event.LayerDevice, Peak: 6,
				PeakTime: 5},
			{PID: 8, Device: zero, Layer: event.LayerHost, Peak: 7, PeakTime: 6},
		},
	}}
	peaks := NewPeaks(s)
	require.Equal(t, Peaks{
		{7, event.LayerAllocator, zero, 5, 3, false}, {7, event.LayerDevice, one, 6, 5, false}, {8, event.LayerHost, zero, 7, 6, false},
	}, peaks)
	require.False(t, peaks.Passed())
	for i := range peaks {
		require.False(t, peaks.Passed())
		peaks[i].over = true
	}
	require.True(t, peaks.Passed())
	require.True(t, Peaks(nil).Passed())
}

// TestPeaksReached: each peak is reached once, at the event that leads to it.
func TestPeaksReached(t *testing.T) {
	for seed := range uint64(3) {
		s := eventtest.Random(seed, 1500)
		trace, err := NewTrace(s, nil)
		require.NoError(t, err)
		peaks := NewPeaks(trace.End().Snapshot)
		reached := map[int]int{}
		require.NoError(t, trace.Replay(&Visitor{Event: func(e *event.Event, h *heap.Heap) {
			for k := range peaks.Reached(h, e) {
				require.Equal(t, k.Time, e.Time)
				for i := range peaks {
					if &peaks[i] == k {
						reached[i]++
					}
				}
			}
		}}))
		for i, k := range peaks {
			want := 1
			if k.Time == 0 {
				want = 0
			}
			require.Equal(t, want, reached[i], "%+v", k)
		}
		for i := range peaks {
			peaks[i].over = false
		}
		first := 0
		require.NoError(t, trace.Replay(&Visitor{Event: func(e *event.Event, h *heap.Heap) {
			for range peaks.Reached(h, e) {
				first++
				break
			}
		}}))
		require.NotZero(t, first)
	}
}

// TestAtPeakView: at the peak the totals are those of then, unknown where what was there before is.
func TestAtPeakView(t *testing.T) {
	device := event.Device{Type: event.DeviceCUDA}
	site := func(layer event.Layer, origin heap.Origin, pid uint32) heap.Site {
		return heap.Site{PID: pid, Layer: layer, Device: device, Origin: origin, Inuse: blocks(9), Peak: blocks(3)}
	}
	s := &heap.Snapshot{
		Totals: heap.Totals{Accounts: []heap.Account{
			{PID: 7, Device: device, Allocated: 1, Before: 2, Lost: 3, Reserved: 4, Peak: 5, PeakBefore: 6, PeakLost: -7, PeakReserved: 8,
				Live: blocks(1), BeforeBlocks: blocks(1), Recovered: blocks(1)},
			{PID: 8, Device: device, Peak: 5, PeakBefore: event.Unknown},
		}},
		Sites: []heap.Site{
			site(event.LayerAllocator, heap.OriginEvent, 7), site(event.LayerAllocator, heap.OriginRecovered, 7),
			site(event.LayerAllocator, heap.OriginBefore, 7),
			site(event.LayerDevice, heap.OriginEvent, 7), site(event.LayerAllocator, heap.OriginEvent, 8),
		},
	}
	v := New(s, func(event.StackID) *event.Stack { return nil }, nil).AtPeak()
	a := v.Snapshot.Accounts
	require.Equal(t, []any{uint64(5), uint64(6), int64(-7), uint64(8)}, []any{a[0].Allocated, a[0].Before, a[0].Lost, a[0].Reserved})
	require.Equal(t, blocks(6), a[0].Live)
	require.Equal(t, heap.Count{}, a[0].BeforeBlocks.Plus(a[0].Recovered))
	require.EqualValues(t, event.Unknown, a[1].Allocated)
	require.Equal(t, blocks(3), a[1].Live)
	for i := range v.Sites {
		require.Equal(t, blocks(3), v.Sites[i].Inuse)
	}
	require.EqualValues(t, 1, s.Accounts[0].Allocated, "the view of the end stays as it is")
}

// TestBeforeOfAccount: what was there before the first event is split by holder, and what is in no known block has none.
func TestBeforeOfAccount(t *testing.T) {
	device := event.Device{Type: event.DeviceCUDA}
	part := func(holder string, bytes, blocks uint64) figures.HeldBefore {
		return figures.HeldBefore{PID: 7, Device: device, HeldPart: figures.HeldPart{Holder: holder, Bytes: bytes, Blocks: blocks}}
	}
	j := NewJoined([]figures.HeldBefore{part("b", 10, 1), part("a", 10, 2), part("c", 50, 3), part("other", 5, 1)})
	list := j.AllBefore()
	require.Equal(t, []string{"c", "a", "b", "other"}, []string{list[0].Holder, list[1].Holder, list[2].Holder, list[3].Holder})
	got := j.Before(&heap.Account{PID: 7, Device: device, Before: 74})
	require.Len(t, got, 4, "no rest, and less than none is none")
	got = j.Before(&heap.Account{PID: 7, Device: device, Before: 76})
	require.Equal(t, figures.HeldPart{Holder: NoHolder, Bytes: 1}, got[4])
}

// TestNoted: annotations of steps of one numbering are put together, another numbering begins anew; of holders and
// readings the last thousand are kept.
func TestNoted(t *testing.T) {
	var n noted
	steps := func(numbering, first int, begins ...uint64) {
		n.take(&event.Annotation{Kind: event.AnnotationSteps, Steps: &event.Steps{Numbering: numbering, Source: "optimizer", On: "x",
			Chosen: "y", First: first, Begins: begins}})
	}
	steps(1, 3, 10, 20)
	steps(1, 5, 30)
	trace := &Trace{noted: n}
	got, whole := trace.Steps()
	require.True(t, whole)
	require.Equal(t, &event.Steps{Numbering: 1, Source: "optimizer", On: "x", Chosen: "y", First: 3, Begins: []uint64{10, 20, 30}}, got)
	steps(2, 1, 40)
	trace.noted = n
	got, whole = trace.Steps()
	require.False(t, whole)
	require.Equal(t, []uint64{40}, got.Begins)

	for i := range keptHeld + 5 {
		n.take(&event.Annotation{Kind: event.AnnotationHeld, Held: &event.Held{Time: uint64(i)}})
		n.take(&event.Annotation{Kind: event.AnnotationReading, Reading: []byte(`{"time":` + "1}")})
		if i < keptHeld {
			require.Len(t, n.held, i+1)
		}
	}
	require.Len(t, n.held, keptHeld)
	require.EqualValues(t, keptHeld+4, n.held[keptHeld-1].Time)
	require.EqualValues(t, 5, n.held[0].Time)
	require.Len(t, n.readings, keptHeld)
	n.take(&event.Annotation{Kind: event.AnnotationReading, Reading: []byte("{")})
	require.Len(t, n.readings, keptHeld, "what is not understood is left out")
}

// failing is an input that cannot be read again, or breaks off.
type failing struct {
	*eventtest.Stream
	rewind, read error
}

func (f *failing) Rewind() error { return errors.Join(f.rewind, f.Stream.Rewind()) }

func (f *failing) Read(buf []event.Event) ([]event.Event, error) {
	if f.read != nil {
		return buf, f.read
	}
	return f.Stream.Read(buf)
}

// watcher counts what it is shown.
type watcher struct{ events, ends int }

func (w *watcher) See(*event.Event) { w.events++ }
func (w *watcher) Seen()            { w.ends++ }

// TestWatchers: a watcher sees the events of one whole replay, or of one pass over the events, once.
func TestWatchers(t *testing.T) {
	in := &failing{Stream: eventtest.Random(1, 300)}
	trace, err := NewTrace(in, nil)
	require.NoError(t, err)
	for _, pass := range []func() error{
		func() error { return trace.Replay() },
		func() error { return trace.Events(func(*event.Event) {}) },
	} {
		w := &watcher{}
		trace.Watch(w)
		trace.Watch(w) // it is there already
		require.NoError(t, pass())
		require.Equal(t, watcher{len(in.Events), 1}, *w)
		require.NoError(t, pass())
		require.Equal(t, watcher{len(in.Events), 1}, *w, "only the next one")

		in.read = errors.New("broken disk")
		trace.Watch(w)
		require.ErrorIs(t, pass(), in.read)
		require.Equal(t, 1, w.ends, "not all was seen")
		in.read, in.rewind = nil, errors.New("no file")
		require.ErrorIs(t, pass(), in.rewind)
		in.rewind = nil
		require.NoError(t, pass())
	}
	in.rewind = errors.New("no file")
	_, err = trace.At(5)
	require.ErrorIs(t, err, in.rewind)
	_, err = trace.Select(Selection{Detail: true})
	require.ErrorIs(t, err, in.rewind)
	_, err = trace.Timeline(nil)
	require.ErrorIs(t, err, in.rewind)
	require.ErrorIs(t, trace.Allocations(Selection{}, func(*Allocation) error { return nil }), in.rewind)
	in.rewind, in.read = nil, errors.New("broken disk")
	_, err = trace.At(math.MaxUint64)
	require.ErrorIs(t, err, in.read)
	trace.Damage = errors.New("known")
	_, err = trace.At(math.MaxUint64)
	require.NoError(t, err, "that the end is missing is known")
}

// TestMovedVisitors: a visitor that does not follow moves sees a free and an allocation, at the time of the event that showed the move.
func TestMovedVisitors(t *testing.T) {
	from, to := torchBlock(1, 5, 3), torchBlock(1, 5, 3)
	to.Segment = true
	var calls []any
	alone := &Visitor{
		Freed:     func(b *heap.Block, e *event.Event, time uint64) { calls = append(calls, b, e, time) },
		Allocated: func(b *heap.Block, e *event.Event) { calls = append(calls, b, e) },
	}
	follows := &Visitor{Moved: func(from, to *heap.Block) { calls = append(calls, "moved", from, to) }}
	w := newVisit([]*Visitor{follows, {}, alone})
	require.Len(t, w.following, 2)
	w.Moved(from, to)
	require.Equal(t, []any{"moved", from, to, from, (*event.Event)(nil), uint64(3), to, (*event.Event)(nil)}, calls)
	calls = nil
	w.event = &event.Event{Time: 8}
	w.Moved(from, to)
	require.Equal(t, []any{"moved", from, to, from, w.event, uint64(8), to, w.event}, calls)
}

// TestListedMoves: an allocation that turns out to be another block, or whose free by the driver fails, is one allocation.
func TestListedMoves(t *testing.T) {
	trace, err := NewTrace(&eventtest.Stream{}, nil)
	require.NoError(t, err)
	var got []Allocation
	l := &lister{each: func(a *Allocation) error { got = append(got, *a); return nil }, live: map[heap.BlockKey]*Allocation{},
		held: map[heap.BlockKey]*Allocation{}, follow: trace.newFollower()}
	device := torchBlock(1, 5, 3)
	device.Layer, device.Object = event.LayerDevice, event.ObjectMemory
	other := torchBlock(2, 6, 4)
	other.Layer = event.LayerDevice
	segment := *device
	segment.Segment, segment.Stack = true, 9
	made := &event.Event{Kind: event.KindAlloc, TID: 11, Time: 3}
	l.allocated(device, made)
	l.moved(device, &segment)
	l.moved(other, other) // not known
	l.freed(&segment, made, 20)
	require.Empty(t, got, "the call may fail")
	l.allocated(&segment, nil) // it did
	l.allocated(other, &event.Event{Kind: event.KindMap, TID: 12, Time: 4})
	l.freed(other, nil, 30)
	l.freed(torchBlock(99, 1, 1), nil, 5) // not known
	require.NoError(t, l.finish(heap.New()))
	require.Len(t, got, 2)
	require.Equal(t, []any{uint64(2), uint64(30), uint32(0)}, []any{got[0].ID, got[0].Freed, got[0].TID})
	require.Equal(t, []any{uint64(1), uint64(0), uint32(11)}, []any{got[1].ID, got[1].Freed, got[1].TID})
	require.EqualValues(t, 9, got[1].Block.Stack)
}

// TestListedRange: of a range there is what was allocated in it by an event, and is large enough.
func TestListedRange(t *testing.T) {
	var got []uint64
	l := &lister{s: Selection{From: 10, To: 20, MinSize: 100}, each: func(a *Allocation) error { got = append(got, a.ID); return nil }}
	tell := func(id, time, size uint64, origin heap.Origin) {
		l.tell(&Allocation{ID: id, Block: heap.Block{Time: time, Size: size, Origin: origin}})
	}
	tell(1, 10, 100, heap.OriginEvent)
	tell(2, 11, 100, heap.OriginEvent)
	tell(3, 11, 99, heap.OriginEvent)
	tell(4, 11, 100, heap.OriginBefore)
	tell(5, 11, event.Unknown, heap.OriginEvent)
	l.s.To = 0
	tell(6, 10, 100, heap.OriginBefore)
	require.Equal(t, []uint64{2, 5, 6}, got)
	l.err = errors.New("no room")
	tell(7, 11, 100, heap.OriginEvent)
	require.Len(t, got, 3, "nothing comes after an error")
}

// TestPythonLine: the program's own line of a stack, with its folder; nothing where it has none.
func TestPythonLine(t *testing.T) {
	trace, err := NewTrace(&eventtest.Stream{Stacks: map[event.StackID]*event.Stack{
		1: eventtest.Stack("libfoo.so!foo " + eventtest.Own), 2: eventtest.Stack("libfoo.so!foo"), 3: {},
	}}, nil)
	require.NoError(t, err)
	for id, want := range map[event.StackID]string{1: "/home/a/gpt.py:38", 2: "", 3: "", 4: ""} {
		require.Equal(t, want, trace.PythonLine(id))
	}
	trace.SetOptions(&Options{Library: []string{"/home/a/"}})
	require.Equal(t, "/home/a/gpt.py:38", trace.PythonLine(1), "there is no other line")
}

// TestStepAtTime: a block of which it is not known when it was allocated is of no step.
func TestStepAtTime(t *testing.T) {
	trace := &Trace{}
	require.Zero(t, trace.StepAt(5))
	trace.SetSteps(func(time uint64) int { return int(time) + 1 })
	require.Zero(t, trace.StepAt(0))
	require.Equal(t, 2, trace.StepAt(1))
}

// TestFollowerMoves: what was noted of a block is that of the one it turns out to be.
func TestFollowerMoves(t *testing.T) {
	trace, err := NewTrace(&eventtest.Stream{}, nil)
	require.NoError(t, err)
	p := trace.Purposes()
	from, to := torchBlock(1, 5, 3), torchBlock(2, 5, 3)
	to.Layer = event.LayerDevice
	p.Moved(from, to)
	require.Nil(t, p.follow.starts.At(to), "of an unknown block nothing is noted")
	p.Allocated(from, &event.Event{Kind: event.KindAlloc, Time: 3, TID: 8})
	p.Moved(from, to)
	require.Nil(t, p.follow.starts.At(from))
	require.EqualValues(t, 8, p.follow.starts.At(to).TID)
	require.True(t, p.follow.starts.At(to).made)
	require.Equal(t, phases.NoCategory, p.Freed(from, nil))
	p.Freed(to, nil)
	require.Nil(t, p.follow.starts.At(to))
	p.Allocated(from, &event.Event{Kind: event.KindAlloc, Time: 4, TID: 8})
	require.False(t, p.follow.starts.At(from).made, "by an event of another moment")

	trace.SetHeld(map[heap.BlockKey]HeldBlock{
		from.Key(): {Holder: "a", Category: phases.Parameters}, to.Key(): {Holder: "b", Category: phases.NoCategory},
	})
	category, held := p.InUse(from)
	require.Equal(t, phases.Parameters, category)
	require.Equal(t, "a", held.Holder)
	category, held = p.InUse(to)
	require.Equal(t, phases.NoCategory, category)
	require.Equal(t, "b", held.Holder)
	got, ok := trace.Holder(to)
	require.True(t, ok)
	require.Equal(t, "b", got.Holder)
	_, ok = trace.Holder(torchBlock(77, 1, 1))
	require.False(t, ok)
}

// TestRaisedSize: a least size is a power of two, so that no more than the limit are shown; an allocation counts
// half more for what it changes.
func TestRaisedSize(t *testing.T) {
	var c sizeCounts
	for range 4 {
		c.add(&heap.Block{Size: 512})
	}
	c.add(&heap.Block{Size: 5000})
	c.add(&heap.Block{Size: event.Unknown})
	for limit, want := range map[uint64]uint64{0: 7, 100: 7, 7: 7, 6: 1024, 1: 1024} {
		require.Equal(t, want, c.raise(7, limit), "limit %d", limit)
	}
	require.EqualValues(t, 1<<20, c.raise(1<<20, 1), "what was asked for is more")
	one := sizeCounts{}
	for range 10 {
		one.add(&heap.Block{Size: 512})
	}
	require.EqualValues(t, 512, one.raise(0, 3), "the largest class is shown as far as it does")
	require.EqualValues(t, 0, (&sizeCounts{}).raise(0, 3))
}

// TestDistance: sizes are as far apart as they are, and what is not known is as far as can be from what is.
func TestDistance(t *testing.T) {
	const unknown = event.Unknown
	for _, c := range [][3]uint64{{5, 3, 2}, {3, 5, 2}, {4, 4, 0}, {unknown, 4, unknown}, {4, unknown, unknown}, {unknown, unknown, 0}} {
		require.Equal(t, c[2], distance(c[0], c[1]))
	}
}

// TestSpend: of a limited number of events each is shown until there are none left, and the time of then is kept.
func TestSpend(t *testing.T) {
	p := &playback{tl: &Timeline{options: TimelineOptions{MaxEvents: 2}, Until: 99}, now: 5}
	require.True(t, p.spend())
	require.True(t, p.spend())
	require.False(t, p.spend())
	p.now = 8
	require.False(t, p.spend())
	require.EqualValues(t, 5, p.tl.Until)
	p = &playback{tl: &Timeline{Until: 99}}
	for range 10 {
		require.True(t, p.spend())
	}
	require.EqualValues(t, 99, p.tl.Until)
}

// TestUnseenRows: what was allocated before the first event is split by its known blocks, and only as far as they fit its total.
func TestUnseenRows(t *testing.T) {
	device := event.Device{Type: event.DeviceCUDA}
	site := Site{Site: heap.Site{PID: 7, Layer: event.LayerAllocator, Device: device, Origin: heap.OriginBefore}, Parts: []SitePart{
		{Inuse: blocks(2), Category: phases.Parameters, Holder: "model", Step: 3}, {Category: phases.Gradients},
		{Inuse: blocks(1), Category: phases.NoCategory},
	}}
	other := site
	other.PID = 8
	v := &View{Sites: []Site{site, other}}
	p := &Sample{PID: 7, Device: device, Name: stacks.BeforeAttach}
	rows := func(bytes int64, blocks uint64) []Row {
		return v.appendUnseen(nil, p, Row{Name: p.Name, Bytes: bytes, Blocks: blocks})
	}
	row := func(bytes int64, blocks uint64, category phases.Category, step, holder string) Row {
		return Row{Name: p.Name, Bytes: bytes, Blocks: blocks, Category: string(category), Step: step, Holder: holder}
	}
	known := []Row{row(1024, 2, phases.Parameters, "step 3", "model"), row(512, 1, phases.NoCategory, NoStep, HolderFreed)}
	require.Equal(t, known, rows(1536, 3))
	require.Equal(t, append(known, row(64, 1, phases.NoCategory, NoStep, NoHolder)), rows(1600, 4))
	require.Equal(t, append(known, row(64, 0, phases.NoCategory, NoStep, NoHolder)), rows(1600, 0))
	require.Equal(t, []Row{row(1535, 3, phases.NoCategory, NoStep, NoHolder)}, rows(1535, 3), "the blocks are not those of the total")
	p.Name = stacks.LostEvents
	require.Equal(t, []Row{{Name: p.Name, Bytes: -5, Category: string(phases.NoCategory), Step: NoStep, Holder: NoHolder}},
		v.appendUnseen(nil, p, Row{Name: p.Name, Bytes: -5}))
}

// TestInnerRows: what a line calls is listed where it has more than three tenths of all, three calls at most, the largest first.
func TestInnerRows(t *testing.T) {
	samples := []*Row{}
	for i, bytes := range []int64{5, 40, 10, 20, 30, 1} {
		r := &Row{Bytes: bytes, Blocks: uint64(bytes)}
		if i < 5 {
			r.inner = &Call{Name: string(rune('a' + i)), Func: "f", File: "x.py", Line: i}
		}
		samples = append(samples, r)
	}
	samples = append(samples, &Row{Bytes: 7, Blocks: 7, inner: samples[2].inner})
	line := Row{Bytes: 113}
	line.addInner(samples, 300)
	require.Equal(t, []Row{
		{Name: "b", Func: "f", File: "x.py", Line: 1, Bytes: 40, Blocks: 40}, {Name: "e", Func: "f", File: "x.py", Line: 4, Bytes: 30,
			Blocks: 30},
		{Name: "d", Func: "f", File: "x.py", Line: 3, Bytes: 20, Blocks: 20},
	}, line.Inner)
	for bytes, total := range map[int64]int64{30: 100, 0: 0, 5: -1} {
		line = Row{Bytes: bytes}
		line.addInner(samples, total)
		require.Nil(t, line.Inner, "%d of %d", bytes, total)
	}
	line = Row{Bytes: 31, Inner: []Row{{Bytes: 10}}}
	line.setShare(100)
	require.InDelta(t, 0.31, line.Share, 1e-12)
	require.InDelta(t, 0.1, line.Inner[0].Share, 1e-12)
	line = Row{Bytes: 31}
	line.setShare(0)
	require.Zero(t, line.Share)
}

// TestCallOf: a line of Python is named by its file and function, native code by its symbol.
func TestCallOf(t *testing.T) {
	st := eventtest.Stack("libfoo.so!foo /home/a/gpt.py:-4:f")
	require.Equal(t, Call{Name: "foo"}, CallOf(&st.Frames[0]))
	c := CallOf(&st.Frames[1])
	require.Equal(t, []any{"f", "/home/a/gpt.py", 0}, []any{c.Func, c.File, c.Line})
	require.Equal(t, c.Name+" f", c.Text())
	require.Equal(t, "foo", (&Call{Name: "foo"}).Text())
}

// TestTouchedDevices: when memory turns out to be on another device, the one that it leaves is looked at too.
func TestTouchedDevices(t *testing.T) {
	p := &playback{}
	from, to := torchBlock(1, 5, 3), torchBlock(1, 5, 3)
	p.moved(from, to)
	require.Empty(t, p.touched)
	to.Device.Index = 1
	p.moved(from, to)
	require.Equal(t, []accountID{{7, from.Device}}, p.touched)
}
