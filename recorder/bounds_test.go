// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// TestEndIsSaid: the end tells how long was recorded, and that holders are still read where they are.
func TestEndIsSaid(t *testing.T) {
	for _, c := range []struct {
		what    string
		over    []bool // scans
		until   time.Duration
		want    string
		remains bool
	}{
		{"by its duration", []bool{true}, finalCheck / 2, "ending: 90.0 s false", true},
		{"interrupted", []bool{true, true}, time.Hour, "ending: 5.0 s false", false},
		{"behind its duration", []bool{true}, -time.Millisecond, "ending: 5.0 s false", false},
		{"holders are read", []bool{true, false}, time.Hour, "ending: 5.0 s true", false},
	} {
		n := &noted{}
		r := &Recorder{
			options: &Options{Duration: 90 * time.Second}, observer: n, now: map[int]*Process{}, begunAt: time.Now().Add(-5 * time.Second),
			until: time.Now().Add(c.until),
		}
		for i, over := range c.over {
			r.now[i] = &Process{scans: &holderScans{over: over}}
		}
		require.Equal(t, c.remains, r.remains(), c.what)
		(&closing{recorder: r}).say()
		require.Equal(t, []string{c.want}, n.notices, c.what)
	}
}

// TestEndTimeout: without a scan for holders the end takes less long.
func TestEndTimeout(t *testing.T) {
	require.Equal(t, lastCheck, (&Recorder{options: &Options{NoHolders: true}}).endTimeout())
	require.Equal(t, scanTimeout, (&Recorder{options: &Options{}}).endTimeout())
}

// TestSettled: all is settled when each process has made its last comparison and scan.
func TestSettled(t *testing.T) {
	process := func(stopped, scanned bool) *Process {
		return &Process{frozen: frozen{over: stopped}, scans: &holderScans{over: scanned}}
	}
	settled := func(all ...*Process) bool {
		r := &Recorder{now: map[int]*Process{}}
		for i, p := range all {
			r.now[i] = p
		}
		return r.settled()
	}
	require.True(t, settled())
	require.True(t, settled(process(true, true), process(true, true)))
	require.False(t, settled(process(true, true), process(true, false)))
	require.False(t, settled(process(false, true)))
}

// TestLossAtAttach: events that were lost before the first one was received were lost since the attach, or since the recording began.
func TestLossAtAttach(t *testing.T) {
	for attached, want := range map[uint64]uint64{0: 7 * second, 8 * second: 8 * second} {
		target := &madeTarget{pid: 7, lost: 5, found: Found{Attached: attached}}
		s := &madeSource{start: []Target{target}, clock: 9 * second,
			batches: []madeBatch{{events: []event.Event{alloc(7, 20*second, 0x1000, 512, 512)}}}}
		r, _, _ := newMade(t, s, nil)
		s.clock = 7 * second
		results, err := r.Run(t.Context())
		require.NoError(t, err)
		losses := results.Processes()[0].heap.Totals().LossIntervals
		require.Len(t, losses, 1)
		require.Equal(t, want, losses[0].From)
		require.EqualValues(t, 5, losses[0].Events)
	}
}

// TestLossWatch: a loss lies between the looks before and behind it, and is noted once.
func TestLossWatch(t *testing.T) {
	s := &madeSource{clock: 10}
	var w lossWatch
	var got [][2]uint64
	look := func(lost, clock uint64) {
		s.lost, s.clock = lost, clock
		w.look(s, func(from, to uint64) { got = append(got, [2]uint64{from, to}) })
	}
	look(0, 10)
	look(3, 20)
	look(3, 30)
	look(4, 40)
	require.Equal(t, [][2]uint64{{10, 20}, {30, 40}}, got)
}

// TestStackLimitIsSaidOnce: that not all stacks are kept is said once, and only when some are not.
func TestStackLimitIsSaidOnce(t *testing.T) {
	n, target := &noted{}, &madeTarget{}
	p := &Process{options: &Options{MaxStacks: 10}, observer: n, target: target}
	p.warnLimit()
	require.Empty(t, n.warnings)
	target.over = 1
	p.warnLimit()
	p.warnLimit()
	require.Len(t, n.warnings, 1)
	require.Contains(t, n.warnings[0], "more than 10 different stacks")
}

// TestDetailIsSaid reports each change of what has stacks once: a warning when it is less, a notice when it is more.
func TestDetailIsSaid(t *testing.T) {
	n, target := &noted{}, &madeTarget{pid: 7}
	p := &Process{options: &Options{}, observer: n, target: target}
	const full, quarter, none = figures.FullDetail, figures.QuarterDetail, figures.NoDetail
	for _, d := range []figures.Detail{full, quarter, quarter, none, full, full} {
		target.cost = figures.Cost{Detail: d, Used: 0.0123, Budget: 0.01}
		p.reportDetail()
	}
	require.Equal(t, []string{
		"tracing takes 1.23 % of a CPU of pid 7, its budget is 1 %: one allocation of 4 has a stack from now on; bytes stay exact",
		"tracing takes 1.23 % of a CPU of pid 7, its budget is 1 %: no allocation has a stack from now on; bytes stay exact",
	}, n.warnings)
	require.Equal(t, []string{"tracing takes 1.23 % of a CPU of pid 7, its budget is 1 %: every allocation has a stack again"}, n.notices)
	require.Equal(t, figures.FullDetail, p.cost().Detail)
}

// TestUnseenIsSaid: memory that a process allocated before it was hooked is said of one that began while it was traced.
func TestUnseenIsSaid(t *testing.T) {
	for _, c := range []struct {
		began    bool
		baseline uint64
		want     int
	}{{true, 1 << 20, 1}, {true, 0, 0}, {false, 1 << 20, 0}} {
		n := &noted{}
		h := heap.New()
		e := alloc(7, second, 0x1000, 512, c.baseline+512)
		h.Apply(&e)
		r := &Recorder{observer: n, all: []*Process{{target: &madeTarget{pid: 7, began: c.began}, heap: &recordedHeap{Heap: h}}}}
		r.warnUnseen()
		require.Len(t, n.warnings, c.want, c)
		if c.want > 0 {
			require.Contains(t, n.warnings[0], "1.0 MiB on cuda:0 were allocated before its libraries were hooked")
		}
	}
}

// TestBeforeTotals: what was allocated before the attach is the first event's figure where there is one.
func TestBeforeTotals(t *testing.T) {
	p := &Process{before: []Totals{{Device: 0, Allocated: 10}, {Device: 1, Allocated: 20}, {Device: 2, Allocated: 30}}}
	got, err := p.Before([]heap.Account{
		{Device: event.Device{Index: 0}, Baseline: 11}, {Device: event.Device{Index: 1}, Baseline: event.Unknown},
		{Device: event.Device{Index: 5}, Baseline: 99},
	})
	require.NoError(t, err)
	require.Equal(t, []uint64{11, 20, 30}, []uint64{got[0].Allocated, got[1].Allocated, got[2].Allocated})
	require.EqualValues(t, 10, p.before[0].Allocated, "the reading stays as it is")
	p.stateErr = reconcile.ErrNoState
	_, err = p.Before(nil)
	require.ErrorIs(t, err, reconcile.ErrNoState)
}

// TestSameMoment: two figures are of one moment when they are the same for each device that has memory.
func TestSameMoment(t *testing.T) {
	of := func(device int, allocated, reserved figures.Bytes) figures.TorchMemory {
		return figures.TorchMemory{Device: device, Allocated: allocated, Reserved: reserved}
	}
	all := []figures.TorchMemory{of(0, 1, 2), of(1, 3, 4)}
	require.True(t, sameMoment(all, all))
	require.True(t, sameMoment(append(slices.Clone(all), of(2, 0, 0)), append([]figures.TorchMemory{of(7, 0, 0)}, all...)), "others have none")
	for _, other := range []figures.TorchMemory{of(0, 9, 2), of(0, 1, 9), of(9, 1, 2)} {
		require.False(t, sameMoment(all, []figures.TorchMemory{other, all[1]}))
	}
	require.False(t, sameMoment(all, all[:1]))
}

// TestBalanceAtEnd: why figures of the end are missing is the first reason that holds.
func TestBalanceAtEnd(t *testing.T) {
	broken := errors.New("unreadable")
	why := func(change func(p *Process, m *Memory)) (torch, driver string) {
		p := &Process{target: &madeTarget{pid: 7}, heap: &recordedHeap{Heap: heap.New()}}
		m := &Memory{Driver: []figures.DriverUse{{Used: 5}}}
		change(p, m)
		in := p.balance(m, nil)
		return in.TorchWhy, in.DriverWhy
	}
	for _, c := range []struct {
		what          string
		change        func(p *Process, m *Memory)
		torch, driver string
	}{
		{"all was read", func(_ *Process, m *Memory) { m.HasTorch = true }, "", ""},
		{"the state cannot be read", func(_ *Process, m *Memory) { m.TorchErr = broken }, "unreadable", ""},
		{"nor could it at the attach", func(p *Process, _ *Memory) { p.stateErr = broken }, "unreadable", ""},
		{"there is no allocator", func(p *Process, _ *Memory) { p.stateErr = reconcile.ErrNoState }, "", ""},
		{"it has ended", func(p *Process, m *Memory) { p.target.(*madeTarget).ended, m.TorchErr = true, broken }, errEnded.Error(),
			errEnded.Error()},
		{"the driver hangs", func(_ *Process, m *Memory) { m.DriverErr = broken }, "", "unreadable"},
	} {
		torch, driver := why(c.change)
		require.Equal(t, []string{c.torch, c.driver}, []string{torch, driver}, c.what)
	}
}

// TestProcesses: one process is called so.
func TestProcesses(t *testing.T) {
	require.Equal(t, []string{"0 processes", "1 process", "2 processes"}, []string{Processes(0), Processes(1), Processes(2)})
}

// TestMany: results of a process that cannot have another lie in the folder itself.
func TestMany(t *testing.T) {
	require.False(t, (&Options{PIDs: []int{7}}).Many())
	for _, o := range []Options{{}, {PIDs: []int{7, 8}}, {PIDs: []int{7}, All: true}, {PIDs: []int{7}, Name: regexp.MustCompile("x")},
		{PIDs: []int{7}, Children: true}, {PIDs: []int{7}, Command: []string{"x"}}} {
		require.True(t, o.Many(), fmt.Sprintf("%+v", o))
	}
}

// growing is a watch of a process that grows by one line.
func growing(t *testing.T, live uint64) *growth {
	t.Helper()
	f := leaks.Finding{File: "/a.py", Line: 3, Function: "f", LiveBytes: live, Confidence: leaks.High}
	p := &Process{options: &Options{PIDs: []int{7}}, observer: &noted{}, target: &madeTarget{pid: 7}, heap: &recordedHeap{Heap: heap.New()},
		ctx: t.Context()}
	p.scans = newHolderScans(p, make(chan struct{}, 1), p.options)
	return &growth{process: p, report: &leaks.Report{Findings: []leaks.Finding{f}, Steps: leaks.Steps{Count: 1000}},
		said: map[string]*said{}, limited: map[event.Device]bool{}}
}

// TestAskForHolders: the holders of what grows are read once, again after a minute where more than twice as much is there, and sooner where
// something is new or has no holder yet.
func TestAskForHolders(t *testing.T) {
	now := time.Now()
	g := growing(t, 1000)
	require.True(t, g.report.Steps.Settled())
	g.ask(now)
	require.NotNil(t, g.answers)
	require.Equal(t, now, g.read)
	require.Len(t, g.asked, 1)
	before := g.answers
	g.ask(now.Add(time.Hour))
	require.Equal(t, before, g.answers, "they are being read")

	g.answers = nil
	for _, c := range []struct {
		after  time.Duration
		live   uint64
		holder string
		line   int // of what was asked for
		tries  int
		want   bool
	}{
		{readAgain - 1, 9000, "kept", 3, 0, false}, {readAgain, 2000, "kept", 3, 0, false}, {readAgain, 2001, "kept", 3, 0, true},
		{unheldAgain - 1, 1000, "", 3, 0, false}, {unheldAgain, 1000, "", 3, 0, true}, {unheldAgain, 1000, "", 3, 1, false},
		{2 * unheldAgain, 1000, "", 3, 1, true}, {readAgain, 1000, "", 3, 60, true}, {unheldAgain, 1000, "kept", 4, 60, true},
		{unheldAgain - 1, 1000, "kept", 4, 0, false},
	} {
		g.answers, g.read, g.tries = nil, now, c.tries
		g.asked = []leaks.Finding{{File: "/a.py", Line: c.line, Function: "f", LiveBytes: 1000}}
		g.report.Findings[0].LiveBytes, g.report.Findings[0].Holder = c.live, c.holder
		g.ask(now.Add(c.after))
		require.Equal(t, c.want, g.answers != nil, c)
	}
	g = growing(t, 1000)
	g.process.options.NoHolders = true
	g.ask(now)
	require.Nil(t, g.answers)
	g = growing(t, 1000)
	g.report.Findings[0].Confidence = leaks.Low
	g.ask(now)
	require.Nil(t, g.answers, "it may be a queue that fills")
}

// TestReadingForLater: a reading that was made for another reason names what grows later, and is in the recording; what a step holds for a
// moment is not.
func TestReadingForLater(t *testing.T) {
	g := growing(t, 1000)
	g.process.heap = newRecordedHeap(nil)
	require.Empty(t, g.earlier())
	g.see(&view.Joined{Rows: []view.HeldSite{
		{Site: "a.py:3 f", Name: view.NoHolder, Bytes: 90, Blocks: 9}, {Site: "a.py:3 f", Name: "<C++>", Bytes: 80, Blocks: 9},
		{Site: "a.py:3 f", Name: "kept[0..4]", Bytes: 70, Blocks: leastSeen}, {Site: "a.py:3 f", Name: "batch", Bytes: 60, Blocks: leastSeen - 1},
	}})
	g.held = [][]leaks.Holder{{{Site: "a.py:3 f", Name: "later"}}}
	require.Equal(t, [][]leaks.Holder{{{Site: "a.py:3 f", Name: "kept[0..4]", Bytes: 70, Blocks: leastSeen}}, g.held[0]}, g.earlier())
}

// TestFirstLength: of containers with a bound the recording says how many elements they had when they were first read.
func TestFirstLength(t *testing.T) {
	g := growing(t, 1000)
	g.process.heap, g.process.scans = newRecordedHeap(nil), &holderScans{}
	for i, want := range []uint64{0, 3} {
		g.process.scans.latest = &Scan{Until: uint64(i + 1)}
		j := &view.Joined{Facts: map[string]figures.HolderFacts{"a.kept[0..2]": {Length: uint64(3 + i), Most: 9, Each: 512}}}
		g.see(j)
		g.learn(j)
		require.Equal(t, want, g.facts["a.kept[0..2]"].Was)
	}
}

// TestReadFree: what is left of the devices is read once, and where something grows, again after a minute.
func TestReadFree(t *testing.T) {
	now := time.Now()
	g := growing(t, 1000)
	g.process.target.(*madeTarget).memory = &Memory{Driver: []figures.DriverUse{{Used: 5, Total: 100, All: 40}}}
	g.readFree(now)
	require.NotNil(t, g.reading)
	r := <-g.reading
	require.EqualValues(t, []uint64{60, 100}, []uint64{r.free[cuda0], r.size[cuda0]})
	g.reading = nil
	g.readFree(now.Add(readAgain - 1))
	require.Nil(t, g.reading)
	g.readFree(now.Add(readAgain))
	require.NotNil(t, g.reading)
	<-g.reading
	g = growing(t, 1000)
	g.report.Findings = nil
	g.readFree(now)
	require.NotNil(t, g.reading, "what grows later is weighed by it")
	<-g.reading
	g.reading = nil
	g.readFree(now.Add(readAgain))
	require.Nil(t, g.reading, "nothing grows")
}

// TestHoldersFailed: where the holders cannot be read, they are asked for again.
func TestHoldersFailed(t *testing.T) {
	g := growing(t, 1000)
	g.asked, g.answers = g.report.Findings, make(chan holdersAnswer, 1)
	g.receive()
	require.NotNil(t, g.answers, "there is none yet")
	g.answers <- holdersAnswer{err: errors.New("gone")}
	g.receive()
	require.Nil(t, g.answers)
	require.Nil(t, g.asked)
	require.Empty(t, g.held)
}

// TestForeseeBounds: the holders are read when a device is nearly full, and not again for a while.
func TestForeseeBounds(t *testing.T) {
	const total = 1000 * fullShare
	for _, c := range []struct {
		what string
		use  figures.DriverUse
		ago  time.Duration
		want bool
	}{
		{"nearly full", figures.DriverUse{Used: 1, Total: total, All: total - 999}, time.Hour, true},
		{"not so full", figures.DriverUse{Used: 1, Total: total, All: total - 1000}, time.Hour, false},
		{"it is not known what is used", figures.DriverUse{Used: figures.Unknown, Total: total, All: total}, time.Hour, false},
		{"nor of how much", figures.DriverUse{Used: 1, Total: figures.Unknown, All: total}, time.Hour, false},
		{"nor what all use", figures.DriverUse{Used: 1, Total: total, All: figures.Unknown}, time.Hour, false},
		{"they were read just now", figures.DriverUse{Used: 1, Total: total, All: total}, holdersEvery / 2, false},
	} {
		g := growing(t, 1)
		f := &failures{process: g.process, held: time.Now().Add(-c.ago)}
		f.foresee(&figures.Reading{Driver: []figures.DriverUse{{Used: figures.Unknown}, c.use}})
		require.Equal(t, c.want, f.answers != nil, c.what)
	}
}

// TestAwaitFailure: a recording that ends with a failure waits for the reading that was asked for, and asks once
// more where that was for another.
func TestAwaitFailure(t *testing.T) {
	g := growing(t, 1)
	f := &failures{process: g.process}
	f.await() // nothing failed
	f.failure, f.reading = 9, make(chan figures.Reading, 1)
	f.reading <- figures.Reading{Failed: 9}
	f.await()
	require.Nil(t, f.reading)
	f.reading = make(chan figures.Reading, 1)
	f.process.frozen.until = 5
	f.await()
	require.NotNil(t, f.reading, "what comes behind the end of the recording is not of it")
}

// TestLossBehindAttach: what is lost before the first look was lost since the attach, not since the recording began.
func TestLossBehindAttach(t *testing.T) {
	target := &madeTarget{pid: 7, found: Found{Attached: 8 * second}}
	s := &madeSource{start: []Target{target}, clock: 7 * second, batches: []madeBatch{
		{events: []event.Event{alloc(7, 9*second, 0x1000, 512, 512)}, lost: 3, then: func() { target.lost = 3 }},
	}}
	r, _, _ := newMade(t, s, nil)
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	losses := results.Processes()[0].heap.Totals().LossIntervals
	require.Len(t, losses, 1)
	require.Equal(t, []uint64{8 * second, 3}, []uint64{losses[0].From, losses[0].Events})
}
