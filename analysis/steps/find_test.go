// SPDX-License-Identifier: Apache-2.0

package steps_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const (
	input    = eventtest.Input
	forward  = eventtest.Forward
	backward = eventtest.Backward
	adam     = eventtest.Adam
	another  = eventtest.AnotherAdam
)

// program is what a program does in a step, and the steps that are to be found in 60 of them.
type program struct {
	step   func(j *eventtest.Job, i int)
	chosen string
	source steps.Source
	on     string
	count  int // without the one that runs
}

var programs = map[string]program{
	"optimizer":          {passes(input, forward, backward, adam, adam), "", steps.SourceOptimizer, "train.py:22 main", 59},
	"two optimizers":     {passes(input, backward, adam, forward, backward, another), "", steps.SourceOptimizer, "train.py:22 main", 59},
	"silent":             {passes(input, forward, backward), "", steps.SourceBackward, "train.py:21 main", 59},
	"closure":            {passes(input, eventtest.Closure, backward, eventtest.Closure), "", steps.SourceBackward, "train.py:21 main", 59},
	"inference":          {passes(input, forward), "", steps.SourcePeriod, "", 59},
	"layers of a server": {serve(7), "", steps.SourcePeriod, "server.py:30 serve", 59},
	"chosen":             {passes(input, forward, backward, adam), "batch", steps.SourceChosen, "train.py batch", 59},
	"the whole class":    {passes(input, forward), "Net.forward", steps.SourceChosen, "net.py Net.forward", 59},
	"chosen, native": {func(j *eventtest.Job, _ int) {
		j.Obtain(event.LayerDevice, eventtest.DriverCall, 1)
		j.Pass(input)
	}, "foo", steps.SourceChosen, "foo", 59},
	"none": {func(j *eventtest.Job, i int) { j.Alloc("a.so!f"+string(rune('a'+i)), 1) }, "", "", "", 0},
	"a late one": {func(j *eventtest.Job, i int) {
		j.Pass(input, forward, backward)
		j.Pass([]string{input, another}[i/31])
	}, "", steps.SourceBackward, "train.py:21 main", 59},
	"accumulated": {func(j *eventtest.Job, i int) {
		j.Pass(input, forward, backward, []string{input, adam}[i%4/3])
	}, "", steps.SourceOptimizer, "train.py:22 main", 14},
	"silent, but marked": {func(j *eventtest.Job, _ int) {
		j.Pass(input, forward, backward, forward, backward)
		j.Mark(eventtest.Stepped)
	}, "", steps.SourceOptimizer, "train.py:22 main", 59},
	"marked, and seen": {func(j *eventtest.Job, _ int) {
		j.Pass(input, forward, backward)
		j.Mark(eventtest.Stepped)
		j.Pass(adam, adam)
	}, "", steps.SourceOptimizer, "train.py:22 main", 59},
	"all of it is a library's closure": {func(j *eventtest.Job, _ int) {
		j.Mark(eventtest.Stepped)
		j.Pass(eventtest.Closed, eventtest.ClosedForward, eventtest.Closed)
		j.Mark(eventtest.ClosedBackward)
		j.Pass(eventtest.ClosedForward, adam, adam)
	}, "", steps.SourceOptimizer, "train.py:22 main", 59},
	"optimizers in a loop of their own": {func(j *eventtest.Job, _ int) {
		j.Pass(input, forward, backward)
		j.Mark(eventtest.Stepped)
		j.Mark(eventtest.Stepped)
	}, "", steps.SourceOptimizer, "train.py:22 main", 59},
	"calls in one line": {func(j *eventtest.Job, _ int) {
		const line = " /usr/lib/python3/site-packages/util/average.py:9:update /home/a/train.py:22:main"
		for range 40 {
			j.Pass(forward)
		}
		for range 29 {
			j.Pass(eventtest.Report + line)
			j.Pass(input)
		}
		j.Mark(eventtest.Stepped)
	}, "", steps.SourceOptimizer, "train.py:22 main", 59},
	"a loop of a thread with less than half": {func(j *eventtest.Job, _ int) {
		const thread, other = " /home/a/a.py:1:log", " /home/a/a.py:31:serve /home/a/a.py:30:main"
		j.Pass(eventtest.Report+" /home/a/a.py:5:write"+thread, eventtest.Report+" /home/a/a.py:6:write"+thread)
		n := len(j.Events)
		j.Pass(eventtest.Report+" /home/a/a.py:20:answer"+other, eventtest.Report+" /home/a/a.py:21:answer"+other,
			eventtest.Report+" /home/a/a.py:22:answer"+other)
		for i := range j.Events[n:] {
			j.Events[n+i].TID++
		}
	}, "", steps.SourcePeriod, "a.py:20 answer", 59},
	"a loader": {func(j *eventtest.Job, _ int) {
		j.Mark(eventtest.Loaded)
		j.Pass(input, forward)
	}, "", steps.SourceLoader, "train.py:19 main", 59},
	"a loader of training": {func(j *eventtest.Job, _ int) {
		j.Mark(eventtest.Loaded)
		j.Pass(input, forward, backward)
	}, "", steps.SourceBackward, "train.py:21 main", 59},
}

// serve answers requests with a model of some layers, in a loop within the loop of requests; each tenth one is logged, below a library.
func serve(layers int) func(*eventtest.Job, int) {
	const main = " /home/a/server.py:90:main"
	const answer = " /home/a/server.py:31:serve" + main
	return func(j *eventtest.Job, i int) {
		j.Pass(eventtest.Report + " /home/a/server.py:30:serve" + main)
		for range layers {
			j.Pass(eventtest.Report+" /home/a/net.py:5:attend /home/a/net.py:12:forward"+answer, eventtest.Report+" /home/a/net.py:13:forward"+
				answer)
		}
		j.Alloc("libc10.so!native", 1)
		j.Pass(eventtest.Report + " /home/a/net.py:14:forward" + answer)
		if i%10 == 9 {
			j.Pass(eventtest.Report + " /home/a/server.py:33:serve" + main)
		}
	}
}

func passes(stacks ...string) func(*eventtest.Job, int) {
	return func(j *eventtest.Job, _ int) { j.Pass(stacks...) }
}

// job is 60 steps.
func (p *program) job() *eventtest.Job {
	j := eventtest.NewJob()
	for i := range 60 {
		p.step(j, i)
	}
	return j
}

func find(t *testing.T, j *eventtest.Job, rules *steps.Rules) (*steps.Table, error) {
	t.Helper()
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	return steps.Find(trace, rules)
}

// TestSteps: by what steps are recognised, and how many there are.
func TestSteps(t *testing.T) {
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			got, err := find(t, p.job(), &steps.Rules{On: p.chosen})
			if p.source == "" && p.chosen != "" {
				require.ErrorIs(t, err, steps.ErrNoSuchStep)
				return
			}
			require.NoError(t, err)
			require.Equal(t, p.source, got.Source)
			require.Equal(t, p.count, got.Count())
			if p.on != "" {
				require.Equal(t, p.on, got.On)
			}
		})
	}
}

// TestLoaderOfTheBeginning: a loader that was used up does not count the steps of what comes behind it.
func TestLoaderOfTheBeginning(t *testing.T) {
	j := eventtest.NewJob()
	for i := range 60 {
		if i < 8 {
			j.Mark(eventtest.Loaded)
		}
		serve(7)(j, i)
	}
	got, err := find(t, j, nil)
	require.NoError(t, err)
	require.Equal(t, steps.SourcePeriod, got.Source)
	require.Equal(t, 59, got.Count())
	tracker, _ := track(j, nil)
	require.Equal(t, steps.SourcePeriod, tracker.Source())
}

// TestSearch: a search that has seen a replay needs none of its own, and what it saw of one that ended early counts for nothing.
func TestSearch(t *testing.T) {
	program := programs["optimizer"]
	j := program.job()
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	want, err := steps.Find(trace, nil)
	require.NoError(t, err)

	s := steps.NewSearch(trace, nil)
	require.False(t, s.Known())
	trace.Watch(s)
	require.NoError(t, trace.Replay())
	require.True(t, s.Known())
	got, err := s.Table()
	require.NoError(t, err)
	require.Equal(t, want, got)
	again, err := s.Table()
	require.NoError(t, err)
	require.Same(t, got, again)

	early := steps.NewSearch(trace, nil)
	for i := range j.Events[:len(j.Events)/2] {
		early.See(&j.Events[i])
	}
	require.False(t, early.Known())
	got, err = early.Table()
	require.NoError(t, err)
	require.Equal(t, want, got)

	none, err := view.NewTrace(&eventtest.NewJob().Stream, nil)
	require.NoError(t, err)
	got, err = steps.Find(none, nil)
	require.NoError(t, err)
	require.Equal(t, &steps.Table{}, got, "without events there are no steps")
}

func TestNoSuchStep(t *testing.T) {
	j := eventtest.NewJob()
	j.Pass(input)
	_, err := find(t, j, &steps.Rules{On: "train_step"})
	require.ErrorIs(t, err, steps.ErrNoSuchStep)
}

// TestTracker: while a program runs, the same steps are recognised as when it is over, from the first one on.
func TestTracker(t *testing.T) {
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			j := p.job()
			rules := &steps.Rules{On: p.chosen}
			want, err := find(t, j, rules)
			require.NoError(t, err)
			got, begins := track(j, rules)
			require.Equal(t, p.source, got.Source())
			if p.source == "" {
				require.Empty(t, begins)
				return
			}
			if p.source == steps.SourcePeriod { // which of two stacks that always come together is a matter of chance
				require.InDelta(t, p.count, len(begins), 1)
				return
			}
			require.Equal(t, want.On, got.On())
			first := begins[0].Step
			require.Equal(t, want.Last(), begins[len(begins)-1].Step)
			for i, b := range begins {
				require.Equal(t, first+i, b.Step)
				from, _, ok := want.Span(b.Step)
				require.True(t, ok)
				require.Equal(t, from, b.Time)
			}
			if got.Numbering() == 1 {
				require.Equal(t, 1, first)
			}
		})
	}
}

// TestTrackerLate: steps whose stacks are named late are counted too.
func TestTrackerLate(t *testing.T) {
	for name, p := range programs {
		if p.source == "" || p.source == steps.SourcePeriod {
			continue
		}
		t.Run(name, func(t *testing.T) {
			j, rules := p.job(), &steps.Rules{On: p.chosen}
			want, at := track(j, rules)
			now, late := 0, len(j.Events)/2
			tracker := steps.NewTracker(rules, func(id event.StackID) *event.Stack {
				if now < late {
					return nil
				}
				return j.Stream.Stack(id)
			})
			var begins []steps.Begin
			for ; now < len(j.Events); now++ {
				begins = tracker.See(&j.Events[now], begins)
			}
			require.Equal(t, want.Step(), tracker.Step())
			require.Equal(t, at[len(at)-1], begins[len(begins)-1])
		})
	}
	silent := programs["silent"]
	j := silent.job()
	tracker := steps.NewTracker(nil, func(event.StackID) *event.Stack { return nil })
	for i := range j.Events {
		require.Empty(t, tracker.See(&j.Events[i], nil))
	}
	require.Len(t, tracker.Complete(nil), 60, "they recur, named or not")
}

// track feeds a tracker the events of a job. The steps are those of the last numbering.
func track(j *eventtest.Job, rules *steps.Rules) (*steps.Tracker, []steps.Begin) {
	tracker := steps.NewTracker(rules, j.Stream.Stack)
	var begins []steps.Begin
	for i := range j.Events {
		before := tracker.Numbering()
		fresh := tracker.See(&j.Events[i], nil)
		if tracker.Numbering() != before {
			begins = nil
		}
		begins = append(begins, fresh...)
	}
	return tracker, begins
}

// TestTrackerChanges: what a step begins with is decided anew when there is something better, and when the program does something
// else from then on, but not for an evaluation.
func TestTrackerChanges(t *testing.T) {
	serve, train := passes(input, forward), passes(input, forward, backward)
	validate := func(j *eventtest.Job, _ int) {
		for range 300 {
			j.Pass(forward)
		}
	}
	step := func(j *eventtest.Job, i int) {
		train(j, i)
		j.Mark(eventtest.Stepped)
	}
	validateLoaded := func(j *eventtest.Job, _ int) {
		for range 10 {
			j.Mark(eventtest.Loaded)
			j.Pass(forward)
		}
	}
	tests := map[string]struct {
		do        []func(*eventtest.Job, int)
		source    steps.Source
		numbering int
	}{
		"training after a warm-up": {[]func(*eventtest.Job, int){serve, serve, serve, serve, train, train}, steps.SourceBackward, 2},
		"evaluations":              {[]func(*eventtest.Job, int){train, validate, train, validate, train}, steps.SourceBackward, 1},
		"another optimizer": {[]func(*eventtest.Job, int){passes(input, backward, adam), passes(input, backward, another)},
			steps.SourceOptimizer, 2},
		"an optimizer that is idle": {[]func(*eventtest.Job, int){passes(input, backward, adam), train}, steps.SourceBackward, 2},
		"evaluations by a loader":   {[]func(*eventtest.Job, int){step, validateLoaded, step}, steps.SourceOptimizer, 1},
		"training after a loader":   {[]func(*eventtest.Job, int){validateLoaded, step}, steps.SourceOptimizer, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := eventtest.NewJob()
			for _, do := range tt.do {
				for i := range 60 {
					do(j, i)
				}
			}
			got, begins := track(j, nil)
			require.Equal(t, tt.source, got.Source())
			require.Equal(t, tt.numbering, got.Numbering())
			require.Equal(t, got.Step(), begins[len(begins)-1].Step)
		})
	}
}

// TestLayers: what recurs before the first backward pass or optimizer step of a program, and within an optimizer, is no step.
func TestLayers(t *testing.T) {
	for name, end := range map[string][]string{"backward": {backward}, "optimizer": {backward, adam},
		"inference behind it": {backward, adam, forward}} {
		t.Run(name, func(t *testing.T) {
			j := eventtest.NewJob()
			for range 40 {
				j.Pass(input, forward)
			}
			j.Pass(end...)
			if name == "inference behind it" {
				j.Pass(input, forward, input, forward)
			}
			got, err := find(t, j, nil)
			require.NoError(t, err)
			require.Equal(t, name == "inference behind it", got.Source == steps.SourcePeriod, got.On)
		})
	}
}

// noted is a recording whose steps were noted from a later one on.
type noted struct {
	*eventtest.Stream
	steps *event.Steps
	cut   bool
}

func (n *noted) IsCut() bool { return n.cut }

// Annotations implements event.Replayable.
func (n *noted) Annotations() []event.Annotation {
	if n.steps == nil {
		return nil
	}
	steps := n.steps
	n.steps = nil
	return []event.Annotation{{Kind: event.AnnotationSteps, Steps: steps}}
}

// TestNotedLate: steps that were noted from a later one on are found anew where the recording has its beginning.
func TestNotedLate(t *testing.T) {
	program := programs["optimizer"]
	j := program.job()
	all, err := find(t, j, nil)
	require.NoError(t, err)
	from := all.Last() - 3
	var begins []uint64
	for i := from; i <= all.Last(); i++ {
		at, _, _ := all.Span(i)
		begins = append(begins, at)
	}
	for _, cut := range []bool{false, true} {
		require.NoError(t, j.Rewind())
		in := &noted{&j.Stream, &event.Steps{Numbering: 1, Source: string(all.Source), On: all.On, First: from, Begins: begins}, cut}
		trace, err := view.NewTrace(in, nil)
		require.NoError(t, err)
		require.Equal(t, cut, trace.IsCut())
		got, err := steps.Find(trace, nil)
		require.NoError(t, err)
		if want := all.First(); !cut {
			require.Equal(t, want, got.First())
			continue
		}
		require.Equal(t, from, got.First(), "their numbers are known from the note alone")
	}
}
