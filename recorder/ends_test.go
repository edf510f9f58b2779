// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/recording"
)

// TestBefore: what was allocated before is by the first event where there was one, else by the allocator itself.
func TestBefore(t *testing.T) {
	p := &Process{target: &madeTarget{pid: 7}, before: []Totals{{0, 100, 1000}, {1, 200, 2000}, {2, 300, 3000}}, heap: newRecordedHeap(nil)}
	e := alloc(7, second, 0x1000, 512, 612)
	e.Device.Index = 1
	p.heap.take([]event.Event{e})
	before, err := p.Before(p.heap.Totals().Accounts)
	require.NoError(t, err)
	require.Equal(t, []Totals{{0, 100, 1000}, {1, 100, 2000}, {2, 300, 3000}}, before)
	require.EqualValues(t, 200, p.before[1].Allocated, "they are another's")
	p.stateErr = noStateHere
	_, err = p.Before(nil)
	require.ErrorIs(t, err, reconcile.ErrNoState)
}

// TestBaselineAtTheEnd: the totals of devices without events are those of the end, and those of the beginning where the process has ended.
func TestBaselineAtTheEnd(t *testing.T) {
	at := []Totals{{0, 512, 4096}, {1, 1024, 8192}, {2, 0, 0}}
	for name, tt := range map[string]struct {
		before, now         []Totals
		beforeErr, nowError error
		want                int
		err                 error
	}{
		"still there":            {before: at[:1], now: at, want: 2},
		"there now":              {beforeErr: noStateHere, now: at, want: 2},
		"ended":                  {before: at, nowError: errEnded, want: 2},
		"never there":            {beforeErr: noStateHere, nowError: errEnded, err: errEnded},
		"nothing on its devices": {before: at[2:], now: at[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			target := &madeTarget{pid: 7, before: tt.now, noState: tt.nowError}
			p := &Process{target: target, before: tt.before, stateErr: tt.beforeErr, heap: newRecordedHeap(nil)}
			p.completeBaseline(t.Context())
			accounts := p.heap.Totals().Accounts
			require.Len(t, accounts, tt.want)
			for i := range accounts {
				require.Equal(t, at[i].Allocated, accounts[i].Allocated)
				require.Equal(t, at[i].Reserved, accounts[i].Reserved)
			}
			require.Equal(t, tt.err, p.stateErr)
		})
	}
}

// driverAlloc is a segment that the caching allocator obtains.
func driverAlloc(at, addr, size uint64) event.Event {
	e := alloc(7, at, addr, size, event.Unknown)
	e.Layer, e.Requested, e.Reserved, e.Call = event.LayerDevice, event.Unknown, event.Unknown, "cudaMalloc"
	return e
}

// TestBalanceOfOneMoment: where events and state differ, because the job went on, the parts are those of the events.
func TestBalanceOfOneMoment(t *testing.T) {
	block := alloc(7, 2*second, 0x10_0000, 512, 512)
	block.Reserved = 1 << 20
	p := &Process{target: &madeTarget{pid: 7, ended: true}, heap: newRecordedHeap(nil)}
	p.heap.take([]event.Event{driverAlloc(second, 0x10_0000, 1<<20), block})
	parts := p.heap.torchParts()
	require.Len(t, parts, 1)
	require.EqualValues(t, 512, parts[0].Allocated)
	require.EqualValues(t, 1<<20, parts[0].Reserved)
	require.EqualValues(t, 1<<20-512, parts[0].InactiveSplit)
	same, other := parts[0], parts[0]
	same.Pending, other.Allocated = 0, 1024
	uses := []figures.DriverUse{{Device: 0, Used: 2 << 20}}
	empty := figures.TorchMemory{Device: 1}
	in := p.balance(&Memory{Torch: []figures.TorchMemory{same, empty}, HasTorch: true, Driver: uses, Fresh: true, Moved: true}, nil)
	require.Equal(t, []figures.TorchMemory{same, empty}, in.Torch, "the state is of the same moment, and says more")
	require.Equal(t, uses, in.Driver)
	require.True(t, in.Whole)
	require.True(t, in.Moved)
	require.EqualValues(t, 7, in.PID)
	for name, change := range map[string]func(m *figures.TorchMemory){
		"allocated": func(m *figures.TorchMemory) { m.Allocated++ }, "reserved": func(m *figures.TorchMemory) { m.Reserved++ },
		"device": func(m *figures.TorchMemory) { m.Device = 3 },
	} {
		other := same
		change(&other)
		in = p.balance(&Memory{Torch: []figures.TorchMemory{other}, HasTorch: true, Driver: uses}, nil)
		require.Equal(t, parts, in.Torch, name)
		require.Nil(t, in.Driver, "it is said of another process of that number")
		require.Equal(t, "the process has ended", in.DriverWhy)
		require.Empty(t, in.TorchWhy)
	}
	unknown := &Process{target: &madeTarget{pid: 7, ended: true}, heap: newRecordedHeap(nil)}
	unknown.heap.take([]event.Event{block}) // in a segment that nobody saw
	require.Equal(t, "the process has ended", unknown.balance(&Memory{TorchErr: errors.New("torn")}, nil).TorchWhy)
}

// TestMemoryHangs: a driver that does not answer is waited for no longer than said.
func TestMemoryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		p := &Process{target: &slowTarget{madeTarget{pid: 7}, over}}
		ctx, cancel := context.WithTimeout(t.Context(), totalsTimeout)
		defer cancel()
		start := time.Now()
		m := p.readMemory(ctx)
		require.Equal(t, totalsTimeout, time.Since(start))
		require.ErrorContains(t, m.DriverErr, "5s")
		require.Equal(t, m.DriverErr, m.TorchErr)
		close(over)
	})
}

// TestMemoryOfMany: where there is no time for the allocator's blocks, what the driver says is there.
func TestMemoryOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Process{target: &manyTarget{madeTarget{pid: 7}}}
		ctx, cancel := context.WithTimeout(t.Context(), totalsTimeout)
		defer cancel()
		m := p.readMemory(ctx)
		require.NoError(t, m.DriverErr)
		require.ErrorIs(t, m.TorchErr, errSlowState)
		require.NoError(t, ctx.Err(), "in time")
	})
}

// manyTarget has so many blocks that reading them ends with the time for it.
type manyTarget struct{ madeTarget }

func (*manyTarget) Memory(ctx context.Context) *Memory {
	<-ctx.Done()
	return &Memory{TorchErr: context.Cause(ctx)}
}

// slowTarget does not say where its memory is until it may.
type slowTarget struct {
	madeTarget
	over chan struct{}
}

func (s *slowTarget) Memory(context.Context) *Memory {
	<-s.over
	return nil
}

// compared is a reconciler that has compared an empty live set with an empty state.
func compared(t *testing.T) *reconcile.Reconciler {
	target := &madeTarget{pid: 7, state: func(context.Context) (*reconcile.State, error) { return &reconcile.State{}, nil }}
	r := reconcile.New(t.Context(), newRecordedHeap(nil), target, comparisons{&Process{observer: &noted{}}}, &reconcile.Drained{To: 1})
	for r.Report() == nil {
		r.Step()
		runtime.Gosched() // the state is read beside
	}
	return r
}

// TestFinish: the last comparison is asked for with the last scan.
func TestFinish(t *testing.T) {
	p := growing(t, 0).process
	p.reconciler = compared(t)
	require.False(t, p.reconciler.Over())
	p.finish()
	for range 1000 {
		if p.reconciler.Step(); p.reconciler.Over() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("nothing was compared")
}

// TestCompared: the end waits for comparisons for a while, and longer where events were lost.
func TestCompared(t *testing.T) {
	target := &madeTarget{pid: 7}
	open := reconcile.New(t.Context(), newRecordedHeap(nil), target, comparisons{&Process{observer: &noted{}}}, &reconcile.Drained{})
	over := compared(t)
	over.Finish()
	for !over.Over() {
		over.Step()
		runtime.Gosched()
	}
	for _, c := range []struct {
		reconciler *reconcile.Reconciler
		lost       uint64
		since      time.Duration
		want       bool
	}{{over, 0, 0, true}, {open, 0, 0, false}, {open, 0, 2 * finalCheck, true}, {open, 1, 2 * finalCheck, false}} {
		target.lost = c.lost
		r := &Recorder{now: map[int]*Process{7: {reconciler: c.reconciler}}}
		require.Equal(t, c.want, (&closing{recorder: r, begun: time.Now().Add(-c.since)}).compared(), "%+v", c)
	}
}

// TestEnd: a recording says how it ended, with what was lost and how often it was compared.
func TestEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		end    End
		many   bool
		reason string
	}{
		"stopped": {Stopped, false, recording.ReasonStopped}, "exited": {Exited, false, recording.ReasonExited},
		"replaced": {Execed, false, recording.ReasonExeced}, "of a job": {Exited, true, recording.ReasonExited},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Process{target: &madeTarget{pid: 7, end: tt.end, lost: 4, over: 3}, options: &Options{PIDs: []int{7}, Children: tt.many}}
			p.start = time.Now()
			p.end = p.start.Add(time.Minute)
			p.reconciler = compared(t)
			hits := []figures.Hits{{Probe: "x", Hits: 3}}
			end := p.describeEnd((&Memory{}).Input(7), hits)
			require.Equal(t, tt.reason, end.Reason)
			require.Equal(t, time.Minute, end.Duration)
			require.EqualValues(t, 3, end.StacksOverLimit)
			require.Equal(t, hits, end.Hits)
			require.Equal(t, &figures.Checks{Made: 1}, end.Checks)
			require.Nil(t, end.RawStacks)
			if tt.many {
				require.EqualValues(t, 4, *end.Lost)
			} else {
				require.Nil(t, end.Lost, "it is in the hits")
			}
		})
	}
}
