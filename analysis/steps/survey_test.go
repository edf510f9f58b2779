// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// entered is a candidate that was entered at each of some allocations.
func entered(source Source, at ...uint64) *candidate {
	c := &candidate{mark: mark{source: source}}
	for _, n := range at {
		c.enter(n, n*1000, 2)
	}
	return c
}

// every is n allocations, some apart.
func every(apart uint64, n int) []uint64 {
	var out []uint64
	for i := range n {
		out = append(out, apart*uint64(i+1))
	}
	return out
}

// TestEntries: of a candidate the first times are kept, the mean interval, and how irregular its entries are.
func TestEntries(t *testing.T) {
	c := entered(SourceBackward, 10, 20)
	require.Equal(t, []uint64{10_000, 20_000}, c.times)
	require.True(t, c.whole)
	require.True(t, math.IsInf(c.irregularity(), 1), "two entries have one interval")
	c.enter(30, 30_000, 2)
	require.Empty(t, c.times, "one is not kept, and the others are of no use then")
	require.False(t, c.whole)
	require.Equal(t, 3, c.entries)
	require.InDelta(t, 10, c.mean, 1e-12)
	require.Zero(t, c.irregularity())
	c.enter(40, 40_000, 9)
	require.Empty(t, c.times, "what is missing stays so")

	c = entered(SourceBackward, 10, 20, 40, 50) // intervals of 10, 20 and 10
	require.InDelta(t, 40.0/3, c.mean, 1e-9)
	require.InDelta(t, math.Sqrt(200.0/9)/(40.0/3), c.irregularity(), 1e-9, "the standard deviation, of the mean")
	require.True(t, math.IsInf(entered(SourceBackward, 5, 5, 5).irregularity(), 1), "without an allocation between them nothing is regular")
}

// TestBest: of a source the mark with the most entries is chosen, those of the program's own lines before others, and of two that alternate
// the first.
func TestBest(t *testing.T) {
	own := func(own bool, entries int) *candidate {
		c := entered(SourceOptimizer, every(10, entries)...)
		c.mark.own = own
		return c
	}
	for _, c := range []struct {
		what       string
		candidates []*candidate
		want       int
	}{
		{"none", nil, -1},
		{"entered twice", []*candidate{own(true, 2)}, -1},
		{"entered three times", []*candidate{own(true, 3)}, 0},
		{"of another source", []*candidate{entered(SourceBackward, every(10, 9)...)}, -1},
		{"two that alternate", []*candidate{own(true, 5), own(true, 6)}, 0},
		{"one entered more often", []*candidate{own(true, 5), own(true, 7)}, 1},
		{"one entered less often", []*candidate{own(true, 7), own(true, 5)}, 0},
		{"the program's own", []*candidate{own(false, 50), own(true, 3)}, 1},
		{"the program's own first", []*candidate{own(true, 3), own(false, 50)}, 0},
		{"of libraries", []*candidate{own(false, 3), own(false, 5)}, 1},
	} {
		got := (&survey{candidates: c.candidates}).best(SourceOptimizer)
		if c.want < 0 {
			require.Nil(t, got, c.what)
		} else {
			require.Same(t, c.candidates[c.want], got, c.what)
		}
	}
}

// TestThroughout: an optimizer stands for steps when it was stepped from about the first backward pass to about the last.
func TestThroughout(t *testing.T) {
	for _, c := range []struct {
		what               string
		backwards, entries int
		before, until      int
		throughout         bool
	}{
		{"a step for each pass", 10, 10, 1, 10, true},
		{"its first allocation comes late", 10, 10, 3, 10, true},
		{"later than that", 10, 10, 4, 10, false},
		{"its last one comes early", 10, 10, 1, 7, true},
		{"earlier than that", 10, 10, 1, 6, false},
		{"one step for four passes", 40, 10, 6, 34, true},
		{"later than that", 40, 10, 7, 34, false},
	} {
		o := &candidate{entries: c.entries, before: c.before, until: c.until}
		require.Equal(t, c.throughout, (&survey{backwards: c.backwards}).throughout(o), c.what)
	}
}

// TestSilent: a candidate is silent when it was not entered for sixteen of its intervals and 64 allocations more.
func TestSilent(t *testing.T) {
	c := entered(SourcePeriod, 10, 20, 30)
	for n, want := range map[uint64]bool{30: false, 30 + 16*10 + 64: false, 30 + 16*10 + 65: true} {
		require.Equal(t, want, (&survey{allocations: n}).silent(c), "at %d", n)
	}
}

// TestWithinStep: a recurrence that ended before the first optimizer steps of a young program is of its layers.
func TestWithinStep(t *testing.T) {
	layer := entered(SourcePeriod, every(1, 40)...)
	for _, c := range []struct {
		what string
		mark *candidate
		want bool
	}{
		{"a backward pass behind it", entered(SourceBackward, 41), true},
		{"two steps of an optimizer", entered(SourceOptimizer, 41, 82), true},
		{"three", entered(SourceOptimizer, 41, 82, 123), false},
		{"none yet", entered(SourceOptimizer), false},
		{"it goes on behind it", entered(SourceBackward, 40), false},
		{"a loader", entered(SourceLoader, 41), false},
	} {
		require.Equal(t, c.want, (&survey{candidates: []*candidate{c.mark}}).isWithinStep(layer), c.what)
	}
}

// TestChoose: an optimizer is chosen before a backward pass when it was stepped throughout, both before a loader,
// and a loader before what recurs unless it fell silent.
func TestChoose(t *testing.T) {
	optimizer, backward, loader := entered(SourceOptimizer, every(10, 5)...), entered(SourceBackward, every(10, 5)...),
		entered(SourceLoader, every(10, 5)...)
	optimizer.before, optimizer.until = 1, 5
	recurring := map[event.StackID]*candidate{1: entered(SourcePeriod, every(3, 9)...)}
	of := func(backwards int, allocations uint64, all ...*candidate) *candidate {
		s := newSurvey(marker{}, nil)
		s.candidates, s.backwards, s.allocations, s.recurring = all, backwards, allocations, recurring
		return s.choose()
	}
	require.Same(t, optimizer, of(5, 50, loader, backward, optimizer))
	require.Same(t, backward, of(50, 50, loader, backward, optimizer), "the optimizer was of the beginning")
	require.Same(t, optimizer, of(50, 50, loader, optimizer), "nothing else is left")
	require.Same(t, loader, of(0, 50, loader))
	require.Same(t, recurring[1], of(0, 1000, loader))
	recurring = nil
	require.Nil(t, of(0, 1000, loader))

	s := newSurvey(marker{chosen: "step"}, nil)
	s.candidates, s.backwards = []*candidate{optimizer, entered(SourceChosen, every(10, 3)...)}, 5
	require.Same(t, s.candidates[1], s.choose(), "what the user chose is the only one")
}

// TestAnchor: of the stacks that recur as often as most do, the most regular one is chosen; those that recur seldom or at random are not.
func TestAnchor(t *testing.T) {
	of := func(all ...*candidate) *survey {
		s := &survey{recurring: map[event.StackID]*candidate{}}
		for i, c := range all {
			c.mark.stack = event.StackID(i + 1)
			s.recurring[c.mark.stack] = c
		}
		return s
	}
	uneven := entered(SourcePeriod, 10, 20, 31, 40, 50, 60)
	random := entered(SourcePeriod, 1, 2, 60, 61, 62, 63)
	require.Nil(t, of().anchor())
	require.Nil(t, of(entered(SourcePeriod, every(10, 4)...)).anchor(), "four times")
	s := of(entered(SourcePeriod, every(10, 5)...))
	require.Same(t, s.recurring[1], s.anchor(), "five times")
	require.Nil(t, of(random).anchor())
	s = of(random, uneven, entered(SourcePeriod, every(10, 6)...), entered(SourcePeriod, every(10, 6)...))
	require.Same(t, s.recurring[3], s.anchor(), "of two that are the same the first stack")
	s = of(uneven, random)
	require.Same(t, s.recurring[1], s.anchor())
	s = of(entered(SourcePeriod, every(1, 90)...), uneven, entered(SourcePeriod, every(7, 7)...), entered(SourcePeriod, every(9, 5)...))
	require.Same(t, s.recurring[3], s.anchor(), "once more or less than most counts with them")
	s = of(entered(SourcePeriod, every(3, 9)...), entered(SourcePeriod, every(4, 10)...),
		entered(SourcePeriod, every(10, 5)...), entered(SourcePeriod, every(11, 6)...), entered(SourcePeriod, every(12, 7)...))
	require.Same(t, s.recurring[3], s.anchor(), "three of about six are more than two of about nine")
	s = of(entered(SourcePeriod, every(1, 20)...), entered(SourcePeriod, every(1, 9)...))
	require.Same(t, s.recurring[1], s.anchor(), "where as many recur often as seldom, often")
}

// loopOf is loops with lines of these entries, regular ones, each of a function of its own depth.
func loopOf(all uint64, places ...*place) *loops {
	l := newLoops(nil)
	l.all = all
	for i, p := range places {
		p.mark.place = uint64(i + 1)
		l.places[p.mark.place] = p
	}
	return l
}

func line(parent uint64, depth, entries int, within uint64) *place {
	c := *entered(SourcePeriod, every(10, entries)...)
	return &place{candidate: c, parent: parent, depth: depth, within: within}
}

// TestAround: the calls that lead to a loop are known if each was made once.
func TestAround(t *testing.T) {
	l := loopOf(100, line(0, 0, 1, 100), line(1, 1, 1, 100), line(2, 2, 30, 90))
	for i, function := range []string{"module", "main", "extract"} {
		l.places[uint64(i+1)].mark.function = function
	}
	var names []string
	for _, f := range l.around(&l.places[3].candidate) {
		names = append(names, f.Func)
	}
	require.Equal(t, []string{"module", "main", "extract"}, names)
	l.places[2].entries = 2
	require.Nil(t, l.around(&l.places[3].candidate), "an outer loop called it twice")
	require.Nil(t, l.around(&candidate{}))
}

// TestOuterLoop: the loop of a program is the outermost function whose lines are entered often, and have half of
// all allocations below them.
func TestOuterLoop(t *testing.T) {
	none := loopOf(0)
	require.Nil(t, none.outermost())
	require.Nil(t, loopOf(100, line(0, 0, 4, 100)).outermost(), "four iterations")
	l := loopOf(100, line(0, 0, 5, 50))
	require.Same(t, &l.places[1].candidate, l.outermost(), "five, and half of all")
	require.Nil(t, loopOf(101, line(0, 0, 5, 50)).outermost(), "less than half")
	l = loopOf(100, line(7, 1, 5, 30), line(7, 1, 9, 20), line(8, 2, 30, 49))
	require.Same(t, &l.places[2].candidate, l.loop(5), "the line of the function that is entered most often, and the lines count together")
	l = loopOf(100, line(7, 1, 6, 100), line(8, 2, 30, 90))
	require.Same(t, &l.places[2].candidate, l.outermost(), "a loop of few iterations may be one of epochs")
	l.places[1].candidate = line(7, 1, 20, 0).candidate
	require.Same(t, &l.places[1].candidate, l.outermost(), "twenty are many")
	l = loopOf(100, line(7, 1, 20, 60), line(8, 1, 25, 60))
	require.Same(t, &l.places[2].candidate, l.outermost(), "of two of the same depth the one with more entries")
	l = loopOf(100, line(7, 1, 20, 60), line(8, 1, 20, 60))
	l.places[1].mark.line, l.places[2].mark.line = 9, 8
	require.Same(t, &l.places[2].candidate, l.outermost(), "and of those with as many the first line")
	l = loopOf(100, line(7, 1, 30, 6), line(8, 1, 30, 40))
	require.Nil(t, l.outermost(), "no thread has half")
	l.places[1].first, l.first = true, 10
	require.Same(t, &l.places[1].candidate, l.outermost(), "the first thread, which starts those that make the most")
	l.first = 4
	require.Nil(t, l.outermost(), "it makes next to nothing")
	l = loopOf(100, line(7, 1, 5, 100))
	l.places[1].candidate = *entered(SourcePeriod, 1, 2, 60, 61, 62, 63)
	require.Nil(t, l.outermost(), "at random")
}

// TestOutsideLoop: a loop around the one that was found takes its place once it was entered often.
func TestOutsideLoop(t *testing.T) {
	l := loopOf(100, line(7, 1, 20, 100), line(8, 2, 60, 90), line(9, 1, 19, 5))
	require.Same(t, &l.places[1].candidate, l.outside(&l.places[2].candidate))
	require.Nil(t, l.outside(&l.places[1].candidate), "it is that itself")
	require.Nil(t, l.outside(&l.places[3].candidate), "of the same depth")
	require.Same(t, &l.places[1].candidate, l.outside(entered(SourcePeriod, 1)), "of what was no line any loop is")
	delete(l.places, 1)
	l.places[2].within = 10
	require.Nil(t, l.outside(&l.places[3].candidate), "there is none")
}

// TestPassesPlace: a stack passes a place when it was called from the same lines.
func TestPassesPlace(t *testing.T) {
	st := eventtest.Stack("lib.so!f /a.py:3:inner lib.so!g /a.py:2:outer /a.py:1:main")
	outer := placeOf(placeOf(0, &st.Frames[4]), &st.Frames[3])
	for at, want := range map[uint64]bool{placeOf(0, &st.Frames[4]): true, outer: true, placeOf(outer, &st.Frames[1]): true,
		placeOf(0, &st.Frames[3]): false} {
		require.Equal(t, want, passes(st, at))
	}
}

// TestForgetting: times of stacks are dropped when a choice was made; those of marks stay.
func TestForgetting(t *testing.T) {
	s := newSurvey(marker{}, nil)
	s.recurring[1], s.candidates = entered(SourcePeriod, 1, 2), []*candidate{entered(SourceBackward, 1, 2)}
	s.forgetStacks()
	require.Empty(t, s.recurring[1].times)
	require.Equal(t, 2, s.recurring[1].entries)
	require.Len(t, s.candidates[0].times, 2)
	s.loops.all = 5
	s.forgetRecurring()
	require.Empty(t, s.recurring)
	require.Zero(t, s.loops.all)
	require.Len(t, s.candidates, 1)
}

// TestSurveyCounts: only allocations count as such; what has no stack recurs in nothing.
func TestSurveyCounts(t *testing.T) {
	st := eventtest.Stack(eventtest.Kept)
	s := newSurvey(marker{}, func(event.StackID) *event.Stack { return st })
	s.keep, s.keepStacks = 9, 9
	see := func(kind event.Kind, layer event.Layer, stack event.StackID) int {
		_, recurs := s.see(&event.Event{Kind: kind, Layer: layer, Stack: stack, TID: 1})
		return len(recurs)
	}
	require.Zero(t, see(event.KindFree, event.LayerAllocator, 1))
	require.Zero(t, s.allocations)
	require.Zero(t, see(event.KindMark, event.LayerAllocator, 1))
	require.Zero(t, s.allocations)
	require.Zero(t, see(event.KindAlloc, event.LayerAllocator, 0))
	require.Equal(t, 2, see(event.KindAlloc, event.LayerDevice, 1), "a program without PyTorch")
	require.EqualValues(t, 2, s.allocations)
	require.Equal(t, 2, see(event.KindAlloc, event.LayerAllocator, 1), "a line and a stack")
	require.Equal(t, 1, s.recurring[1].entries, "what was before PyTorch is forgotten")
	require.Zero(t, see(event.KindAlloc, event.LayerDevice, 1))
	require.EqualValues(t, 4, s.allocations)
	s.marksOnly = true
	require.Zero(t, see(event.KindAlloc, event.LayerAllocator, 1))
	require.EqualValues(t, 5, s.allocations)
}

// TestTrackerOfDriver: a program without PyTorch has steps by what recurs among its own calls; with PyTorch's first allocation they are
// looked for anew.
func TestTrackerOfDriver(t *testing.T) {
	st := eventtest.Stack(eventtest.Kept)
	tr := NewTracker(nil, func(event.StackID) *event.Stack { return st })
	var began []Begin
	for i := range uint64(200) {
		for k := range event.StackID(2) {
			began = tr.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerDevice, Stack: 1 + k, TID: 1, Time: 1e6*i + uint64(k)}, began)
		}
	}
	require.Equal(t, SourcePeriod, tr.Source())
	require.Greater(t, len(began), 100)
	require.Equal(t, 1, tr.Numbering())
	tr.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Stack: 3, TID: 1, Time: 1e9}, nil)
	require.Empty(t, tr.Source())
}

// tracker is one that has chosen a mark.
func tracker(chosen *candidate, others ...*candidate) *Tracker {
	t := NewTracker(nil, func(event.StackID) *event.Stack { return nil })
	t.survey.candidates = others
	if chosen != nil {
		t.survey.candidates = append(t.survey.candidates, chosen)
	}
	t.chosen = chosen
	return t
}

// TestConsider: when a mark takes the place of the one that is chosen.
func TestConsider(t *testing.T) {
	mark := func(source Source, n int) *candidate { return entered(source, every(10, n)...) }
	t.Run("the first marks", func(t *testing.T) {
		for n, want := range map[int]bool{4: false, 5: true} {
			c := mark(SourceBackward, n)
			tr := tracker(nil, c)
			tr.consider(c)
			require.Equal(t, want, tr.chosen == c, "%d entries", n)
			require.Equal(t, want, tr.survey.marksOnly)
		}
		for n, want := range map[int]bool{2: false, 3: true} {
			c := mark(SourceChosen, n)
			tr := tracker(nil, c)
			tr.survey.chosen = "step"
			tr.consider(c)
			require.Equal(t, want, tr.chosen == c, "%d entries of what the user chose", n)
		}
	})
	t.Run("behind what recurs", func(t *testing.T) {
		c := mark(SourceBackward, 5)
		tr := tracker(mark(SourcePeriod, 9), c)
		tr.consider(c)
		require.Same(t, c, tr.chosen)
	})
	t.Run("an optimizer of several passes", func(t *testing.T) {
		for n, want := range map[int]bool{2: false, 3: true} {
			c := mark(SourceOptimizer, n)
			c.before, c.until = 1, 10
			tr := tracker(mark(SourceBackward, 10), c)
			tr.survey.backwards = 10
			tr.consider(c)
			require.Equal(t, want, tr.chosen == c, "%d entries", n)
		}
		c := mark(SourceOptimizer, 10)
		c.before, c.until = 1, 10
		tr := tracker(mark(SourceBackward, 90), c)
		tr.survey.backwards = 90
		tr.consider(c)
		require.NotSame(t, c, tr.chosen, "it was of the beginning")
	})
}

// TestConsiderAnother: what happens when marks are entered without the one that is chosen.
func TestConsiderAnother(t *testing.T) {
	mark := func(source Source, n int) *candidate { return entered(source, every(10, n)...) }
	t.Run("another one alone", func(t *testing.T) {
		old, c := mark(SourceOptimizer, 5), mark(SourceOptimizer, 5)
		tr := tracker(old, c)
		for range otherEntries - 1 {
			tr.consider(c)
		}
		require.Same(t, old, tr.chosen)
		tr.consider(old)
		require.Zero(t, c.alone, "it is not alone")
		for range otherEntries - 1 {
			tr.consider(c)
		}
		require.Same(t, old, tr.chosen)
		tr.consider(c)
		require.Same(t, c, tr.chosen)
	})
	t.Run("a loader of an evaluation", func(t *testing.T) {
		old, c := mark(SourceOptimizer, 5), mark(SourceLoader, 5)
		tr := tracker(old, c)
		for range 5 * otherEntries {
			tr.consider(c)
		}
		require.Same(t, old, tr.chosen)
	})
	t.Run("backward passes without an optimizer", func(t *testing.T) {
		old, c := mark(SourceOptimizer, 5), mark(SourceBackward, 5)
		tr := tracker(old, c)
		require.Equal(t, otherEntries, tr.others(old, mark(SourceOptimizer, 1)))
		tr.survey.backwards = 20 // four of a step
		require.Equal(t, 5*otherEntries, tr.others(old, c))
		tr.survey.backwards = 4
		require.Equal(t, otherEntries, tr.others(old, c))
		old.entries = 0
		require.Equal(t, 5*otherEntries, tr.others(old, c))
	})
}

// TestLookFor: what recurs is looked for after 64 allocations, and again after an eighth of all; one that fell
// silent is given up, for longer each time, and a loop around one that was found takes its place.
func TestLookFor(t *testing.T) {
	with := func(allocations uint64, chosen *candidate) *Tracker {
		tr := tracker(chosen)
		tr.survey.allocations = allocations
		tr.survey.recurring[1] = entered(SourcePeriod, every(10, 6)...)
		return tr
	}
	tr := with(lookAfter-1, nil)
	tr.lookFor()
	require.Nil(t, tr.chosen, "too early")
	tr = with(lookAfter, nil)
	tr.lookFor()
	require.Same(t, tr.survey.recurring[1], tr.chosen)
	require.False(t, tr.survey.marksOnly, "marks are looked for, and what recurs")
	require.EqualValues(t, 2*lookAfter, tr.next)
	tr = with(8000, nil)
	tr.since = 800
	tr.lookFor()
	require.EqualValues(t, 8900, tr.next, "an eighth of those since")
	tr = with(lookAfter, nil)
	tr.survey.chosen = "step"
	tr.lookFor()
	require.Nil(t, tr.chosen, "only what the user chose is looked for")

	old := entered(SourceLoader, 10, 20, 30)
	tr = with(30+160+64, old)
	tr.lookFor()
	require.Same(t, old, tr.chosen)
	tr.next = 0
	tr.survey.allocations++
	tr.lookFor()
	require.Nil(t, tr.chosen, "it fell silent")
	require.Empty(t, tr.survey.recurring)
	require.EqualValues(t, 2*lookAfter, tr.wait)
	require.EqualValues(t, 255, tr.since)
	require.EqualValues(t, 255+2*lookAfter, tr.next)

	inner := line(8, 2, 60, 90)
	for source, want := range map[Source]bool{SourcePeriod: true, SourceBackward: false} {
		l := loopOf(100, line(7, 1, 20, 100), inner)
		inner.mark.source = source
		tr = with(600, &inner.candidate)
		tr.survey.loops = l
		tr.lookFor()
		require.Equal(t, want, tr.chosen == &l.places[1].candidate, source)
	}
}

// TestBegin: with a choice all steps begin of which the times are kept, or the one that begins now.
func TestBegin(t *testing.T) {
	c := entered(SourceBackward, 10, 20)
	tr := tracker(c)
	require.Equal(t, []Begin{{1, 10_000}, {2, 20_000}}, tr.begin(&event.Event{Time: 25_000}, nil))
	require.Equal(t, []int{1, 2}, []int{tr.Numbering(), tr.Since()})
	c.enter(30, 30_000, 2)
	require.Equal(t, []Begin{{3, 35_000}}, tr.begin(&event.Event{Time: 35_000}, nil))
	require.Equal(t, []int{2, 3}, []int{tr.Numbering(), tr.Since()})
	require.Equal(t, 3, tr.Step())
	require.Equal(t, SourceBackward, tr.Source())

	none := tracker(nil)
	require.Zero(t, none.Step())
	require.Empty(t, none.Source())
	require.Empty(t, none.On())
	none.choose(nil)
	require.Nil(t, none.chosen)
}

// TestWaiting: events wait for the names of their stacks, in their order, and no more than a number of them.
func TestWaiting(t *testing.T) {
	known := map[event.StackID]*event.Stack{}
	tr := NewTracker(nil, func(id event.StackID) *event.Stack { return known[id] })
	see := func(stack event.StackID) {
		tr.See(&event.Event{Kind: event.KindAlloc, Layer: event.LayerAllocator, Stack: stack, TID: 1}, nil)
	}
	see(0)
	require.EqualValues(t, 1, tr.survey.allocations, "without a stack nothing is waited for")
	see(1)
	see(2)
	tr.See(&event.Event{Kind: event.KindFree, Layer: event.LayerAllocator, Stack: 2}, nil)
	require.Len(t, tr.late, 2)
	require.EqualValues(t, 1, tr.survey.allocations)
	known[2] = eventtest.Stack(eventtest.Kept)
	see(2)
	require.Len(t, tr.late, 3, "the first one is not named yet")
	known[1] = known[2]
	see(2)
	require.Empty(t, tr.late)
	require.EqualValues(t, 5, tr.survey.allocations)
	see(3)
	see(1)
	tr.catchUp(nil, 1)
	require.Len(t, tr.late, 0, "one too many, and then its name is known")
	see(3)
	require.Len(t, tr.late, 1)
	tr.Complete(nil)
	require.Empty(t, tr.late)
}

// TestSetLibrary: files that turn out to be of a library are not the program's own from then on.
func TestSetLibrary(t *testing.T) {
	tr := NewTracker(nil, func(event.StackID) *event.Stack {
		return eventtest.Stack("/opt/lib/loop.py:3:run /home/a/train.py:9:main")
	})
	tr.chosen = &candidate{mark: mark{source: SourcePeriod, stack: 1}}
	require.Equal(t, "loop.py:3 run", tr.On())
	tr.SetLibrary([]string{"/opt/lib/"})
	require.Equal(t, "train.py:9 main", tr.On())
	require.Equal(t, []string{"/opt/lib/"}, tr.survey.library)
}
