// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// Stacks of a training loop.
const (
	input    = eventtest.Input
	forward  = eventtest.Forward
	second   = eventtest.SecondForward
	kept     = eventtest.Kept
	backward = eventtest.Backward
	adam     = eventtest.Adam
	driver   = eventtest.DriverCall
)

// job is a program whose events are judged.
type job struct{ *eventtest.Job }

func newJob() *job { return &job{eventtest.NewJob()} }

func (j *job) find(t *testing.T, o *leaks.Options) *leaks.Report {
	t.Helper()
	return j.findOn(t, nil, o)
}

// findOn is find with rules for steps.
func (j *job) findOn(t *testing.T, rules *steps.Rules, o *leaks.Options) *leaks.Report {
	t.Helper()
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, rules)
	require.NoError(t, err)
	r, err := leaks.Find(trace, table, o)
	require.NoError(t, err)
	return r
}

// train makes 60 steps, each with a leak from step 11 on, then frees everything, as a process does that ends.
func train(leak func(j *job, i int)) *job {
	j := newJob()
	for i := 1; i <= 60; i++ {
		j.Pass(input, forward, forward, forward, forward, backward, adam)
		if i > 10 {
			leak(j, i)
		}
	}
	for addr := range j.Live {
		j.Free(addr)
	}
	return j
}

func TestFindings(t *testing.T) {
	sizes := []uint64{1 << 10, 1 << 16, 1 << 12}
	tests := map[string]struct {
		leak              func(j *job, i int)
		kind              leaks.Kind
		name              string
		requested, blocks float64
		period            int
		graph             bool
	}{
		"one":       {func(j *job, _ int) { j.Alloc(kept, 1000) }, leaks.Leak, "train.py:30 main", 1000, 1, 1, false},
		"an output": {func(j *job, _ int) { j.Alloc(forward, 1000) }, leaks.Leak, "net.py:7 Net.forward", 1000, 1, 1, false},
		"a graph":   {func(j *job, _ int) { j.Alloc(second, 1000); j.Alloc(second, 9000) }, leaks.Leak, "train.py:40 main", 10000, 2, 1, true},
		"periodic": {func(j *job, i int) {
			j.Alloc([]string{kept, input}[min(1, i%5)], 600)
			j.drop(i%5 != 0)
		}, leaks.Leak, "train.py:30 main", 120, .2, 5, false},
		"many sizes": {func(j *job, i int) { j.Alloc(kept, sizes[i%3]) }, leaks.Leak, "train.py:30 main", 23552, 1, 3, false},
		"host":       {func(j *job, _ int) { j.Obtain(event.LayerHost, driver, 700) }, leaks.HostGrowth, "train.py:60 main", 700, 1, 1, false},
		"raw, device": {func(j *job, _ int) { j.Obtain(event.LayerDevice, driver, 700) }, leaks.DeviceGrowth, "train.py:60 main", 700, 1, 1,
			false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := train(tt.leak).find(t, nil)
			require.Equal(t, leaks.Growing, got.Verdict)
			require.Len(t, got.Findings, 1)
			f := got.Findings[0]
			require.Equal(t, tt.kind, f.Kind)
			require.Equal(t, tt.name, f.Name())
			require.InDelta(t, tt.requested, f.Requested, 1e-9)
			require.InDelta(t, tt.blocks, f.Blocks, 1e-9)
			require.Equal(t, tt.period, f.Period)
			require.InDelta(t, 10, f.First, float64(tt.period))
			require.Equal(t, 59, f.Last)
			require.Equal(t, tt.graph, f.Graph)
			require.InDelta(t, 1, f.Share, 0.02)
			require.True(t, math.IsNaN(f.Seconds), "the size of the device is not known")
		})
	}
}

// drop frees the block that was allocated last.
func (j *job) drop(really bool) {
	if really {
		j.Free(j.Next)
	}
}

func TestSteady(t *testing.T) {
	got := train(func(*job, int) {}).find(t, nil)
	require.Equal(t, leaks.Steady, got.Verdict)
	require.Empty(t, got.Findings)
}

func TestVerdicts(t *testing.T) {
	j := newJob()
	for range 12 {
		j.Pass(input, forward, backward, adam)
	}
	require.Equal(t, leaks.Unclear, j.find(t, nil).Verdict, "12 steps are too few")
	j.Add(event.Event{Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, Size: 1 << 40, Allocated: j.Total(), Stack: j.ID(forward)})
	require.Equal(t, leaks.OutOfMemory, j.find(t, nil).Verdict)
}

// TestUnknownRequested: without requested bytes, as of old PyTorch, blocks count by their own, and the figure is not known.
func TestUnknownRequested(t *testing.T) {
	j := newJob()
	j.Blind = true
	for range 60 {
		j.Pass(input, forward, backward, adam)
		j.Alloc(kept, 1000)
	}
	got := j.find(t, nil)
	require.Len(t, got.Findings, 1)
	require.True(t, math.IsNaN(got.Findings[0].Requested))
	require.EqualValues(t, 1024, got.Findings[0].Bytes)
}

// TestSeconds: the time that is left is that in which the growth fills what is free.
func TestSeconds(t *testing.T) {
	j := train(func(j *job, _ int) { j.Alloc(kept, 1000) })
	device := event.Device{Type: event.DeviceCUDA}
	free := map[event.Device]uint64{device: 1 << 30, {Type: event.DeviceCUDA, Index: 1}: 1}
	got := j.find(t, &leaks.Options{Free: free})
	require.Len(t, got.Findings, 1)
	steps := float64(1<<30) / 1024 // a block a step
	require.Positive(t, got.Steps.Period)
	require.InEpsilon(t, steps*got.Steps.Period/1e9, got.Findings[0].Seconds, 1e-9)
	j = train(func(j *job, _ int) { j.Obtain(event.LayerHost, driver, 700) })
	require.True(t, math.IsNaN(j.find(t, &leaks.Options{Free: free}).Findings[0].Seconds), "it is not the device's")
}

func TestHolder(t *testing.T) {
	j := train(func(j *job, _ int) { j.Alloc(kept, 1000) })
	site := "train.py:30 main"
	for want, rows := range map[string][]leaks.Holder{
		"main() local seen[0..49]": {{Site: site, Name: "main() local seen[0..49]", Bytes: 900}, {Site: site, Name: "other", Bytes: 9},
			{Site: "x", Name: "y", Bytes: 9000}},
		"": {{Site: site, Name: "[holder not known]", Bytes: 900}, {Site: site, Name: "other", Bytes: 9}},
	} {
		require.Equal(t, want, j.find(t, &leaks.Options{Holders: rows}).Findings[0].Holder)
	}
}

// TestHolderOfKeys: where several keys or attributes of one thing hold the blocks, it is that.
func TestHolderOfKeys(t *testing.T) {
	j := train(func(j *job, _ int) { j.Alloc(kept, 1000) })
	for want, names := range map[string][]string{
		"kept[*]['box', 'loss', 'score']":   {"kept[*]['loss']", "kept[*]['box']", "kept[*]['score']"},
		"self.seen[0..9]":                   {"self.seen[0..9].loss", "self.seen[0..9].score", "other.x"},
		"":                                  {"one['loss']", "two['loss']", "three['loss']"},
		"log['a', 'b']":                     {"log['a']", "log['a']", "log['b']"},
		"main() local state['x', 'y', 'z']": {"main() local state['x']", "main() local state['y']", "main() local state['z']"},
	} {
		var rows []leaks.Holder
		for _, name := range names {
			rows = append(rows, leaks.Holder{Site: "train.py:30 main", Name: name, Bytes: 10 << 10, Blocks: 10})
		}
		require.Equal(t, want, j.find(t, &leaks.Options{Holders: rows}).Findings[0].Holder, names)
	}
}

// TestHolderOfSome: where a reading says nothing of most blocks, because they are newer, the others decide, unless they are few or several
// things hold them.
func TestHolderOfSome(t *testing.T) {
	j := train(func(j *job, _ int) { j.Alloc(kept, 1000) })
	row := func(name string, n uint64) leaks.Holder {
		return leaks.Holder{Site: "train.py:30 main", Name: name, Bytes: 1024 * n, Blocks: n}
	}
	native := func(n uint64) leaks.Holder { return row("<c10::StorageImpl>", n) }
	rows := func(known, other, unknown uint64) []leaks.Holder {
		return []leaks.Holder{row("[holder not known]", unknown), row("seen[0..9]", known), row("batch", other)}
	}
	for name, tt := range map[string]struct {
		rows   []leaks.Holder
		holder string
		newer  uint64
	}{
		"all":          {rows(49, 0, 0), "seen[0..9]", 0},
		"half":         {rows(25, 0, 25), "seen[0..9]", 0},
		"some":         {rows(10, 1, 39), "seen[0..9]", 39},
		"few":          {rows(4, 0, 45), "", 0},
		"several":      {rows(10, 5, 35), "", 0},
		"in C++":       {append(rows(10, 0, 9), native(30)), "seen[0..9]", 39},
		"most in C++":  {append(rows(10, 0, 8), native(31)), "", 0},
		"more than is": {rows(10, 0, 4000), "seen[0..9]", 48},
	} {
		t.Run(name, func(t *testing.T) {
			f := j.find(t, &leaks.Options{Holders: tt.rows}).Findings[0]
			require.Equal(t, tt.holder, f.Holder)
			require.Equal(t, tt.newer, f.Newer)
			f = j.find(t, &leaks.Options{Earlier: [][]leaks.Holder{tt.rows}}).Findings[0]
			require.Equal(t, tt.holder, f.Holder)
		})
	}
}

// TestRandom: of what happens at random, nothing grows. A climb can look like more, once in very many lines.
func TestRandom(t *testing.T) {
	for chosen, most := range map[string]int{"": 0, "at::native::op1": 2} {
		found := 0
		for seed := range uint64(60) {
			trace, err := view.NewTrace(eventtest.Random(seed, 6000), nil)
			require.NoError(t, err)
			table, err := steps.Find(trace, &steps.Rules{On: chosen})
			require.NoError(t, err)
			r, err := leaks.Find(trace, table, nil)
			require.NoError(t, err)
			found += len(r.Findings)
		}
		require.LessOrEqual(t, found, most, chosen)
	}
}

// epochs trains for a number of them, of 25 steps each, and keeps a block of each.
func epochs(n int, size func(epoch int) uint64) *job {
	j := newJob()
	for i := 1; i <= n*25+10; i++ {
		j.Pass(input, forward, backward, adam)
		if i%25 == 0 {
			j.Alloc(kept, size(i/25))
		}
	}
	return j
}

// TestEpochs: a leak of each epoch is found in the fifth one; of fewer it is not said that nothing grows.
func TestEpochs(t *testing.T) {
	same := func(int) uint64 { return 5000 }
	for n, want := range map[int]leaks.Verdict{3: leaks.Unclear, 4: leaks.Unclear, 5: leaks.Growing, 7: leaks.Growing} {
		got := epochs(n, same).find(t, nil)
		require.Equal(t, want, got.Verdict, "%d epochs", n)
		require.Equal(t, want == leaks.Unclear, len(got.Suspects) == 1, "%d epochs", n)
		all := append(got.Suspects, got.Findings...)
		require.Len(t, all, 1)
		f := all[0]
		if want == leaks.Growing {
			require.Equal(t, leaks.Low, f.Confidence)
		}
		require.Equal(t, "train.py:30 main", f.Name())
		require.Equal(t, []int{25, 25}, []int{f.Period, f.First})
		require.InDelta(t, 5000, f.Requested*25, 1e-6)
		require.InDelta(t, 1, f.Blocks*25, 1e-9)
		if want == leaks.Unclear {
			require.InEpsilon(t, got.Steps.Period*175, got.Needed(), 1e-9)
		}
	}
}

// TestChangingSizes: a line that keeps blocks of another size each time grows by all of them.
func TestChangingSizes(t *testing.T) {
	sizes := []uint64{1 << 10, 9 << 10, 70 << 10}
	of := []int{0, 1, 2, 1, 0, 0, 0, 1, 2, 2, 0, 2, 0, 1, 1, 2, 0, 2, 1, 0}
	sum := uint64(0)
	for _, i := range of[1:] {
		sum += sizes[i]
	}
	got := epochs(len(of), func(epoch int) uint64 { return sizes[of[epoch-1]] }).find(t, nil)
	require.Len(t, got.Findings, 1)
	f := got.Findings[0]
	require.Equal(t, 25, f.Period)
	require.InDelta(t, 1, f.Blocks*25, 0.05)
	require.InEpsilon(t, float64(sum)/float64(len(of)-1), f.Requested*25, 0.05)
	require.EqualValues(t, len(of), f.LiveBlocks)
}

// TestSecondsOfAll: what is free is there for all lines that grow on a device together, and each of them says the same.
func TestSecondsOfAll(t *testing.T) {
	j := train(func(j *job, _ int) {
		j.Alloc(kept, 1000)
		j.Obtain(event.LayerDevice, driver, 3072)
	})
	got := j.find(t, &leaks.Options{Free: map[event.Device]uint64{{Type: event.DeviceCUDA}: 1 << 30}})
	require.Len(t, got.Findings, 2)
	for i := range got.Findings {
		require.InEpsilon(t, float64(1<<30)/(1024+3072)*got.Steps.Period/1e9, got.Findings[i].Seconds, 1e-9)
	}
}
