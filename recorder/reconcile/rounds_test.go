// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

const second = uint64(time.Second)

var (
	cuda0          = event.Device{Type: event.DeviceCUDA}
	errNoStateHere = fmt.Errorf("no PyTorch here: %w", ErrNoState)
)

// alloc and free are events of the caching allocator.
func alloc(at, addr, size, total uint64) event.Event {
	return event.Event{
		Time: at, PID: 7, TID: 7, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: cuda0, Addr: addr, Size: size,
		Requested: size, Stack: 1, Allocated: total, Reserved: 1 << 30, Handle: event.Unknown, Context: event.Unknown,
	}
}

func free(at, addr, size, total uint64) event.Event {
	e := alloc(at, addr, size, total)
	e.Kind, e.Stack = event.KindFree, 0
	return e
}

// madeTarget is a process whose allocator's state a test writes.
type madeTarget struct {
	ended bool
	lost  uint64
	shown int
	state func(ctx context.Context) (*State, error)
}

func (t *madeTarget) PID() int                                           { return 7 }
func (t *madeTarget) Alive() bool                                        { return !t.ended }
func (t *madeTarget) Lost() uint64                                       { return t.lost }
func (t *madeTarget) Allocators() int                                    { return t.shown }
func (t *madeTarget) AllocatorState(ctx context.Context) (*State, error) { return t.state(ctx) }

// noted keeps what an observer gets.
type noted struct{ notices, warnings []string }

func (n *noted) Compared(o *Outcome) {
	text := fmt.Sprintf("%d blocks compared", o.Blocks)
	switch {
	case o.Err != nil:
		text = o.Err.Error()
	case o.Corrected != nil:
		text = "corrected: " + Difference(o.Corrected)
	}
	n.notices = append(n.notices, text)
}

func (n *noted) Warning(err error) { n.warnings = append(n.warnings, err.Error()) }

// rounds drives a reconciler on a clock of its own, and notes when the allocator's state was read.
type rounds struct {
	*Reconciler
	t      *testing.T
	heap   *heap.Heap
	target *madeTarget
	seen   *noted
	start  time.Time
	reads  []time.Duration
	// answer is what a reading gives.
	answer func(ctx context.Context) (*State, error)
}

// newRounds is about a heap in which two blocks are live.
func newRounds(t *testing.T) *rounds {
	return roundsOf(t, []event.Event{alloc(second, 0x1000, 512, 512), alloc(2*second, 0x2000, 1024, 1536)})
}

// roundsOf is about a heap to which some events are applied.
func roundsOf(t *testing.T, events []event.Event) *rounds {
	r := &rounds{t: t, heap: heap.New(), seen: &noted{}, start: time.Now()}
	r.target = &madeTarget{state: func(ctx context.Context) (*State, error) {
		r.reads = append(r.reads, time.Since(r.start))
		return r.answer(ctx)
	}}
	r.heap.ApplyAll(events)
	r.Reconciler = New(t.Context(), r.heap, r.target, r.seen, &Drained{To: 2 * second})
	return r
}

// run steps every ten milliseconds for a time.
func (r *rounds) run(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		r.Step()
		synctest.Wait()
	}
}

// seconds is when the state was read, whole seconds.
func (r *rounds) seconds() []int {
	var out []int
	for _, d := range r.reads {
		out = append(out, int(d.Seconds()))
	}
	return out
}

// stateOf is an allocator state of some blocks at a time.
func stateOf(at uint64, blocks ...event.ObservedBlock) func(context.Context) (*State, error) {
	sum := uint64(0)
	for _, b := range blocks {
		sum += b.Size
	}
	return func(context.Context) (*State, error) {
		return &State{Until: at + 2, Devices: []event.Observation{{
			PID: 7, Device: cuda0, From: at, To: at + 1, Blocks: blocks, Allocated: sum, Reserved: 1 << 30,
			Segments: []event.ObservedSegment{{Addr: 0x1000, Size: 1 << 30}},
		}}}, nil
	}
}

var (
	block1 = event.ObservedBlock{Addr: 0x1000, Size: 512, Requested: 512}
	block2 = event.ObservedBlock{Addr: 0x2000, Size: 1024, Requested: 1024}
	block3 = event.ObservedBlock{Addr: 0x3000, Size: 2048, Requested: 2000}
)

// TestRounds: the state is compared at once, when all events of its time are there, and then each minute.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = stateOf(3*second, block1, block2)
		require.False(t, r.Looked())
		r.run(time.Second)
		require.Nil(t, r.Report(), "events of the reading's time may still come")
		require.False(t, r.Looked())
		r.drained.To = 3*second + 2
		r.run(time.Second)
		require.Nil(t, r.Report())
		r.drained.To++
		r.run(time.Second)
		require.Equal(t, &figures.Checks{Made: 1}, r.Report())
		require.True(t, r.Looked())
		require.Empty(t, r.seen.notices, "nobody asked")
		r.answer = stateOf(3*second, block1, block2)
		r.run(2*time.Minute + 30*time.Second)
		require.Equal(t, []int{0, 62, 122}, r.seconds())
		r.Ask()
		r.run(time.Second)
		require.Equal(t, []string{"2 blocks compared"}, r.seen.notices)
		require.Equal(t, &figures.Checks{Made: 4}, r.Report())
		require.Empty(t, r.seen.warnings)
	})
}

// TestRoundsCount: blocks that were there before are compared too, of each device once.
func TestRoundsCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := block3.Size
		r := roundsOf(t, []event.Event{alloc(second, 0x1000, 512, before+512), alloc(2*second, 0x2000, 1024, before+1536)})
		r.drained.To = 100 * second
		r.answer = stateOf(3*second, block1, block2, block3)
		r.Ask()
		r.run(time.Second)
		require.Equal(t, []string{"3 blocks compared"}, r.seen.notices)
		require.Equal(t, before, r.heap.Totals().Accounts[0].Before)
	})
}

// TestRoundsAtTheEnd: a recording that is about to end waits for a comparison that begins then.
func TestRoundsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = stateOf(3*second, block1, block2)
		r.drained.To = 100 * second
		r.run(10 * time.Second)
		require.Len(t, r.reads, 1)
		require.False(t, r.Over())
		require.True(t, r.Idle())
		r.Finish()
		require.False(t, r.Over())
		r.run(time.Second)
		require.True(t, r.Over())
		require.Len(t, r.reads, 2)
	})
}

// TestRoundsAfterLosses: a second after the last loss the state is compared, and what was lost is in the live set.
func TestRoundsAfterLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = stateOf(3*second, block1, block2)
		r.drained.To = 100 * second
		r.run(10 * time.Second)
		require.Equal(t, []int{0}, r.seconds())
		require.False(t, r.Lossy())
		r.answer = stateOf(5*second, block1, block3)
		for i := range 5 { // a loss in each second
			r.target.lost = uint64(i + 1)
			r.run(time.Second)
		}
		require.Equal(t, []int{0}, r.seconds(), "it is not over")
		require.True(t, r.Lossy())
		r.run(3 * time.Second)
		require.Len(t, r.reads, 2)
		require.InDelta(t, 16, r.reads[1].Seconds(), 1.1)
		require.Equal(t, &figures.Checks{Made: 2, Differences: 1}, r.Report())
		require.Equal(t, []string{
			"corrected: blocks that it lacked: 1 (2.0 KiB), blocks that were freed: 1 (1.0 KiB), the allocator's total without an event: +1024 B",
		}, r.seen.notices)
		require.Empty(t, r.seen.warnings)
		require.EqualValues(t, 2560, r.heap.Totals().Accounts[0].Allocated)
		require.False(t, r.Lossy())
		r.run(10 * time.Second)
		require.Len(t, r.reads, 2, "those losses were dealt with")
	})
}

// TestRoundsWithoutLosses: a difference that no loss explains is a bug, and is said.
func TestRoundsWithoutLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = stateOf(3*second, block1, block2)
		r.drained.To = 100 * second
		r.run(time.Second)
		r.answer = stateOf(5*second, block1)
		r.run(time.Minute + time.Second)
		require.Equal(t, &figures.Checks{Made: 2, Differences: 1}, r.Report())
		require.Len(t, r.seen.warnings, 1)
		require.Contains(t, r.seen.warnings[0], "although no event was lost: blocks that were freed: 1 (1.0 KiB)")
		require.Empty(t, r.seen.notices)
	})
}

// TestRoundsFail: a state that cannot be read is tried for five seconds, and again a minute later; losses do not have it tried sooner
// than in five seconds.
func TestRoundsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = func(context.Context) (*State, error) { return nil, errors.New("it moves") }
		r.drained.To = 100 * second
		r.run(6 * time.Second)
		require.InDelta(t, 5, r.reads[len(r.reads)-1].Seconds(), 0.1)
		require.InDelta(t, 125, len(r.reads), 5, "each some 40 ms, of which half is a pause")
		require.Equal(t, &figures.Checks{Failed: 1}, r.Report())
		require.Empty(t, r.seen.notices, "nobody asked")
		n := len(r.reads)
		r.target.lost = 3
		r.run(3 * time.Second)
		require.Len(t, r.reads, n)
		r.run(2 * time.Second)
		require.Greater(t, len(r.reads), n)
		r.run(10 * time.Second)
		r.Ask()
		r.run(12 * time.Second)
		require.Equal(t, []string{"it moves"}, r.seen.notices)
	})
}

// TestRoundsOnceMore: what was read at a moment of which the heap does not know enough is read again, and that is all.
func TestRoundsOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = func(ctx context.Context) (*State, error) {
			state, err := stateOf(3*second, block1, block2)(ctx)
			if len(r.reads) == 1 {
				state.Devices[0].To = state.Devices[0].From - 1
			}
			return state, err
		}
		r.drained.To = 100 * second
		r.run(10 * time.Second)
		require.Len(t, r.reads, 2)
		require.Equal(t, &figures.Checks{Made: 1}, r.Report())
	})
}

// TestRoundsWithoutState: where there is no allocator it is looked for less and less often, and once more at the end.
func TestRoundsWithoutState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = func(context.Context) (*State, error) { return nil, errNoStateHere }
		r.run(200 * time.Second)
		require.Equal(t, []int{0, 5, 15, 35, 75, 135, 195}, r.seconds())
		require.True(t, r.Looked())
		require.Nil(t, r.Report())
		require.False(t, r.Over())
		r.Finish()
		r.run(time.Second)
		require.True(t, r.Over())
		require.Len(t, r.reads, 8)
		r.run(10 * time.Minute)
		require.Len(t, r.reads, 8, "that was the last")
	})
}

// TestRoundsShown: when events show another allocator, the state is read at once; one that cannot be read is a warning, once.
func TestRoundsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = func(context.Context) (*State, error) { return nil, errNoStateHere }
		r.drained.To = 100 * second
		r.run(2 * time.Second)
		require.Equal(t, []int{0}, r.seconds())
		r.target.shown = 1
		r.answer = func(context.Context) (*State, error) { return &State{Unread: errors.New("unknown layout")}, nil }
		r.run(15 * time.Second)
		require.Equal(t, []int{0, 2, 7}, r.seconds(), "no state, so it is looked for less and less often")
		require.Equal(t, []string{"blocks from before the attach are unknown: unknown layout"}, r.seen.warnings)
		require.Nil(t, r.Report())
		r.target.shown = 2
		r.answer = stateOf(3*second, block1, block2)
		r.run(time.Second)
		require.Len(t, r.reads, 4)
		require.Equal(t, &figures.Checks{Made: 1}, r.Report())
	})
}

// TestRoundsOfEnded: of a process that has ended there is no state either, whatever went wrong.
func TestRoundsOfEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.target.ended = true
		r.answer = func(context.Context) (*State, error) { return nil, errors.New("no such process") }
		r.Finish()
		r.run(time.Second)
		require.True(t, r.Over())
		require.Len(t, r.reads, 1)
		require.Nil(t, r.Report())
	})
}

// TestRoundsHang: a reading has ten seconds, and is canceled with the recording.
func TestRoundsHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		ended := []time.Duration{}
		r.answer = func(ctx context.Context) (*State, error) {
			<-ctx.Done()
			ended = append(ended, time.Since(r.start))
			return nil, context.Cause(ctx)
		}
		r.Ask()
		r.run(11 * time.Second)
		require.Equal(t, []time.Duration{readTimeout}, ended)
		require.Len(t, r.seen.notices, 1)
		require.Contains(t, r.seen.notices[0], "it took longer than 10s")
		r.Ask()
		r.run(time.Second)
		r.Stop()
		synctest.Wait()
		require.Len(t, ended, 2)
		require.True(t, r.Over())
		require.True(t, r.Looked())
	})
}

// TestRoundsPatience: of a process with more blocks than can be read in ten seconds the next reading has twice as long, and comes soon.
func TestRoundsPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		var took []time.Duration
		r.answer = func(ctx context.Context) (*State, error) {
			began := time.Now()
			select {
			case <-ctx.Done():
				took = append(took, time.Since(began))
				return nil, context.Cause(ctx)
			case <-time.After(35 * time.Second):
				return &State{}, nil
			}
		}
		r.run(10*time.Second + 20*time.Second + 35*time.Second + 3*checkSoon)
		require.Equal(t, []time.Duration{readTimeout, 2 * readTimeout}, took)
		require.Equal(t, &figures.Checks{Made: 1, Failed: 2}, r.Report())
		took = nil
		r.answer = func(ctx context.Context) (*State, error) {
			began := time.Now()
			<-ctx.Done()
			took = append(took, time.Since(began))
			return nil, context.Cause(ctx)
		}
		r.run(20 * time.Minute)
		require.Equal(t, maxReadTimeout, took[len(took)-1], "there is an end to it")
		require.Less(t, len(took), 9, "then it is seldom")
		r.Stop()
	})
}

// TestRoundsWatch: while a state is read and compared the heap notes the addresses that events name, and not after that: a block that
// events name meanwhile is not judged.
func TestRoundsWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.answer = stateOf(5*second, block1, block2) // as it was before the event that follows
		r.run(time.Second)
		r.heap.ApplyAll([]event.Event{free(5*second+1, block2.Addr, block2.Size, block1.Size)})
		r.drained.To = 6 * second
		r.run(time.Second)
		require.Equal(t, &figures.Checks{Made: 1}, r.Report(), "its block is as the event says")
		require.EqualValues(t, block1.Size, r.heap.Totals().Accounts[0].Live.Bytes)
		_, err := r.heap.Reconcile(event.Observation{PID: 7, Device: cuda0, From: 7 * second, To: 8 * second, Allocated: event.Unknown,
			Reserved: event.Unknown})
		require.Error(t, err, "nothing is noted any more")
	})
}

// TestRoundsOfSegments: segments that do not add up are left open for a second, and looked at again after five, five times.
func TestRoundsOfSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRounds(t)
		r.drained.To = 100 * second
		r.answer = func(ctx context.Context) (*State, error) {
			s, err := stateOf(3*second, block1, block2)(ctx)
			s.Devices[0].Segments = nil
			return s, err
		}
		r.run(100 * time.Second)
		var begins []int
		for _, at := range r.seconds() {
			if n := len(begins); n == 0 || at > begins[n-1]+2 {
				begins = append(begins, at)
			}
		}
		require.Equal(t, []int{0, 6, 12, 18, 24, 85}, begins)
		require.EqualValues(t, 6, r.Report().Made)
		require.Empty(t, r.seen.warnings)
	})
}
