// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// trader makes the events of a caching allocator on two devices.
type trader struct {
	rng   *rand.Rand
	time  uint64
	total [2]uint64
	live  [2][]event.ObservedBlock
	next  uint64
}

func (p *trader) step() event.Event {
	d := p.rng.IntN(2)
	p.time += 1 + p.rng.Uint64N(1e6)
	e := event.Event{
		Time: p.time, PID: 7, TID: 8, Kind: event.KindAlloc, Layer: event.LayerAllocator,
		Device: event.Device{Type: event.DeviceCUDA, Index: int8(d)},
		Handle: event.Unknown, Context: event.Unknown, Requested: event.Unknown, Reserved: 1 << 40,
	}
	if n := len(p.live[d]); n > 2000 || n > 0 && p.rng.IntN(2) == 0 {
		i := p.rng.IntN(n)
		b := p.live[d][i]
		p.live[d][i] = p.live[d][n-1]
		p.live[d] = p.live[d][:n-1]
		p.total[d] -= b.Size
		e.Kind, e.Addr, e.Size = event.KindFree, b.Addr, b.Size
	} else {
		p.next++
		b := event.ObservedBlock{Addr: p.next << 12, Size: 512 * (1 + p.rng.Uint64N(8)), Requested: event.Unknown}
		p.live[d] = append(p.live[d], b)
		p.total[d] += b.Size
		e.Addr, e.Size, e.Stack = b.Addr, b.Size, event.StackID(1+p.rng.Uint64N(500))
	}
	e.Allocated = p.total[d]
	return e
}

// observe reads the allocator state of a device, at one moment.
func (p *trader) observe(d int) event.Observation {
	p.time += 2
	return event.Observation{
		PID: 7, Device: event.Device{Type: event.DeviceCUDA, Index: int8(d)}, From: p.time - 1, To: p.time, Allocated: p.total[d],
		Reserved: event.Unknown, Blocks: append([]event.ObservedBlock(nil), p.live[d]...),
	}
}

// TestRecordedHeap: a recording replays to the live set of its session, also when it is bounded, events were lost, and the
// allocator state puts that right.
func TestRecordedHeap(t *testing.T) {
	for name, size := range map[string]int64{"whole": 0, "bounded": recording.MinSize} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.gputrace")
			stack := func(id event.StackID) *event.Stack { return &event.Stack{ID: id, Frames: []event.Frame{}} }
			w, err := recording.Create(path, &recording.Info{PID: 7}, stack, &recording.Options{MaxSize: size})
			require.NoError(t, err)
			l := &recordedHeap{Heap: heap.New(), writer: w, warn: func(err error) { require.NoError(t, err) }}
			p := &trader{rng: rand.New(rand.NewPCG(1, 2)), time: 1e9}
			for range 100 {
				p.step() // before the attach
			}
			trims, last, rounds := 0, int64(0), 0
			for ; trims < 2 && rounds < 2000 || rounds%9 == 6; rounds++ { // what round 5 lost is put right in round 6
				var batch []event.Event
				for range 1 + p.rng.IntN(2000) {
					if e := p.step(); rounds%9 != 5 || p.rng.IntN(10) > 0 { // or it is lost
						batch = append(batch, e)
					}
				}
				l.take(batch)
				if rounds%9 == 6 {
					l.Watch(7)
					r, err := l.Reconcile(p.observe(0))
					require.NoError(t, err)
					require.Equal(t, rounds == 6, r.First)
					l.Unwatch(7)
				}
				l.checkpoint()
				if w.Size() < last {
					trims++
				}
				if last = w.Size(); size == 0 && rounds > 100 {
					break
				}
			}
			l.SetBaseline(7, event.Device{Type: event.DeviceCUDA, Index: 5}, 1024, 4096)
			require.NoError(t, w.Close(&recording.End{}))
			require.Equal(t, size > 0, trims > 0, "%d rounds", rounds)

			r, err := recording.Open(path)
			require.NoError(t, err)
			defer r.Close()
			h := heap.New()
			require.NoError(t, h.Replay(r))
			require.Equal(t, size > 0, r.First().Number > 0)
			require.Equal(t, l.Snapshot(), h.Snapshot())
			for d := range p.total {
				require.Equal(t, p.total[d], h.Totals().Accounts[d].Allocated)
			}
		})
	}
}

// TestRecordedHeapGoesOn: without a recording, and after it failed, the live set is what it would be.
func TestRecordedHeapGoesOn(t *testing.T) {
	p := &trader{rng: rand.New(rand.NewPCG(3, 4))}
	without := &recordedHeap{Heap: heap.New()}
	var warnings []error
	path := filepath.Join(t.TempDir(), "x.gputrace")
	w, err := recording.Create(path, &recording.Info{}, nil, &recording.Options{MaxSize: recording.MinSize})
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(path+".tmp", 0o755)) // where the bounded file would be copied to
	failing := &recordedHeap{Heap: heap.New(), writer: w, warn: func(err error) { warnings = append(warnings, err) }}
	for i := 0; len(warnings) < 3 && i < 3000; i++ {
		var batch []event.Event
		for range 1000 {
			batch = append(batch, p.step())
		}
		for _, l := range []*recordedHeap{without, failing} {
			l.take(batch)
			l.checkpoint()
		}
	}
	require.Len(t, warnings, 3)
	require.Equal(t, warnings[0].Error(), warnings[2].Error(), "the screen shows it once")
	require.Equal(t, without.Snapshot(), failing.Snapshot())
	end := &recording.End{}
	require.True(t, errors.Is(w.Close(end), os.ErrExist))
	require.EqualValues(t, 2000, end.NotWritten-end.NotWritten%1000)
}
