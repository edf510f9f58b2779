// SPDX-License-Identifier: Apache-2.0

package pagemodel_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/pagemodel"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// lies is a block or a segment, as a map of a device shows it.
type lies struct {
	part            int
	addr, size      uint64
	requested       uint64
	before, segment bool
}

// sortedLies orders what lies somewhere by part and address.
func sortedLies(list []lies) []lies {
	slices.SortFunc(list, func(x, y lies) int {
		return cmp.Or(cmp.Compare(x.part, y.part), cmp.Compare(x.addr, y.addr), cmp.Compare(x.size, y.size))
	})
	return list
}

// liveAt is what a heap has on the parts of a model.
func liveAt(h *heap.Heap, b *pagemodel.Model) (blocks, segments []lies) {
	for i := range b.Parts {
		p := &b.Parts[i]
		for live := range h.Blocks() {
			if live.PID == p.PID && live.Device == p.Device && live.Layer == event.LayerAllocator {
				blocks = append(blocks, lies{i, live.Addr, live.Size, live.Requested, live.Origin == heap.OriginBefore, false})
			}
		}
		for _, s := range h.Segments(p.PID, p.Device) {
			segments = append(segments, lies{i, s.Addr, s.Size, 0, false, true})
		}
	}
	return sortedLies(blocks), sortedLies(segments)
}

// placedAt is what a model places at a moment.
func placedAt(b *pagemodel.Model, at int) (blocks, segments []lies) {
	for _, l := range b.Places.Blocks {
		if int(l.Alloc) <= at && at < int(l.Free) {
			blocks = append(blocks, lies{l.Part, l.Addr, l.Size, l.Requested, l.Group < 0, false})
		}
	}
	for _, s := range b.Places.Segments {
		if int(s.Alloc) <= at && at < int(s.Free) {
			segments = append(segments, lies{s.Part, s.Addr, s.Size, 0, false, true})
		}
	}
	return sortedLies(blocks), sortedLies(segments)
}

// returning is a program whose segments are returned and obtained again at the same address, each with one block.
func returning() *eventtest.Stream {
	s := &eventtest.Stream{}
	total, reserved := uint64(0), uint64(0)
	add := func(kind event.Kind, layer event.Layer, addr, size uint64) {
		change := size
		if kind == event.KindFree {
			change = -size
		}
		e := event.Event{
			Time: uint64(1e6 * (len(s.Events) + 1)), PID: eventtest.PID, TID: 1, Kind: kind, Layer: layer,
			Device: event.Device{Type: event.DeviceCUDA},
			Addr:   addr, Size: size, Requested: event.Unknown, Stream: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
			Allocated: event.Unknown, Reserved: event.Unknown, Stack: 1,
		}
		if layer == event.LayerAllocator {
			total += change
			e.Requested, e.Allocated, e.Reserved = size-1, total, reserved
		} else {
			reserved += change
			e.Call = "cudaMalloc"
		}
		s.Events = append(s.Events, e)
	}
	for range 40 {
		for _, base := range []uint64{1 << 40, 1<<40 + 64<<20} {
			add(event.KindAlloc, event.LayerDevice, base, 20<<20)
			add(event.KindAlloc, event.LayerAllocator, base+2<<20, 12<<20)
		}
		for _, base := range []uint64{1 << 40, 1<<40 + 64<<20} {
			add(event.KindFree, event.LayerAllocator, base+2<<20, 12<<20)
			add(event.KindFree, event.LayerDevice, base, 20<<20)
		}
	}
	return s
}

// At each moment the map of a device has the blocks and segments of a live set that stopped there. Where blocks are
// too many, that holds for the moments that are never given up.
func TestPlaces(t *testing.T) {
	options := map[string]*pagemodel.Options{
		"all": nil, "every event": {Moments: 5000}, "few moments": {Moments: 60, Points: 100}, "few lives": {Lifetimes: 700},
		"few blocks":           {Placed: 200},
		"few blocks and lives": {Placed: 40, Lifetimes: 300},
	}
	for stream, s := range map[string]*eventtest.Stream{"random": eventtest.Random(17, 3000), "returned": returning()} {
		for name, o := range options {
			t.Run(stream+", "+name, func(t *testing.T) {
				b := browse(t, s, o)
				require.Equal(t, o != nil && o.Placed > 0 && (stream == "random" || o.Placed < 80), b.Places.Pinned)
				pinned, first := 0, firstSeen(s, b)
				for at, m := range b.Moments {
					kept := m.Kind&(pagemodel.MomentPeak|pagemodel.MomentOOM|pagemodel.MomentStart|pagemodel.MomentEnd|pagemodel.MomentAsked) != 0
					if kept {
						pinned++
					}
					blocks, segments := liveAt(applied(s, int(m.Event)), b)
					gotBlocks, gotSegments := placedAt(b, at)
					if kept || !b.Places.Pinned {
						require.Equal(t, blocks, gotBlocks, "moment %d, after %d events", at, m.Event)
					}
					if m.Event >= first {
						require.Equal(t, segments, gotSegments, "moment %d, after %d events", at, m.Event)
					}
				}
				require.NotZero(t, pinned)
				for _, p := range b.Places.Blocks {
					require.Less(t, p.Alloc, p.Free, "a block that no moment shows")
				}
			})
		}
	}
}

// firstSeen is after how many events all parts have an allocator: what they have reserved is known from there on.
func firstSeen(s *eventtest.Stream, b *pagemodel.Model) uint64 {
	seen := map[event.Device]bool{}
	for i, e := range s.Events {
		if e.Layer == event.LayerAllocator {
			seen[e.Device] = true
		}
		if len(seen) == len(b.Parts) {
			return uint64(i + 1)
		}
	}
	return uint64(len(s.Events))
}

// attached is a trace of a job that had three blocks before the first event: of two the holder is known. Of these
// the second is freed halfway; the third, of which nothing is known, later.
func attached(t *testing.T) *view.Trace {
	t.Helper()
	all := eventtest.NewJob()
	sizes := []uint64{3 << 20, 5 << 20, 7 << 20}
	var addrs []uint64
	o := event.Observation{PID: eventtest.PID, Device: event.Device{Type: event.DeviceCUDA}, From: 1, To: 2, Allocated: 15 << 20,
		Reserved: event.Unknown}
	for _, size := range sizes {
		addrs = append(addrs, all.Alloc(eventtest.Kept, size))
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: all.Next, Size: size, Requested: size - 1, Stream: 0})
	}
	before := heap.New()
	before.Watch(eventtest.PID)
	_, err := before.Reconcile(o)
	require.NoError(t, err)
	for i := range 3 {
		all.Events[i].Time = 1 // seen by the observation only
	}
	for _, free := range []int{1, 2} {
		for range 20 {
			all.Pass(eventtest.Input, eventtest.Forward)
		}
		all.Free(addrs[free])
	}
	all.Pass(eventtest.Input)
	trace, err := view.NewTrace(&later{Stream: &eventtest.Stream{Events: all.Events[3:], Stacks: all.Stacks}, state: before.State()}, nil)
	require.NoError(t, err)
	held := map[heap.BlockKey]view.HeldBlock{}
	for b := range before.Blocks() {
		require.Equal(t, heap.OriginBefore, b.Origin)
		switch b.Addr {
		case addrs[0]:
			held[b.Key()] = view.HeldBlock{Holder: "model.weight", Category: phases.Parameters, Bytes: b.Size}
		case addrs[1]:
			held[b.Key()] = view.HeldBlock{Holder: "cache", Bytes: b.Size}
		}
	}
	trace.SetHeld(held)
	return trace
}

// Blocks from before the first event are in the sums and on the map from the first moment on until they are freed,
// under what is known of their holders.
func TestBefore(t *testing.T) {
	for name, o := range map[string]*pagemodel.Options{"all": nil, "few": {Moments: 20, Lifetimes: 12}} {
		t.Run(name, func(t *testing.T) {
			b, err := pagemodel.New(attached(t), o)
			require.NoError(t, err)
			p := &b.Parts[0]
			require.ElementsMatch(t, []pagemodel.HeldBefore{
				{Holder: "model.weight", Category: phases.Parameters}, {Holder: "cache", Category: phases.NoCategory}, {Category: phases.NoCategory},
			}, b.Places.Before)
			for at, m := range b.Moments {
				bytes := map[string]uint64{}
				for _, f := range p.BeforeFor {
					bytes[f.Holder] += f.Bytes[at]
					require.Equal(t, f.Bytes[at] > 0, f.Blocks[at] == 1)
				}
				placed := map[string]uint64{}
				for _, l := range b.Places.Blocks {
					if l.Group < 0 && int(l.Alloc) <= at && at < int(l.Free) {
						placed[b.Places.Before[l.Before].Holder] += l.Size
						require.Equal(t, l.Size-1, l.Requested)
					}
				}
				want := map[string]uint64{"model.weight": 3 << 20}
				rest := uint64(0)
				if m.Event <= 80 { // 20 passes of two blocks, allocated and freed
					want["cache"] = 5 << 20
				}
				if m.Event <= 161 {
					rest = 7 << 20
				}
				require.EqualValues(t, want["cache"]+3<<20+rest, p.Before[at], "moment %d, after %d events", at, m.Event)
				require.Equal(t, want["model.weight"], bytes["model.weight"])
				require.Equal(t, want["cache"], bytes["cache"])
				require.Equal(t, rest, placed[""])
				require.Equal(t, want["cache"], placed["cache"])
				require.EqualValues(t, 3<<20, placed["model.weight"])
			}
		})
	}
}
