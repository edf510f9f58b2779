// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recording"
	"github.com/gputrace/gputrace/tracer/hook"
)

// TestSamples: a sample has the sums over devices, and the rate is that between the last two.
func TestSampleSums(t *testing.T) {
	h := newRecordedHeap(func(error) {})
	other := alloc(7, second, 0x2000, 1024, 1024)
	other.Device.Index, other.Reserved = 1, 5000
	h.take([]event.Event{alloc(7, second, 0x1000, 512, 512), other})
	var s samples
	start := time.Now()
	s.take(start, h)
	require.Zero(t, s.rate)
	require.Equal(t, []Sample{{Time: start, Allocated: 1536, Reserved: 1<<30 + 5000, Allocs: 2}}, s.curve)
	h.take([]event.Event{alloc(7, 2*second, 0x3000, 512, 1024), alloc(7, 2*second, 0x4000, 512, 1536), alloc(7, 2*second, 0x5000, 512, 2048)})
	s.take(start.Add(2*time.Second), h)
	require.InDelta(t, 1.5, s.rate, 1e-9)
	for i := range maxCurve {
		s.take(start.Add(time.Duration(3+i)*time.Second), h)
	}
	require.Len(t, s.curve, maxCurve)
	require.Equal(t, start.Add(3*time.Second), s.curve[0].Time, "the oldest are dropped")
	state := &State{Processes: []ProcessState{{Rate: 1.5, Totals: h.Totals()}, {Rate: 2, Totals: h.Totals()}}}
	require.InDelta(t, 3.5, state.Rate(), 1e-9)
	require.Len(t, state.Totals().Accounts, 4)
}

// TestGrewSince: holders are read again when there is more than twice as much.
func TestGrewSince(t *testing.T) {
	g := &growth{asked: []leaks.Finding{{Function: "f", LiveBytes: 100}}}
	require.False(t, g.grewSince(leaks.Finding{Function: "f", LiveBytes: 200}))
	require.True(t, g.grewSince(leaks.Finding{Function: "f", LiveBytes: 201}))
	require.True(t, g.grewSince(leaks.Finding{Function: "g", LiveBytes: 1}), "nobody asked")
}

// TestGrowthReceives: an answer is taken once.
func TestGrowthReceives(t *testing.T) {
	p := begun(t, &madeTarget{pid: 7}, nil)
	g := p.growth
	g.answers, g.reading = make(chan holdersAnswer, 1), make(chan *rooms, 1)
	g.answers <- holdersAnswer{joined: &view.Joined{}}
	g.reading <- &rooms{free: map[event.Device]uint64{cuda0: 5}}
	g.receive()
	g.receive()
	require.Nil(t, g.answers)
	require.Nil(t, g.reading)
	require.Equal(t, map[event.Device]uint64{cuda0: 5}, g.rooms.free)
}

// TestScanOver: who asks when the scans are over gets an answer, and so does who waits when they end.
func TestScanOver(t *testing.T) {
	p := begun(t, &madeTarget{pid: 7}, nil)
	to := make(chan holdersAnswer, 2)
	p.scans.request(to)
	require.True(t, p.scans.wanted)
	p.scans.read = &Scan{Until: 3}
	stopped := false
	p.scans.cancel = func() { stopped = true }
	p.scans.stop()
	require.True(t, stopped)
	require.ErrorIs(t, (<-to).err, ErrOver)
	require.True(t, p.scans.over)
	require.Nil(t, p.scans.read)
	require.EqualValues(t, 3, p.scans.latest.Until, "what was read of it stays")
	p.scans.request(to)
	require.ErrorIs(t, (<-to).err, ErrOver)
	require.Empty(t, p.scans.waiting)
}

// TestScanAskedMeanwhile: who asks while a reading is under way waits for the next one: that has begun before what is asked about.
func TestScanAskedMeanwhile(t *testing.T) {
	s := begun(t, &madeTarget{pid: 7}, nil).scans
	first, second := make(chan holdersAnswer, 1), make(chan holdersAnswer, 1)
	s.request(first)
	s.maybeBegin(time.Now())
	require.NotNil(t, s.results)
	s.request(second)
	s.answer(holdersAnswer{err: ErrOver})
	require.Len(t, first, 1)
	require.Empty(t, second)
	require.True(t, s.wanted, "there is another reading")
	s.finish()
	require.True(t, s.wanted, "also where the recording ends meanwhile")
	s.stop()
	require.Len(t, second, 1, "nobody waits for ever")
}

// TestScanTables: the highest peak has a table where clearly more was live then.
func TestScanTables(t *testing.T) {
	n := begun(t, &madeTarget{pid: 7}, nil).scans
	now, highest := &view.Joined{Bytes: 1600}, &view.Joined{Bytes: 1}
	require.Empty(t, n.tables(nil))
	require.Len(t, n.tables(now), 1)
	n.highest, n.height = highest, 1600+1600/peakGrowth
	require.Len(t, n.tables(now), 1)
	n.height++
	got := n.tables(now)
	require.Len(t, got, 2)
	require.Same(t, now, got[0].Joined)
	require.Same(t, highest, got[1].Joined)
	require.Contains(t, got[1].Title, " live")
	require.Len(t, n.tables(nil), 1, "of the end nothing is known")
	n.err = errors.New("no")
	n.tables(nil)
	require.Equal(t, []string{"who holds the live blocks could not be read: no"}, n.observer.(*noted).warnings)
}

// TestFunctions: those of all files.
func TestFunctions(t *testing.T) {
	require.Equal(t, 5, (&Found{Hooks: []Hook{{Functions: 2}, {Functions: 3}}}).Functions())
	require.Zero(t, (&Found{}).Functions())
}

// TestDescribed: what a recording begins with, of the target and of what was found.
func TestDescribed(t *testing.T) {
	site := "/v/lib/python3.11/site-packages/torch/lib/libtorch_python.so"
	target := &madeTarget{
		pid: 7, about: process.About{Name: "python", Exe: "/bin/python", Cmdline: []string{"python", "a.py"}},
		found: Found{Python: "3.11.7", PyTorch: "2.15.0", CUDA: "12.8", Driver: "570", Memory: "in place", Attached: 9,
			Autograd: errors.New("too old"),
			Hooks:    []Hook{{Library: &hook.Library{Name: "libtorch_python.so"}, File: site, Functions: 4}}},
	}
	p := begun(t, target, nil)
	info := p.info
	require.Equal(t, []any{"test", uint64(9), uint32(7), "python", "/bin/python", "3.11.7", "2.15.0", "12.8", "570", "in place", "too old"},
		[]any{info.Gputrace, info.Attached, info.PID, info.Name, info.Exe, info.Python, info.PyTorch, info.CUDA, info.Driver, info.Memory,
			info.Backward})
	require.Equal(t, []recording.Hook{{Library: "libtorch_python.so", File: site, Functions: 4}}, info.Hooks)
	require.NotEmpty(t, info.Libraries)
	require.Equal(t, target.about.Cmdline, info.Cmdline)
	require.WithinDuration(t, time.Now(), info.Started, time.Minute)

	target.end, target.over = Execed, 6
	end := p.describeEnd(&balance.Input{}, []figures.Hits{{Probe: "x"}})
	require.Equal(t, recording.ReasonExeced, end.Reason)
	require.EqualValues(t, 6, end.StacksOverLimit)
	require.Nil(t, end.Lost, "of one process the hits say so")
	require.Nil(t, end.RawStacks)
	target.end = Exited
	require.Equal(t, recording.ReasonExited, p.describeEnd(&balance.Input{}, nil).Reason)
}

// TestStackLimit: that not all stacks are kept is said once.
func TestStackLimit(t *testing.T) {
	target := &madeTarget{pid: 7}
	p := begun(t, target, nil)
	p.warnLimit()
	n := p.observer.(*noted)
	require.Empty(t, n.warnings)
	target.over = 1
	p.warnLimit()
	p.warnLimit()
	require.Len(t, n.warnings, 1)
	require.True(t, strings.HasPrefix(n.warnings[0], "there are more than 10 different stacks"), n.warnings[0])
}

// TestOutcomes: an error is of its kind, and says what its text says.
func TestOutcomes(t *testing.T) {
	err := error(&Outcome{ErrEndedEarly, "it ended"})
	require.ErrorIs(t, err, ErrEndedEarly)
	require.NotErrorIs(t, err, ErrInterrupted)
	require.EqualError(t, err, "it ended")
	inner := errors.New("inner")
	for _, err := range []error{&AttachError{3, inner}, &LaunchError{inner}} {
		require.ErrorIs(t, err, inner)
		require.EqualError(t, err, "inner")
	}
}

// TestLossOfArrival: events that a process lost before its first was received are of the time since the source looked, or the attach.
func TestLossOfArrival(t *testing.T) {
	target := &madeTarget{pid: 7, lost: 3, found: Found{Attached: 5e8}}
	s := &madeSource{clock: 4e8, start: []Target{target}, batches: []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512)}}}}
	r, _, _ := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	lost := results.Processes()[0].heap.Totals().LossIntervals
	require.Len(t, lost, 1)
	require.Equal(t, heap.LossInterval{PID: 7, Loss: event.Loss{From: 5e8, To: lost[0].To, Events: 3}}, lost[0])
}
