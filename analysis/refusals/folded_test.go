// SPDX-License-Identifier: Apache-2.0

package refusals

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// made is a program with a caching allocator, an extension, and threads of the backward pass.
var made = &Program{
	Cache: func(uint32) bool { return true },
	Stack: func(id event.StackID) *event.Stack {
		return eventtest.Stack(map[event.StackID]string{
			stackSegment: "libcudart.so!cudaMalloc libc10_cuda.so!? /app/train.py:1:main",
			stackOther:   "libcudart.so!cudaMalloc libfoo.so!foo /app/train.py:1:main",
			stackNative:  "libtorch.so!torch::autograd::Engine",
		}[id])
	},
}

// counted is how many requests failed, and how many were satisfied in the end.
func counted(l *Log) (failed, recovered int) {
	list, recovered := l.Failed(made)
	failed = len(list)
	for i := range list {
		failed += list[i].Skipped
	}
	return failed, recovered
}

// TestFoldedCounts: what is folded changes no count, whatever the events are, nor what those that wait turn out to be.
func TestFoldedCounts(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var whole, folded Log
		var time uint64
		see := func(e event.Event) {
			time++
			e.Time, e.PID = time, 1
			for _, l := range []*Log{&whole, &folded} {
				copied := e
				l.See(&copied)
			}
		}
		random := func(refusals bool) {
			tid := uint32(1 + rng.IntN(4))
			kind := rng.IntN(6)
			if !refusals {
				kind = 3 + rng.IntN(3)
			}
			switch kind {
			case 0:
				see(on(tid, refuse(event.LayerDevice, stackSegment)))
			case 1:
				see(on(tid, refuse(event.LayerDevice, stackOther)))
			case 2:
				see(on(tid, refuse(event.LayerAllocator, []event.StackID{stackOther, stackNative}[rng.IntN(2)])))
			case 3:
				see(on(tid, give(event.LayerDevice, stackSegment)))
			case 4:
				see(on(tid, give(event.LayerDevice, stackOther)))
			default:
				see(on(tid, give(event.LayerAllocator, stackOther)))
			}
		}
		for len(whole.list) < keptRefusals {
			random(true)
		}
		failed, recovered := counted(&whole)
		folded.fold()
		require.LessOrEqual(t, len(folded.list), keptRefusals*3/4)
		require.GreaterOrEqual(t, len(folded.list), keptRefusals/2)
		gotFailed, gotRecovered := counted(&folded)
		require.Equal(t, []int{failed, recovered}, []int{gotFailed, gotRecovered}, "seed %d", seed)
		for range 50 {
			random(false)
		}
		failed, recovered = counted(&whole)
		gotFailed, gotRecovered = counted(&folded)
		require.Equal(t, []int{failed, recovered}, []int{gotFailed, gotRecovered}, "seed %d, when all was settled", seed)
		for _, w := range folded.all() {
			for _, indexes := range w {
				for _, i := range indexes {
					require.Less(t, i, len(folded.list))
				}
			}
		}
	}
}

// TestKeptRefusals: no more refusals are kept than the bound, however many there are, and the last ones are.
func TestKeptRefusals(t *testing.T) {
	for _, layer := range []event.Layer{event.LayerAllocator, event.LayerDevice} {
		var l Log
		for i := range 3 * keptRefusals {
			e := on(1, refuse(layer, stackOther))
			e.Time, e.PID = uint64(i+1), 1
			l.See(&e)
			require.LessOrEqual(t, len(l.list), keptRefusals)
			require.Equal(t, e.Time, l.list[len(l.list)-1].event.Time)
		}
		require.EqualValues(t, 1, l.list[0].event.Time)
		require.EqualValues(t, keptRefusals/2, l.list[keptRefusals/2-1].event.Time, "all of the first half")
		failed, _ := counted(&l)
		require.Equal(t, 3*keptRefusals, failed)
	}
}

// TestOthersGoOn: when a thread allocates, the reports of the other threads of its process are known to be survived, and no others.
func TestOthersGoOn(t *testing.T) {
	var l Log
	see := func(pid, tid uint32, e event.Event) {
		e.PID, e.TID = pid, tid
		l.See(&e)
	}
	report, got := refuse(event.LayerAllocator, stackNative), give(event.LayerAllocator, stackOther)
	see(1, 1, report)
	see(1, 2, report)
	see(2, 1, report)
	see(1, 2, give(event.LayerDevice, stackOther)) // memory of the device says nothing of PyTorch's blocks
	other := func() []bool { return []bool{l.list[0].other, l.list[1].other, l.list[2].other} }
	require.Equal(t, []bool{false, false, false}, other())
	see(1, 2, got)
	require.Equal(t, []bool{true, false, false}, other())
	require.Len(t, l.open, 2)
	see(1, 3, got)
	require.Equal(t, []bool{true, true, false}, other())
	see(2, 1, got)
	require.Equal(t, []bool{true, true, false}, other(), "its own")
}
