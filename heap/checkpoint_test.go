// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// copyOf is a heap made from another one's state.
func copyOf(t testing.TB, h *Heap) *Heap {
	t.Helper()
	out := New()
	require.NoError(t, out.SetState(h.State()))
	return out
}

func unwatchAll(h *Heap) {
	for pid := range h.processes {
		h.Unwatch(pid)
	}
}

func blocksOf(h *Heap) map[Block]int {
	out := map[Block]int{}
	for b := range h.Blocks() {
		out[b.unnumbered()]++
	}
	return out
}

// TestStateGoesOn: a heap that was made from a state goes on as the other one, whatever comes, calls in flight included.
func TestStateGoesOn(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 44))
		input := func() []byte {
			b := make([]byte, eventSize)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if rng.IntN(8) > 0 { // mostly few addresses, sizes and no odd values
				b[3], b[4], b[5], b[13], b[17] = byte(2+rng.IntN(5)), byte(1+rng.IntN(2)), byte(1+rng.IntN(8)), 0, byte(1+rng.IntN(8))
			}
			return b
		}
		h := New()
		for range rng.IntN(300) {
			applyFuzz(h, input())
		}
		for n := range uint64(rng.IntN(3)) {
			h.RecordLoss(uint32(n), event.Loss{From: n, To: n + 5, Events: seed})
		}
		unwatchAll(h)
		other := copyOf(t, h)
		for i := range 200 {
			require.Equal(t, h.Snapshot(), other.Snapshot(), "seed %d, after %d", seed, i)
			require.Equal(t, blocksOf(h), blocksOf(other), "seed %d, after %d", seed, i)
			checkAccounts(t, other)
			checkStructure(t, other)
			checkSums(t, other)
			b := input()
			if b[2] >= 250 { // the order in which a reset or a reconciliation frees objects is not defined
				continue
			}
			e := decodeEvent(b)
			h.Apply(e)
			other.Apply(e)
		}
	}
}

// TestStateOfPool: a state in the middle of a pool's work, with segments that are known from the allocator state only.
func TestStateOfPool(t *testing.T) {
	for seed := range uint64(10) {
		p, h := newPool(seed, seed%2 == 0), New()
		for range 300 {
			p.step() // before the attach
		}
		p.send = h.Apply
		p.reconcile(t, h, 20)
		for range 100 {
			p.step()
		}
		other := copyOf(t, h)
		require.Equal(t, h.Snapshot(), other.Snapshot())
		p.send = func(e *event.Event) {
			h.Apply(e)
			other.Apply(e)
		}
		for range 300 {
			p.step()
		}
		p.compare(t, other, seed)
		require.Equal(t, h.Snapshot(), other.Snapshot())
		require.Equal(t, blocksOf(h), blocksOf(other))
	}
}

func TestStacks(t *testing.T) {
	h := New()
	for _, id := range []event.StackID{5, 0, 7, 5} {
		h.Apply(&event.Event{Time: 1, Kind: event.KindAlloc, Layer: event.LayerHost, Addr: uint64(id+1) << 12, Size: 5,
			Requested: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown, Stack: id})
	}
	require.ElementsMatch(t, []event.StackID{5, 7}, h.Stacks())
}

// TestStateRefuses: bytes that are no state are an error.
func TestStateRefuses(t *testing.T) {
	state := pooled(t, true).State()
	for n := range state {
		require.ErrorIs(t, New().SetState(state[:n]), ErrState, "%d bytes", n)
	}
	require.ErrorIs(t, New().SetState(append(slices.Clone(state), 0)), ErrState)
	require.ErrorContains(t, New().SetState([]byte{stateVersion + 1}), "want 1 to 4")
}

// pooled is a heap with what a pool came to.
func pooled(t testing.TB, pages bool) *Heap {
	t.Helper()
	p, h := newPool(3, pages), New()
	for range 30 {
		p.step()
	}
	p.send = h.Apply
	h.Watch(pid)
	_, err := h.Reconcile(p.observe(0))
	require.NoError(t, err)
	h.Unwatch(pid)
	for range 100 {
		p.step()
	}
	return h
}

func FuzzState(f *testing.F) {
	for _, pages := range []bool{false, true} {
		f.Add(pooled(f, pages).State(), make([]byte, eventSize))
	}
	f.Add(New().State(), make([]byte, eventSize))
	f.Fuzz(func(t *testing.T, state, b []byte) {
		h := New()
		if err := h.SetState(state); err != nil {
			require.ErrorIs(t, err, ErrState)
			return
		}
		for len(b) >= eventSize {
			applyFuzz(h, b)
			b = b[eventSize:]
		}
		h.Snapshot()
		again := New()
		require.NoError(t, again.SetState(h.State()))
	})
}

// tape is a recording of events with one mark behind each batch.
type tape struct {
	batches [][]event.Event
	marks   []event.Annotation
	err     error
	at      int
}

func (r *tape) Read(buf []event.Event) ([]event.Event, error) {
	if r.at == len(r.batches) {
		return buf, r.err
	}
	r.at++
	return append(buf, r.batches[r.at-1]...), nil
}

func (r *tape) Annotations() []event.Annotation {
	if r.at == 0 || r.at > len(r.marks) {
		return nil
	}
	return r.marks[r.at-1 : r.at]
}

func (r *tape) Stack(event.StackID) *event.Stack { return nil }

// TestReplay: replaying events and annotations in their order leads to an equal heap.
func TestReplay(t *testing.T) {
	h := New()
	h.FromStart(pid)
	alloc := torchEvent(64*mib, 512, 512)
	h.Watch(pid)
	h.Apply(alloc)
	o := withSegments(h, segmentAt(64*mib, mib, false))
	o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: 64 * mib, Size: 512, Requested: 500})
	o.From, o.To, o.Allocated = alloc.Time+1, alloc.Time+2, 512
	_, err := h.Reconcile(o)
	require.NoError(t, err)
	h.Unwatch(pid)
	h.SetBaseline(pid, event.Device{Type: event.DeviceCUDA, Index: 3}, 7, 9)

	marks := []event.Annotation{
		{Kind: event.AnnotationFromStart, PID: pid}, {Kind: event.AnnotationWatch, PID: pid},
		{Kind: event.AnnotationObserved, PID: pid, Observation: &o},
		{Kind: event.AnnotationUnwatch, PID: pid}, {Kind: event.AnnotationBaseline, PID: pid,
			Device: event.Device{Type: event.DeviceCUDA, Index: 3}, Allocated: 7, Reserved: 9},
		{Kind: 99},
	}
	got := New()
	require.NoError(t, got.Replay(&tape{batches: [][]event.Event{nil, nil, {*alloc}, nil, nil, nil}, marks: marks, err: io.EOF}))
	require.Equal(t, h.Snapshot(), got.Snapshot())
	require.True(t, got.processes[pid].fromStart)
	require.Nil(t, got.processes[pid].watch)

	late := New()
	require.NoError(t, late.Replay(&tape{batches: [][]event.Event{nil},
		marks: []event.Annotation{{Kind: event.AnnotationCheckpoint, State: h.State()}}, err: io.EOF}))
	require.Equal(t, h.Snapshot(), late.Snapshot())

	cut := errors.New("cut off")
	require.ErrorIs(t, New().Replay(&tape{err: cut}), cut)
	require.ErrorIs(t, New().Replay(&tape{batches: [][]event.Event{nil}, marks: marks[2:3]}), ErrNotWatched)
}

// TestStateOfFullLogs: a state may have as many gaps and loss intervals as a heap keeps.
func TestStateOfFullLogs(t *testing.T) {
	h := New()
	total := uint64(0)
	for i := range uint64(maxGaps + 5) {
		total += 512 + i
		apply(h, torchEvent(4096+i*512, 512, total))
	}
	for i := range uint64(maxLossIntervals + 5) {
		h.RecordLoss(pid, event.Loss{From: i * 60e9, To: i*60e9 + 1, Events: 1})
	}
	require.Len(t, h.Totals().LossIntervals, maxLossIntervals)
	require.Equal(t, h.Snapshot(), copyOf(t, h).Snapshot())
}

// TestStateOfUndo: a free that fails after the state was kept is undone in what was made of it, for its own thread.
func TestStateOfUndo(t *testing.T) {
	h := New()
	of := func(tid uint32, e *event.Event) *event.Event {
		e.TID = tid
		return e
	}
	for tid := uint32(1); tid <= 3; tid++ {
		at := uint64(tid) * mib
		apply(h, deviceEvent(event.KindAlloc, at, 4096), of(tid, deviceEvent(event.KindFree, at, event.Unknown)))
	}
	again := copyOf(t, h)
	require.Zero(t, again.Totals().Drivers[0].Live)
	for tid := uint32(1); tid <= 3; tid++ {
		apply(again, of(tid, deviceEvent(event.KindFreeFailed, uint64(tid)*mib, event.Unknown)))
		require.EqualValues(t, tid, again.Totals().Drivers[0].Live.Objects)
	}
	require.Zero(t, again.Totals().Failures)
}
