// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// followedBlock is what a follower knows of a block from its allocation on.
type followedBlock struct {
	key     BlockKey
	size    uint64
	stack   event.StackID
	segment bool
	origin  Origin
}

func tell(b *Block) followedBlock {
	return followedBlock{b.Key(), b.Size, b.Stack, b.Segment, b.Origin}
}

// followed keeps the blocks that are live by the follower's calls.
type followed struct {
	live  map[followedBlock]int
	wrong []Block // that were freed or moved, but were not live
}

func follow(h *Heap) *followed {
	f := &followed{live: map[followedBlock]int{}}
	h.Follow(f)
	return f
}

func (f *followed) Allocated(b *Block) { f.live[tell(b)]++ }

func (f *followed) Freed(b *Block, _ uint64) {
	if f.live[tell(b)]--; f.live[tell(b)] < 0 {
		f.wrong = append(f.wrong, *b)
	}
	if f.live[tell(b)] == 0 {
		delete(f.live, tell(b))
	}
}

func (f *followed) Moved(from, to *Block) {
	f.Freed(from, 0)
	f.Allocated(to)
}

// check compares the followed blocks with the live set.
func (f *followed) check(t *testing.T, h *Heap, step int) {
	t.Helper()
	live := map[followedBlock]int{}
	for b := range h.Blocks() {
		live[tell(&b)]++
	}
	require.Empty(t, f.wrong, "step %d", step)
	require.Equal(t, live, f.live, "step %d", step)
}

// A follower sees exactly the live set, with failed frees, mappings, contexts and segments.
func TestFollower(t *testing.T) {
	for seed := range uint64(20) {
		truth, h := newTruth(seed), New()
		f := follow(h)
		for i := range 400 {
			if e := truth.step(); e != nil {
				apply(h, e)
			}
			if i%7 == 0 {
				apply(h, truth.torch()...)
			}
			f.check(t, h, i)
		}
	}
}

// A follower sees the blocks that a checkpoint or a check adds, and those that a check retires.
func TestFollowerOfStateAndReconcile(t *testing.T) {
	for seed := range uint64(10) {
		p, h := newPool(seed, seed%2 == 0), New()
		for range 200 {
			p.step()
		}
		f := follow(h)
		p.send = func(e *event.Event) {
			if p.rng.IntN(100) >= 5 {
				h.Apply(e)
			}
		}
		p.reconcile(t, h, 20)
		f.check(t, h, 0)
		require.NotEmpty(t, f.live)
		for range 200 {
			p.step()
		}
		p.reconcile(t, h, 20)
		f.check(t, h, 1)

		other := New()
		g := follow(other)
		require.NoError(t, other.SetState(h.State()))
		g.check(t, other, 2)
		require.Equal(t, f.live, g.live)
	}
}

// The copies of accounts are those of Totals.
func TestAccountAlone(t *testing.T) {
	h := New()
	rng := rand.New(rand.NewPCG(1, 1))
	oracle := &allocator{rng, map[uint64]uint64{}, 0}
	for range 100 {
		apply(h, oracle.step())
	}
	apply(h, deviceEvent(event.KindAlloc, 0x100000, 1<<21))
	want := h.Totals()
	a, ok := h.Account(want.Accounts[0].PID, want.Accounts[0].Device)
	require.True(t, ok)
	require.Equal(t, want.Accounts[0], *a)
	d, ok := h.Driver(want.Drivers[0].PID, want.Drivers[0].Layer, want.Drivers[0].Device)
	require.True(t, ok)
	require.Equal(t, want.Drivers[0], *d)
	_, ok = h.Account(99, a.Device)
	require.False(t, ok)
	_, ok = h.Driver(99, event.LayerDevice, a.Device)
	require.False(t, ok)
}
