// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/internal/varpath"
)

func emptyView() *view.View { return view.New(&heap.Snapshot{}, nil, nil) }

// rowsOf is the rows of entries, without a trace.
func rowsOf(in *Input, entries ...view.Row) (rows []Row, rest []Sum, total int64) {
	in.View = emptyView()
	g := newGrouping(in)
	g.group(entries)
	return g.rows()
}

// entry is an entry of a line of a.py without a holder.
func entry(line int, bytes int64) view.Row {
	return view.Row{Name: fmt.Sprintf("a.py:%d", line), File: "/a.py", Line: line, Layer: "torch", Holder: view.NoHolder, Bytes: bytes,
		Blocks: 1}
}

// TestGrowth: the rates of the devices' findings add up, the device that is full first is named with what it has
// left, and the growth begins with the earliest step. Host memory fills no device.
func TestGrowth(t *testing.T) {
	first, second := event.Device{Type: event.DeviceCUDA}, event.Device{Type: event.DeviceCUDA, Index: 1}
	report := &leaks.Report{
		Verdict: leaks.Growing, Steps: leaks.Steps{Period: 2e9},
		Findings: []leaks.Finding{
			{Layer: event.LayerHost, Bytes: 1e6, First: 1, Seconds: 1},
			{Layer: event.LayerAllocator, Device: first, Bytes: 100, First: 7, Seconds: 50},
			{Layer: event.LayerAllocator, Device: second, Bytes: 40, First: 3, Seconds: 20},
			{Layer: event.LayerDevice, Device: first, Bytes: 10, First: 9, Seconds: 70},
		},
	}
	in := &Input{
		View: emptyView(), Now: emptyView(), Leaks: report, Free: map[event.Device]uint64{first: 5000, second: 800},
		Begin: func(step int) (uint64, bool) { return uint64(1000 + step), true },
	}
	a := New(in)
	require.True(t, a.Growing())
	require.InDelta(t, 75, a.Rate, 1e-9)
	require.InDelta(t, 20, a.Seconds, 0)
	require.EqualValues(t, 800, a.Left)
	require.EqualValues(t, 1003, a.Since)

	in.Begin = nil
	require.Zero(t, New(in).Since, "nobody knows when steps began")
	in.Begin = func(int) (uint64, bool) { t.Error("no finding is of a device"); return 1, true }
	report.Findings = report.Findings[:1]
	a = New(in)
	require.Zero(t, a.Since)
	require.Zero(t, a.Rate)
	require.True(t, math.IsNaN(a.Seconds))

	report.Verdict = leaks.Steady
	report.Findings = []leaks.Finding{{Layer: event.LayerAllocator, Bytes: 5, First: 2, Seconds: 3}}
	a = New(in)
	require.False(t, a.Growing())
	require.Zero(t, a.Rate, "what does not grow has no rate")
	require.True(t, math.IsNaN(a.Seconds))
	in.Leaks = nil
	require.False(t, New(in).Growing(), "not judged")
}

// TestRate: a finding grows by its bytes in each step; without the length of a step no rate is known.
func TestRate(t *testing.T) {
	f := &leaks.Finding{Bytes: 512}
	require.InDelta(t, 1024, Rate(f, &leaks.Steps{Period: 5e8}), 1e-9)
	require.InDelta(t, 5.12e11, Rate(f, &leaks.Steps{Period: 1}), 1)
	require.Zero(t, Rate(f, &leaks.Steps{}))
}

// TestNewTakesOver: the moment, the case, the devices and the course are those that were given.
func TestNewTakesOver(t *testing.T) {
	in := &Input{
		View: emptyView(), Now: emptyView(), When: AtFailure, Time: 77, OOM: &oom.Report{Cases: []oom.Case{{}}},
		Course: &Course{Between: 1, High: 2, First: 3, Last: 4, Exit: 5},
	}
	a := New(in)
	require.Equal(t, AtFailure, a.When)
	require.EqualValues(t, 77, a.Time)
	require.Equal(t, in.OOM.Main(), a.Case)
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, []uint64{a.Between, a.High, a.First, a.Last, a.Exit})
	in.OOM, in.Course = nil, nil
	a = New(in)
	require.Nil(t, a.Case)
	require.Zero(t, a.Between)
}

// TestShownRows: at most five rows of at least a twentieth of all memory are shown, the largest first; the other bytes are in the rest.
func TestShownRows(t *testing.T) {
	rows, rest, total := rowsOf(&Input{}, entry(1, 50), entry(2, 49), entry(3, 901))
	require.EqualValues(t, 1000, total)
	require.Equal(t, []int64{901, 50}, []int64{rows[0].Bytes, rows[1].Bytes}, "a twentieth is shown, and less is not")
	require.Len(t, rows, 2)
	require.Equal(t, []Sum{{"other", 49}}, rest)
	require.InDelta(t, 0.901, rows[0].Share, 1e-12)
	require.InDelta(t, 0.05, rows[1].Share, 1e-12)
	require.EqualValues(t, 1, rows[0].Blocks)

	rows, rest, _ = rowsOf(&Input{}, entry(1, 10), entry(2, 60), entry(3, 20), entry(4, 50), entry(5, 40), entry(6, 30))
	require.Len(t, rows, 5)
	require.EqualValues(t, 20, rows[4].Bytes)
	require.Equal(t, []Sum{{"other", 10}}, rest)

	rows, _, _ = rowsOf(&Input{}, entry(2, 10), entry(1, 10))
	require.Equal(t, "a.py:1", rows[0].Lines[0].Name, "equal ones are in the order of their names")

	rows, rest, total = rowsOf(&Input{}, entry(1, 0))
	require.Zero(t, total)
	require.Len(t, rows, 1)
	require.Zero(t, rows[0].Share, "nothing has no shares")
	require.Empty(t, rest)
}

// TestGrowingRowsAreFirst: where something grows, only that has rows, three at most, the fastest first.
func TestGrowingRowsAreFirst(t *testing.T) {
	report := &leaks.Report{Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}}
	var entries []view.Row
	for i := range 5 {
		line := i + 1
		report.Findings = append(report.Findings, leaks.Finding{
			Layer: event.LayerAllocator, File: "/a.py", Line: line, Function: "f", Stacks: []event.StackID{event.StackID(line)},
			Bytes: float64(10 * line), First: 1, Last: 9,
		})
		e := entry(line, int64(100-line))
		e.StackID = event.StackID(line)
		entries = append(entries, e)
	}
	entries = append(entries, entry(9, 5000))
	rows, rest, _ := rowsOf(&Input{Leaks: report}, entries...)
	require.Len(t, rows, 3)
	for i, r := range rows {
		require.EqualValues(t, 95+i, r.Bytes)
		require.InDelta(t, 50-10*i, r.Rate, 1e-9)
		require.Equal(t, &report.Findings[4-i], r.Finding)
		require.EqualValues(t, 95+i, r.Inferred, "no holder was read")
	}
	require.Equal(t, []Sum{{"other", 5000}, {"growing too", 99 + 98}}, rest)
}

// TestFindingsOfOneHolder: lines whose memory one variable holds are one row, which grows by all of them and is
// named by the fastest, the first of equal ones.
func TestFindingsOfOneHolder(t *testing.T) {
	report := &leaks.Report{Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}}
	var entries []view.Row
	for i, bytes := range []float64{3, 7, 7} {
		id := event.StackID(i + 1)
		report.Findings = append(report.Findings, leaks.Finding{Layer: event.LayerAllocator, Holder: "kept", Stacks: []event.StackID{id},
			Bytes: bytes})
		e := entry(i+1, 10)
		e.StackID = id
		entries = append(entries, e)
	}
	rows, _, _ := rowsOf(&Input{Leaks: report}, entries...)
	require.Len(t, rows, 1)
	require.Same(t, &report.Findings[1], rows[0].Finding)
	require.InDelta(t, 17, rows[0].Rate, 1e-9)
	require.Len(t, rows[0].Lines, 3)
}

// TestFindingOfEntry: an entry grows with a finding of its stack, unless it is host memory or another variable holds it. What was allocated
// before the attach grows with what lies beside it in the same container.
func TestFindingOfEntry(t *testing.T) {
	report := &leaks.Report{Findings: []leaks.Finding{
		{Layer: event.LayerDevice, Stacks: []event.StackID{1}, Holder: "kept[0..9]"},
		{Layer: event.LayerAllocator, Stacks: []event.StackID{1, 2}, Holder: "kept[0..9]"},
		{Layer: event.LayerAllocator, Stacks: []event.StackID{4}},
	}}
	g := newGrouping(&Input{View: emptyView(), Leaks: report})
	before := func(category string) view.Row {
		return view.Row{Name: stacks.BeforeAttach, Layer: "torch", Category: category}
	}
	for _, c := range []struct {
		what   string
		entry  view.Row
		holder string
		want   int // -1: none
	}{
		{"the first of two", view.Row{StackID: 1}, "", 0},
		{"only the second has the stack", view.Row{StackID: 2}, "", 1},
		{"more of the same list", view.Row{StackID: 2}, "kept[0..4]", 1},
		{"another variable", view.Row{StackID: 2}, "other", -1},
		{"another stack", view.Row{StackID: 3}, "", -1},
		{"host memory", view.Row{StackID: 2, Layer: "host"}, "", -1},
		{"a finding without a holder", view.Row{StackID: 4}, "anything", 2},
		{"before the attach, in the list", before(""), "kept[3]", 1},
		{"before the attach, of an element", before(""), "kept[3].grad", 1},
		{"before the attach, held by nothing known", before(""), "", -1},
		{"before the attach, parameters", before("parameters"), "kept[3]", 1},
	} {
		got := g.finding(&c.entry, c.holder)
		if c.want < 0 {
			require.Nil(t, got, c.what)
		} else {
			require.Same(t, &report.Findings[c.want], got, c.what)
		}
	}
	g.leaks = nil
	require.Nil(t, g.finding(&view.Row{StackID: 1}, ""), "not judged")
}

// TestGrowthBeforeFailure: the rows of a failure that the program survived are judged by what was before it.
func TestGrowthBeforeFailure(t *testing.T) {
	in := &Input{View: emptyView()}
	before := &leaks.Report{Findings: []leaks.Finding{{Holder: "kept[0..9]"}}}
	in.Leaks, in.Before = &leaks.Report{}, before
	for when, want := range map[When]*leaks.Report{AtFailure: before, AtEnd: in.Leaks, AtPeak: in.Leaks} {
		in.When = when
		require.Same(t, want, newGrouping(in).leaks)
	}
	in.When, in.Before = AtFailure, nil
	require.Same(t, in.Leaks, newGrouping(in).leaks, "it ended the program")
}

// TestSameHolder: readings of a container at different moments name the same thing; elements of elements are another.
func TestSameHolder(t *testing.T) {
	for _, c := range []struct {
		x, y           string
		same, elements bool
	}{
		{"kept", "kept", true, true},
		{"kept[0..24]", "kept[0..99]", true, true},
		{"kept[3]", "kept[*]", true, true},
		{"kept[3].grad", "kept[4].grad", true, true},
		{"kept[3]", "kept[3].grad", true, false},
		{"kept[3].grad", "kept[0..9]", true, true},
		{"kept['a']", "kept['b']", true, true},
		{"diag.attn[0..7]['q', 'k'][0..49]", "diag.attn[0..3][2 keys]", true, true},
		{"a.py:8 f() local kept[0]", "a.py:9 f() local kept[0..9]", true, true},
		{"a.py:8 f() local kept[0]", "a.py:8 g() local kept[0..9]", false, false},
		{"net.body.weight", "net.heads['a'..'b'].weight", false, false},
		{"net.layers[0..3].q.lora_A['x'].weight", "net.layers[0..1]…lora_A[2 keys].weight", true, true},
		{"kept", "lost", false, false},
		{"", "kept", false, false},
		{"kept", "", false, false},
		{"", "", true, false},
	} {
		require.Equal(t, c.same, varpath.Same(c.x, c.y), "%q and %q", c.x, c.y)
		require.Equal(t, c.elements, varpath.Within(c.x, c.y), "elements: %q and %q", c.x, c.y)
	}
}

// readOf is a scan that found as few bytes of each site as can be.
func readOf(holders map[string]string) *view.Read {
	out := &view.Read{}
	for site, holder := range holders {
		out.Set(view.SiteCall{Site: site}, view.ReadHolder{Holder: holder})
	}
	return out
}

// TestRowOf: entries are put together by what is known of them: what they are for, who holds them, else their line.
func TestRowOf(t *testing.T) {
	held := func(e view.Row, holder string) view.Row { e.Holder = holder; return e }
	of := func(e view.Row, category phases.Category) view.Row { e.Category = string(category); return e }
	optimizer := func(e view.Row) view.Row { return of(e, phases.OptimizerState) }
	rows, rest, _ := rowsOf(&Input{Read: readOf(map[string]string{"a.py:8": "cache", "a.py:9 g": "other"})},
		held(entry(1, 300), "model"), held(of(entry(2, 30), phases.Activations), "model"), // one holder, for several things
		optimizer(held(entry(3, 200), "opt.a")), optimizer(held(entry(4, 201), "opt.b")), optimizer(held(entry(5, 900), view.HolderFreed)),
		optimizer(entry(5, 901)),
		entry(8, 700), // as was read before
		held(entry(9, 600), view.HolderFreed), entry(9, 60), of(entry(9, 6), phases.Activations),
		view.Row{Name: "a.py:9", Func: "g", Holder: view.NoHolder, Bytes: 2},
	)
	require.Len(t, rows, 4)
	require.Equal(t, []int64{2202, 700, 660, 330}, []int64{rows[0].Bytes, rows[1].Bytes, rows[2].Bytes, rows[3].Bytes})
	require.Equal(t, []string{"opt.b", "cache", "", "model"}, []string{rows[0].Holder, rows[1].Holder, rows[2].Holder, rows[3].Holder})
	require.Equal(t, []bool{true, false, false, false}, []bool{rows[0].Named, rows[1].Named, rows[2].Named, rows[3].Named})
	require.Equal(t, []uint64{0, 700, 0, 0}, []uint64{rows[0].Inferred, rows[1].Inferred, rows[2].Inferred, rows[3].Inferred})
	require.Equal(t, phases.OptimizerState, rows[0].Category)
	require.Equal(t, phases.NoCategory, rows[3].Category, "of several things")
	require.EqualValues(t, 4, rows[0].Blocks)
	require.Equal(t, []Sum{{"activations", 6}, {"other", 2}}, rest)
}

// TestPurpose: what the rest is called.
func TestPurpose(t *testing.T) {
	for want, m := range map[string]group{
		"growing too":     {Row: Row{Finding: &leaks.Finding{}, Category: phases.Parameters}, members: []view.Row{{}}},
		"optimizer state": {Row: Row{Category: phases.OptimizerState}, members: []view.Row{{Layer: "device"}}},
		"outside PyTorch": {Row: Row{Category: phases.NoCategory}, members: []view.Row{{Layer: "device", Name: "[before attach]"}}},
		"before attach":   {Row: Row{Category: phases.NoCategory}, members: []view.Row{{Layer: "torch", Name: "[before attach]"}}},
		"other": {Row: Row{Category: phases.NoCategory}, members: []view.Row{{Layer: "torch", Name: "[x] a.py:3", File: "a.py"},
			{Layer: "device"}}},
	} {
		require.Equal(t, want, (&grouping{in: &Input{}}).purpose(&m))
	}
	require.Equal(t, "other", (&grouping{in: &Input{}}).purpose(&group{Row: Row{Category: phases.NoCategory},
		members: []view.Row{{Name: "libfoo.so!foo"}}}))
}

// TestLinesOfRow: what a line calls is shown where it has more than three tenths of all memory; of what grows one call is, and what was
// allocated before the attach comes last, however much it is.
func TestLinesOfRow(t *testing.T) {
	call := func(line int) string {
		return eventtest.Report + fmt.Sprintf(" /usr/lib/python3/site-packages/lib/b.py:%d:f /home/a/train.py:1:main", line)
	}
	job := func(kept uint64) *eventtest.Job {
		j := eventtest.NewJob()
		j.Alloc(call(1), 2<<20)
		j.Alloc(call(2), 1<<20)
		j.Alloc(eventtest.Kept, kept)
		return j
	}
	lines := func(kept uint64, report *leaks.Report, more ...view.Row) []view.Row {
		trace, err := view.NewTrace(&job(kept).Stream, nil)
		require.NoError(t, err)
		g := newGrouping(&Input{View: trace.End(), Leaks: report})
		for i := range more {
			g.add(&more[i], false)
		}
		rows, _, _ := g.rows()
		for _, r := range rows {
			for _, l := range r.Lines {
				if l.Name == "train.py:1" {
					return r.Lines
				}
			}
		}
		require.Fail(t, "the line has no row", "%+v", rows)
		return nil
	}
	require.Empty(t, lines(7<<20, nil)[0].Inner, "three tenths exactly")
	require.Len(t, lines(6<<20, nil)[0].Inner, 2)

	j := job(6 << 20)
	report := &leaks.Report{Findings: []leaks.Finding{{
		Layer: event.LayerAllocator, Holder: "kept", Bytes: 1, First: 1, Last: 2, Stacks: []event.StackID{j.ID(call(1)), j.ID(call(2))},
	}}}
	got := lines(6<<20, report, view.Row{Name: stacks.BeforeAttach, Layer: "torch", Holder: "kept", Bytes: 5 << 20})
	require.Len(t, got, 2)
	require.Equal(t, []string{"train.py:1", stacks.BeforeAttach}, []string{got[0].Name, got[1].Name})
	require.Len(t, got[0].Inner, 1)
	require.EqualValues(t, 2<<20, got[0].Inner[0].Bytes)
}

// TestAnswerPeak: the peak is never below what is in use now.
func TestAnswerPeak(t *testing.T) {
	j := eventtest.NewJob()
	j.Free(j.Alloc(eventtest.Kept, 4<<20))
	j.Alloc(eventtest.Kept, 1<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	a := New(&Input{View: trace.End(), Now: trace.End()})
	require.EqualValues(t, 1<<20, a.Now)
	require.EqualValues(t, 4<<20, a.Peak)
	require.EqualValues(t, 1e6, a.PeakTime)
}

// TestUnreadIsNotSteady: where something grows, memory from before the attach that no reading names has a name of its own; what a variable
// holds does not. A row has as many lines as there are, and "[before attach]" is none.
func TestUnreadIsNotSteady(t *testing.T) {
	old, held := entry(0, 300), entry(0, 200)
	old.Name, old.File, held.Name, held.File = stacks.BeforeAttach, "", stacks.BeforeAttach, ""
	held.Holder = "index"
	_, rest, _ := rowsOf(&Input{Leaks: &leaks.Report{}}, entry(1, 9500), old)
	require.Equal(t, []Sum{{"before attach", 300}}, rest, "nothing grows")

	report := &leaks.Report{Verdict: leaks.Growing,
		Findings: []leaks.Finding{{Layer: event.LayerAllocator, File: "/a.py", Line: 1, Stacks: []event.StackID{1}, Bytes: 10,
			Holder: "kept[0..9]"}}}
	grows, older, other := entry(1, 100), entry(0, 50), entry(2, 10)
	grows.StackID, other.StackID = 1, 1
	older.Name, older.File, older.Holder = stacks.BeforeAttach, "", "kept[0..9]"
	rows, rest, _ := rowsOf(&Input{Leaks: report}, grows, older, old, held)
	require.Equal(t, []Sum{{Unread, 300}, {"index", 200}}, rest)
	require.EqualValues(t, 150, rows[0].Bytes)
	require.Len(t, rows[0].Lines, 2)
	require.Zero(t, rows[0].MoreLines())
	rows, _, _ = rowsOf(&Input{Leaks: report}, grows, other, older)
	require.Equal(t, 1, rows[0].MoreLines())
}

// TestGrowingLineIsNotSteady: what something else holds of a line that grows belongs to what grows, as far as the line has grown.
func TestGrowingLineIsNotSteady(t *testing.T) {
	report := &leaks.Report{Verdict: leaks.Growing,
		Findings: []leaks.Finding{{Layer: event.LayerAllocator, File: "/a.py", Line: 1, Stacks: []event.StackID{1}, Bytes: 10,
			Holder: "kept[0..9]",
			Grown:  150}}}
	grows, graph, step := entry(1, 100), entry(1, 50), entry(1, 10)
	grows.Holder, graph.Holder, step.Holder = "kept[0..9]", "C++ ReluBackward0", "output"
	for i, e := range []*view.Row{&grows, &graph, &step} {
		e.StackID, e.Category = 1, []string{"", "activations", "activations"}[i]
	}
	rows, rest, _ := rowsOf(&Input{Leaks: report}, grows, graph, step)
	require.Len(t, rows, 1)
	require.EqualValues(t, 150, rows[0].Bytes)
	require.Equal(t, []Sum{{"activations", 10}}, rest)
}

// TestGarbage: garbage is for nothing, is inferred of a line whose other blocks are garbage, and is said if it is much.
func TestGarbage(t *testing.T) {
	const mib = 1 << 20
	old, newer, other := entry(1, 40*mib), entry(1, 20*mib), entry(2, 30*mib)
	old.Holder, old.Category, newer.Category = "garbage Linear.*", "parameters", "parameters"
	garbageOf := func(in *Input, entries ...view.Row) *Garbage {
		in.View = emptyView()
		g, a := newGrouping(in), &Answer{Leaks: in.Leaks}
		entries = g.split(entries)
		for i := range entries {
			g.add(&entries[i], g.guessed[i])
		}
		a.Rows, a.Rest, a.Total = g.rows()
		return a.garbageOf(g, in)
	}
	in := &Input{When: AtPeak, Read: readOf(map[string]string{"a.py:1": "garbage Linear.*", "a.py:2": "model"})}
	got := garbageOf(in, old, newer, other)
	require.Equal(t, &Garbage{
		Bytes: 60 * mib, Total: 90 * mib, About: true, Holder: "garbage Linear.*",
		Advice: "Linear is garbage in a cycle of references: call gc.collect(), or break the cycle",
	}, got)
	rows, _, _ := rowsOf(in, old, newer, other)
	require.Equal(t, []string{"garbage Linear.*", ""}, []string{rows[0].Holder, rows[1].Holder})
	require.Equal(t, phases.NoCategory, rows[0].Category)
	in.Read = nil
	in.Facts = map[string]advice.Facts{"garbage Linear.*": {Cycle: "Linear.hook"}}
	got = garbageOf(in, old, newer, other)
	require.EqualValues(t, 40*mib, got.Bytes)
	require.False(t, got.About)
	require.Contains(t, got.Advice, "Linear.hook leads back")
	in.Leaks = &leaks.Report{Verdict: leaks.Growing, Findings: []leaks.Finding{{Layer: event.LayerAllocator, Holder: "garbage Linear.*"}}}
	require.Nil(t, garbageOf(in, old), "the finding says it")
	in.Leaks = nil
	old.Bytes = 9 * mib
	require.Nil(t, garbageOf(in, old, other), "a small part")
	old.Bytes = mib - 1
	require.Nil(t, garbageOf(in, old), "little")
}

// TestGarbageOfLine: what is newer than the reading of a line that allocates garbage, or was freed by the end, is
// garbage but for what else is held of the line, at the end as at a peak, and where little is left of it the
// reading counts that found the most.
func TestGarbageOfLine(t *testing.T) {
	const mib = 1 << 20
	line := figures.GarbageLine{Site: "a.py:1", Holder: "garbage Linear.*", Bytes: 20 * mib, Kept: 4 * mib}
	read := &figures.Garbage{Time: 5, Bytes: 20 * mib, Total: 24 * mib, Holder: "garbage Linear.*", Cycle: "Linear.hook",
		Lines: []figures.GarbageLine{line}}
	newer, freed, held, older := entry(1, 30*mib), entry(1, 10*mib), entry(1, 3*mib), entry(1, 20*mib)
	newer.Blocks, newer.Category, freed.Category, held.Category = 30, "parameters", "gradients", "parameters"
	freed.Holder, held.Holder, older.Holder = view.HolderFreed, "net", "garbage Linear.*"
	other := entry(2, 5*mib)
	answerOf := func(in *Input, entries ...view.Row) (*Garbage, []Row) {
		in.View = emptyView()
		g, a := newGrouping(in), &Answer{}
		entries = g.split(entries)
		for i := range entries {
			g.add(&entries[i], g.guessed[i])
		}
		a.Rows, a.Rest, a.Total = g.rows()
		return a.garbageOf(g, in), a.Rows
	}
	for _, when := range []When{AtEnd, AtPeak, AtExit} {
		got, rows := answerOf(&Input{When: when, Garbage: read}, newer, freed, held, older, other)
		require.EqualValues(t, 59*mib, got.Bytes, "but for 3 MiB that are held and one that may be")
		require.EqualValues(t, 68*mib, got.Total)
		require.True(t, got.About)
		require.Zero(t, got.Time)
		require.Equal(t, "garbage Linear.*", rows[0].Holder)
		require.EqualValues(t, 59*mib, rows[0].Bytes)
		require.EqualValues(t, 39*mib, rows[0].Inferred)
	}
	got, rows := answerOf(&Input{Garbage: read}, held, other)
	require.Equal(t, &Garbage{
		Bytes: 20 * mib, Total: 24 * mib, Time: 5, Holder: "garbage Linear.*", Advice: got.Advice,
	}, got, "collected by the end")
	require.Contains(t, got.Advice, "Linear.hook leads back")
	require.Len(t, rows, 2)
	line.Kept = 21 * mib
	mostly := *read
	mostly.Lines = []figures.GarbageLine{line}
	_, rows = answerOf(&Input{Garbage: &mostly}, newer, other)
	require.Empty(t, rows[0].Holder, "others hold most of the line")
	in := &Input{Garbage: read, Leaks: &leaks.Report{Verdict: leaks.Growing,
		Findings: []leaks.Finding{{Layer: event.LayerAllocator, Stacks: []event.StackID{1}, Holder: "seen"}}}}
	newer.StackID = 1
	_, rows = answerOf(in, newer, other)
	require.Equal(t, "seen", rows[0].Holder, "what grows is no garbage")
}

// TestGarbageReadings: the reading with the most garbage counts, and of a line the most garbage and the most that is held, at any reading.
func TestGarbageReadings(t *testing.T) {
	var g GarbageReadings
	g.See(nil, nil)
	require.Nil(t, g.Figures())
	reading := func(time uint64, rows ...view.HeldSite) {
		v := emptyView()
		v.Snapshot.Time = time
		g.See(&view.Joined{Rows: rows, Facts: map[string]figures.HolderFacts{"garbage Net.*": {Cycle: "Net.a"}}}, v)
	}
	row := func(site, name string, bytes uint64) view.HeldSite {
		return view.HeldSite{Site: site, Name: name, Bytes: bytes}
	}
	reading(1, row("a.py:1", "net", 8))
	require.Nil(t, g.Figures())
	reading(2, row("a.py:1", "garbage Net.*", 30), row("a.py:1", "net", 4), row("a.py:2", view.NoHolder, 50),
		row("a.py:3", "garbage Other", 3))
	reading(3, row("a.py:1", "garbage Net.*", 20), row("a.py:2", "garbage Other", 1))
	require.Equal(t, &figures.Garbage{
		Time: 2, Bytes: 33, Holder: "garbage Net.*", Cycle: "Net.a", Lines: []figures.GarbageLine{
			{Site: "a.py:1", Holder: "garbage Net.*", Bytes: 30, Kept: 8}, {Site: "a.py:2", Holder: "garbage Other", Bytes: 1},
			{Site: "a.py:3", Holder: "garbage Other", Bytes: 3},
		},
	}, g.Figures())
}

// TestReadOfAnotherPurpose: what holds a line's gradients, parameters or optimizer's state names nothing that the line allocates for
// something else.
func TestReadOfAnotherPurpose(t *testing.T) {
	of := func(line int, bytes int64, category phases.Category) view.Row {
		e := entry(line, bytes)
		e.Category = string(category)
		return e
	}
	in := &Input{
		Read:  readOf(map[string]string{"a.py:1": "model.*.grad", "a.py:2": "opt.state", "a.py:3": "kept"}),
		Facts: map[string]advice.Facts{"opt.state": {Category: string(phases.OptimizerState)}},
	}
	rows, _, _ := rowsOf(in, of(1, 500, phases.Temporary), of(2, 400, phases.Activations), of(3, 300, phases.Activations),
		of(2, 200, phases.NoCategory))
	require.Equal(t, []string{"", "", "kept", "opt.state"}, []string{rows[0].Holder, rows[1].Holder, rows[2].Holder, rows[3].Holder})
}
