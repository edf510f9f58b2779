// SPDX-License-Identifier: Apache-2.0

package pagemodel_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// shown is one kind of memory on one part, under one name.
type shown struct {
	pid     uint32
	device  event.Device
	layer   event.Layer
	segment bool
	name    string
}

type amount struct{ blocks, bytes uint64 }

func (a amount) plus(blocks, bytes uint64) amount { return amount{a.blocks + blocks, a.bytes + bytes} }

// browsed adds up the lifetimes that a choice takes.
func browsed(b *pagemodel.Model, choose func(l *pagemodel.Lifetimes, g *pagemodel.Group) bool) map[shown]amount {
	out := map[shown]amount{}
	for i := range b.Lifetimes {
		l := &b.Lifetimes[i]
		g := &b.Groups[l.Group]
		if !choose(l, g) {
			continue
		}
		p := &b.Parts[g.Part]
		key := shown{p.PID, p.Device, g.Layer, g.Segment, ownName(&b.Frames[g.Own])}
		out[key] = out[key].plus(l.Blocks, l.Bytes)
	}
	return out
}

// ownName is the name of a site as view.Site has it.
func ownName(f *pagemodel.TreeFrame) string {
	if f.Kind == pagemodel.TreeOwn || f.Kind == pagemodel.TreeLibrary {
		return fmt.Sprintf("%s:%d %s", f.File[len(f.File)-len("train.py"):], f.Line, f.Name)
	}
	return f.Name
}

// viewed is what a view has in use.
func viewed(v *view.View) map[shown]amount {
	out := map[shown]amount{}
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Inuse.Objects == 0 {
			continue
		}
		key := shown{s.PID, s.Device, s.Layer, s.Segment, s.Name}
		out[key] = out[key].plus(s.Inuse.Objects, s.Inuse.Bytes)
	}
	return out
}

func traceOf(t *testing.T, s *eventtest.Stream) *view.Trace {
	t.Helper()
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	return trace
}

func browse(t *testing.T, s *eventtest.Stream, o *pagemodel.Options) *pagemodel.Model {
	t.Helper()
	b, err := pagemodel.New(traceOf(t, s), o)
	require.NoError(t, err)
	return b
}

var browseSizes = map[string]*pagemodel.Options{
	"all":           nil,
	"few moments":   {Moments: 60, Points: 100},
	"few lives":     {Lifetimes: 700},
	"nothing fits":  {Moments: 10, Points: 1, Lifetimes: 1, Nodes: 1},
	"every event":   {Moments: 5000},
	"stacks folded": {Nodes: 10},
}

// At each moment the sums are those of a live set that stopped there, and of the allocators' own totals.
func TestBrowseMoments(t *testing.T) {
	for name, o := range browseSizes {
		t.Run(name, func(t *testing.T) {
			s := eventtest.Random(11, 3000)
			b := browse(t, s, o)
			require.Equal(t, []uint64{0, 3000}, []uint64{b.Moments[0].Event, b.Moments[len(b.Moments)-1].Event})
			for i, m := range b.Moments[1:] {
				view := view.New(applied(s, int(m.Event)).Snapshot(), s.Stack, nil)
				got := browsed(b, func(l *pagemodel.Lifetimes, _ *pagemodel.Group) bool { return int(l.Alloc) <= i+1 && i+1 < int(l.Free) })
				require.Equal(t, viewed(view), got, "moment %d, after %d events", i+1, m.Event)
				require.Equal(t, s.Events[m.Event-1].Time, m.Time)
				checkTotals(t, b, i+1, view)
			}
		})
	}
}

// checkTotals compares a moment with the heap's totals, part by part.
func checkTotals(t *testing.T, b *pagemodel.Model, at int, view *view.View) {
	t.Helper()
	total := uint64(0)
	for i := range b.Parts {
		p := &b.Parts[i]
		live := p.Before[at] + uint64(p.Lost[at])
		other := uint64(0)
		for _, l := range b.Lifetimes {
			g := &b.Groups[l.Group]
			if g.Part != i || !g.Counted() || int(l.Alloc) > at || at >= int(l.Free) {
				continue
			}
			if g.Layer == event.LayerAllocator {
				live += l.Bytes
			} else {
				other += l.Bytes
			}
		}
		require.Equal(t, p.Allocated[at], live)
		total += live + other
		for _, a := range view.Snapshot.Accounts {
			if a.PID == p.PID && a.Device == p.Device {
				require.Equal(t, a.Allocated, p.Allocated[at])
				require.Equal(t, a.Reserved, p.Reserved[at])
			}
		}
	}
	if len(view.Snapshot.Accounts) == len(b.Parts) { // before its first event a view does not know a device
		require.Equal(t, view.Total(), total)
	}
}

// Peak and end have the figures of the report.
func TestBrowsePeak(t *testing.T) {
	for name, o := range browseSizes {
		t.Run(name, func(t *testing.T) {
			s := eventtest.Random(12, 3000)
			trace := traceOf(t, s)
			b, err := pagemodel.New(trace, o)
			require.NoError(t, err)
			peak := trace.Peak()
			want := viewed(peak)
			for i := range b.Parts {
				p, a := &b.Parts[i], &peak.Snapshot.Accounts[i]
				require.Equal(t, a.Peak, p.Peak)
				require.Equal(t, a.Peak, p.Allocated[p.PeakMoment])
				require.NotZero(t, b.Moments[p.PeakMoment].Kind&pagemodel.MomentPeak)
				require.Equal(t, a.PeakTime, b.Moments[p.PeakMoment].Time)
				require.Equal(t, a.Before, p.Before[p.PeakMoment])
				got := browsed(b, func(l *pagemodel.Lifetimes, g *pagemodel.Group) bool {
					return g.Part == i && int(l.Alloc) <= p.PeakMoment && p.PeakMoment < int(l.Free)
				})
				for key, n := range want {
					if key.device == p.Device {
						require.Equal(t, n, got[key], "%v", key)
						delete(got, key)
					}
				}
				require.Empty(t, got)
			}
		})
	}
}

// flow is what the events say of a range: what was allocated in it, and what of that is live behind it.
func flow(events []event.Event, from, to uint64, resolve func(event.StackID) *event.Stack) (allocated, leaked map[string]amount) {
	type block struct {
		name string
		size uint64
	}
	live := map[uint64]block{}
	allocated, leaked = map[string]amount{}, map[string]amount{}
	for i := range events[:to] {
		e := &events[i]
		switch {
		case e.Kind == event.KindFree:
			delete(live, e.Addr)
		case e.Kind == event.KindAlloc && uint64(i) >= from:
			name := fmt.Sprint(e.Layer, e.Device)
			live[e.Addr] = block{name, e.Size}
			allocated[name] = allocated[name].plus(1, e.Size)
		}
	}
	for _, b := range live {
		leaked[b.name] = leaked[b.name].plus(1, b.size)
	}
	return allocated, leaked
}

// What was allocated and what leaked between any two moments is what the events say.
func TestBrowseRanges(t *testing.T) {
	for name, o := range browseSizes {
		t.Run(name, func(t *testing.T) {
			s := eventtest.Random(13, 3000)
			b := browse(t, s, o)
			n := len(b.Moments)
			for _, r := range [][2]int{{0, n - 1}, {0, 1}, {n / 3, n / 2}, {n - 2, n - 1}, {n / 2, n/2 + n/5}, {1, 1}} {
				from, to := r[0], r[1]
				wantAllocated, wantLeaked := flow(s.Events, b.Moments[from].Event, b.Moments[to].Event, s.Stack)
				allocated, leaked := map[string]amount{}, map[string]amount{}
				for _, l := range b.Lifetimes {
					g := &b.Groups[l.Group]
					if g.Again || int(l.Alloc) <= from || int(l.Alloc) > to {
						continue
					}
					key := fmt.Sprint(g.Layer, b.Parts[g.Part].Device)
					allocated[key] = allocated[key].plus(l.Blocks, l.Bytes)
					if int(l.Free) > to {
						leaked[key] = leaked[key].plus(l.Blocks, l.Bytes)
					}
				}
				require.Equal(t, wantAllocated, allocated)
				require.Equal(t, wantLeaked, leaked)
			}
		})
	}
}

// The curve of a part has the allocator's totals, and its bounds are reached.
func TestBrowseCurve(t *testing.T) {
	for _, points := range []int{0, 37, 5000} {
		s := eventtest.Random(14, 3000)
		b := browse(t, s, &pagemodel.Options{Points: points})
		for i := range b.Parts {
			p := &b.Parts[i]
			var totals, seen []uint64
			for _, e := range s.Events {
				if e.Layer == event.LayerAllocator && e.Device == p.Device {
					totals = append(totals, e.Allocated)
				}
			}
			for _, pt := range p.Curve {
				seen = append(seen, pt.High[pagemodel.QuantityAllocated])
				require.LessOrEqual(t, pt.Low[pagemodel.QuantityAllocated], pt.Last[pagemodel.QuantityAllocated])
				require.LessOrEqual(t, pt.Last[pagemodel.QuantityTotal], pt.High[pagemodel.QuantityTotal])
			}
			require.Equal(t, slices.Max(totals), slices.Max(seen))
			require.Equal(t, totals[len(totals)-1], p.Curve[len(p.Curve)-1].Last[pagemodel.QuantityAllocated])
			if points > 0 {
				require.LessOrEqual(t, len(p.Curve), max(points, 3000)+1)
			}
		}
	}
}

// Refused requests are marked, each with the thread and the line that asked.
func TestOOMs(t *testing.T) {
	s := eventtest.Random(15, 3000)
	b := browse(t, s, nil)
	n := 0
	for i := range s.Events {
		e := &s.Events[i]
		if e.Kind != event.KindOutOfMemory {
			continue
		}
		r := &b.OOMs[n]
		n++
		require.Equal(t, []uint64{e.Time, e.Size, uint64(e.TID)}, []uint64{r.Time, r.Bytes, uint64(r.TID)})
		require.Equal(t, e.Device, b.Parts[r.Part].Device)
		if n <= 50 {
			require.EqualValues(t, i+1, b.Moments[r.Moment].Event)
		}
	}
	require.NotZero(t, n)
	require.EqualValues(t, n, b.OOMCount)
}

// Memory of which a free failed was allocated all the time; that it seemed freed counts for moments alone.
func TestBrowseFailedFree(t *testing.T) {
	e := func(kind event.Kind, addr, time uint64) event.Event {
		return event.Event{
			Kind: kind, Layer: event.LayerDevice, PID: 7, TID: 8, Time: time, Addr: addr, Size: 4096, Handle: event.Unknown, Context: event.Unknown,
			Requested: event.Unknown, Stream: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown, Call: "cuMemAlloc_v2",
		}
	}
	s := &eventtest.Stream{Events: []event.Event{
		e(event.KindAlloc, 1<<20, 1), e(event.KindAlloc, 2<<20, 2), e(event.KindFree, 1<<20, 3), e(event.KindFreeFailed, 1<<20, 4),
	}}
	for _, o := range []*pagemodel.Options{nil, {Moments: 1}} {
		b := browse(t, s, o)
		var allocated, live uint64
		for _, l := range b.Lifetimes {
			if !b.Groups[l.Group].Again {
				allocated += l.Blocks
			}
			if int(l.Free) == len(b.Moments) {
				live += l.Blocks
			}
		}
		require.Equal(t, []uint64{2, 2}, []uint64{allocated, live})
	}
}

// Events that no program makes, in any order of time, are added up all the same.
func TestBrowseWild(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := &eventtest.Stream{}
		number := func(n uint64) uint64 {
			if rng.IntN(9) == 0 {
				return event.Unknown
			}
			return rng.Uint64N(n)
		}
		for i := range 400 {
			s.Events = append(s.Events, event.Event{
				Time: 400*rng.Uint64N(20) + uint64(i), PID: uint32(rng.IntN(2)), TID: uint32(rng.IntN(3)), Kind: event.Kind(rng.IntN(11)),
				Layer:  event.Layer(rng.IntN(8)),
				Object: event.Object(rng.IntN(6)), Device: event.Device{Type: event.DeviceCUDA, Index: int8(rng.IntN(3) - 1)}, Addr: number(9) << 12,
				Size: number(1 << 14), Handle: number(4), Context: number(3), Requested: number(99), Stream: number(2), Allocated: number(1 << 16),
				Reserved: number(1 << 16), Stack: event.StackID(rng.IntN(3)),
			})
		}
		trace := traceOf(t, s)
		for _, o := range []*pagemodel.Options{nil, {Moments: 20, Lifetimes: 5, Points: 3}} {
			b, err := pagemodel.New(trace, o)
			require.NoError(t, err)
			end := len(b.Moments) - 1
			got := browsed(b, func(l *pagemodel.Lifetimes, _ *pagemodel.Group) bool { return int(l.Free) > end })
			want := viewed(trace.End())
			for key := range want {
				if key.layer == event.LayerAllocator && key.name == stacks.BeforeAttach {
					delete(want, key)
				}
			}
			require.Equal(t, want, got, "seed %d", seed)
		}
	}
}

// later is a stream that begins with a checkpoint, as a recording does that keeps its last part only.
type later struct {
	*eventtest.Stream
	state []byte
	marks []event.Annotation
	begun bool
}

func (l *later) Read(buf []event.Event) ([]event.Event, error) {
	if l.begun {
		return l.Stream.Read(buf)
	}
	l.begun, l.marks = true, []event.Annotation{{Kind: event.AnnotationCheckpoint, State: l.state}}
	return buf, nil
}

func (l *later) Annotations() []event.Annotation {
	m := l.marks
	l.marks = nil
	return m
}

func (l *later) Rewind() error {
	l.begun = false
	return l.Stream.Rewind()
}

// A trace that begins later has what was live then, with its stacks, but did not allocate it; a peak before is known by its size.
func TestBrowseCheckpoint(t *testing.T) {
	const before = 1500
	all := eventtest.Random(16, 3000)
	rest := &eventtest.Stream{Events: all.Events[before:], Stacks: all.Stacks}
	trace, err := view.NewTrace(&later{Stream: rest, state: applied(all, before).State()}, nil)
	require.NoError(t, err)
	for _, o := range []*pagemodel.Options{nil, {Moments: 50, Lifetimes: 300}} {
		b, err := pagemodel.New(trace, o)
		require.NoError(t, err)
		require.Equal(t, rest.Events[0].Time, b.First)
		for i, m := range b.Moments {
			view := view.New(applied(all, before+int(m.Event)).Snapshot(), all.Stack, nil)
			got := browsed(b, func(l *pagemodel.Lifetimes, _ *pagemodel.Group) bool { return int(l.Alloc) <= i && i < int(l.Free) })
			require.Equal(t, viewed(view), got, "moment %d, after %d events", i, m.Event)
			checkTotals(t, b, i, view)
		}
		for i := range b.Parts {
			p := &b.Parts[i]
			if freedAt := p.PeakTime < b.First; freedAt || p.PeakMoment < 0 {
				require.Equal(t, -1, p.PeakMoment)
				require.True(t, freedAt)
			} else {
				require.Equal(t, p.Peak, p.Allocated[p.PeakMoment])
			}
			require.Equal(t, trace.End().Snapshot.Accounts[i].Peak, p.Peak)
		}
	}
}

// A trace without events has one moment, and nothing in it.
func TestBrowseEmpty(t *testing.T) {
	b := browse(t, &eventtest.Stream{}, nil)
	require.Len(t, b.Moments, 1)
	require.Empty(t, b.Lifetimes)
	var totals heap.Totals
	require.Equal(t, totals.Events, b.Events)
}

// applied is the live set after the first n events, without a trace.
func applied(s *eventtest.Stream, n int) *heap.Heap {
	h := heap.New()
	for i := range s.Events[:n] {
		e := s.Events[i]
		h.Apply(&e)
	}
	return h
}
