// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// Two ways from one line of the program into a library, as all memory of a framework's job has them.
const (
	library   = " /v/lib/python3.11/site-packages/framework/trainer.py:"
	throughIt = " /home/a/train.py:13:main"
	lossSite  = eventtest.Report + library + "40:Trainer.loss" + throughIt
	adamSite  = eventtest.Report + library + "90:Trainer.optimizer_step" + throughIt
)

// TestHolderOfOneSite: what holds the blocks that grow is named, also where the same line of the program leads to much more that
// something else holds; by the blocks at the end, by a reading of them before, and not by a table of lines.
func TestHolderOfOneSite(t *testing.T) {
	j := newJob()
	j.Alloc(adamSite, 64<<20)
	for range 60 {
		j.Pass(input, forward, forward, backward, adam)
		j.Alloc(lossSite, 12)
	}
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	loss := j.ID(lossSite)
	of := func(b *heap.Block) string {
		switch b.Stack {
		case loss:
			return "kept[0..59]"
		case j.ID(adamSite):
			return "model.optimizer.state[*]['exp_avg']"
		}
		return ""
	}
	lines := []leaks.Holder{
		{Site: "train.py:13 main", Name: "model.optimizer.state[*]['exp_avg']", Bytes: 64 << 20, Blocks: 1},
		{Site: "train.py:13 main", Name: "kept[0..59]", Bytes: 60 * 512, Blocks: 60},
	}
	find := func(o *leaks.Options) *leaks.Finding {
		r, err := leaks.Find(trace, table, o)
		require.NoError(t, err)
		require.Len(t, r.Findings, 1)
		return &r.Findings[0]
	}
	f := find(&leaks.Options{HolderOf: of, Holders: lines})
	require.Equal(t, "kept[0..59]", f.Holder)
	require.Equal(t, []event.StackID{loss}, f.Stacks)
	require.Zero(t, f.Newer)
	require.Empty(t, find(&leaks.Options{Holders: lines}).Holder, "most of what is held of the line is not what grows")

	live := slices.Values(atEnd(t, trace))
	rows := leaks.HeldBy(f, live, of)
	require.Equal(t, []event.HeldRow{{Site: "train.py:13 main", Holder: "kept[0..59]", Bytes: 60 * 512, Blocks: 60}}, rows)
	require.Equal(t, "kept[0..59]", find(&leaks.Options{Earlier: [][]leaks.Holder{leaks.EarlierRows(rows)}}).Holder)
	require.Nil(t, leaks.HeldBy(f, live, nil))
	require.Nil(t, leaks.HeldBy(f, live, func(*heap.Block) string { return "" }), "nothing is known")
	n := 0
	require.Equal(t, []event.HeldRow{{Site: "train.py:13 main", Holder: "kept[0]", Bytes: 512, Blocks: 1},
		{Site: "train.py:13 main", Bytes: f.LiveBytes - 512, Blocks: f.LiveBlocks - 1}},
		leaks.HeldBy(f, live, func(*heap.Block) string {
			if n++; n == 1 {
				return "kept[0]"
			}
			return ""
		}), "most are newer than the reading")
}

// atEnd are the live blocks at the end that grow or are held.
func atEnd(t *testing.T, trace *view.Trace) (out []heap.Block) {
	t.Helper()
	require.NoError(t, trace.Replay(&view.Visitor{Done: func(h *heap.Heap) { out = slices.Collect(h.Blocks()) }}))
	return out
}

// TestPassing: what holds the blocks that were freed meanwhile counts for those that followed them, and not for more.
func TestPassing(t *testing.T) {
	require.Nil(t, leaks.Passing(nil))
	require.Nil(t, leaks.Passing(&view.Joined{Rows: []view.HeldSite{{Site: "a.py:1 f", Name: "kept", Bytes: 10, Blocks: 1}}}))
	got := leaks.Passing(&view.Joined{
		Passing: []view.HeldSite{{Site: "a.py:1 f", Name: "cache[0..3]", Bytes: 400, Blocks: 4},
			{Site: "a.py:2 f", Name: "x", Bytes: 100, Blocks: 1}, {Name: "y", Blocks: 1}},
		Rows: []view.HeldSite{
			{Site: "a.py:1 f", Name: view.NoHolder, Bytes: 500, Blocks: 4}, {Site: "a.py:2 f", Name: view.NoHolder, Bytes: 1000, Blocks: 10},
			{Site: "a.py:2 f", Name: "kept", Bytes: 200, Blocks: 2}, {Site: "a.py:3 f", Name: "other", Bytes: 1, Blocks: 1},
		},
	})
	require.Equal(t, []event.HeldRow{
		{Site: "a.py:1 f", Holder: "cache[0..3]", Bytes: 400, Blocks: 4}, {Site: "a.py:2 f", Holder: "x", Bytes: 100, Blocks: 1},
		{Site: "a.py:2 f", Bytes: 900, Blocks: 9}, {Site: "a.py:2 f", Holder: "kept", Bytes: 200, Blocks: 2},
	}, got)
}

// TestContainersOfOneLine: a line that several places call has a finding for each container that keeps what it allocates, by the blocks
// at the end or by a reading before it, in which sizes tell the sites apart; but one if its blocks have one root, or graphs hold them.
func TestContainersOfOneLine(t *testing.T) {
	const made = eventtest.Report + " /home/a/train.py:5:make"
	fromTrain, fromCheck := made+" /home/a/train.py:30:main", made+" /home/a/train.py:31:main"
	j := newJob()
	for range 60 {
		j.Pass(input, forward, forward, backward, adam)
		j.Alloc(fromTrain, 4096)
		j.Alloc(fromCheck, 512)
		j.Alloc(fromCheck, 512)
	}
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	table, err := steps.Find(trace, nil)
	require.NoError(t, err)
	const site = "train.py:5 make"
	scan := func(train, check string) []leaks.Holder {
		return []leaks.Holder{{Site: site, Name: train, Bytes: 40 * 4096, Blocks: 40}, {Site: site, Name: check, Bytes: 80 * 512, Blocks: 80}}
	}
	type found struct {
		holder string
		bytes  float64
		live   uint64
		others uint64
	}
	find := func(train, check string, blocks bool) (out []found) {
		o := &leaks.Options{Earlier: [][]leaks.Holder{scan(train, check)}}
		if blocks {
			o.HolderOf = func(b *heap.Block) string {
				return map[event.StackID]string{j.ID(fromTrain): train, j.ID(fromCheck): check}[b.Stack]
			}
		}
		r, err := leaks.Find(trace, table, o)
		require.NoError(t, err)
		for _, f := range r.Findings {
			require.Equal(t, site, f.Name())
			out = append(out, found{f.Holder, f.Bytes, f.LiveBytes, f.Others})
		}
		line := leaks.OfLine(r.Findings, &r.Findings[len(r.Findings)-1])
		require.Equal(t, []any{r.Findings[0].Holder, 5120.0, uint64(58 * 5120)}, []any{line.Holder, line.Bytes, line.LiveBytes})
		require.InDelta(t, 1, line.Share, 0.01)
		sum, lines := leaks.Total(r.Findings)
		require.Equal(t, []any{1, 5120.0, uint64(58 * 5120)}, []any{lines, sum.Bytes, sum.LiveBytes})
		return out
	}
	two := []found{{"kept[0..59]", 4096, 58 * 4096, 0}, {"self.seen['a'..'z']", 1024, 58 * 1024, 0}}
	require.Equal(t, two, find("kept[0..59]", "self.seen['a'..'z']", true))
	require.Equal(t, two, find("kept[0..59]", "self.seen['a'..'z']", false))
	for what, names := range map[string][2]string{
		"one root": {"log[0..59]['loss']", "log[0..59]['rest']"}, "no container": {"kept[0..59]", "total"},
		"a graph": {"kept[0..59].grad_fn", "more[0..59].grad_fn"}, "not known": {"kept[0..59]", "[no reference found]"},
	} {
		require.Len(t, find(names[0], names[1], true), 1, what)
	}
}

// scansOf returns two scans of blocks that line 5 has made: of the first half of them, and of all, or of all twice.
func scansOf(of func(i int) string, n int, grow bool) (out [][]leaks.Holder) {
	for _, upTo := range []int{n / 2, n} {
		if !grow {
			upTo = n
		}
		rows := map[string]uint64{}
		for i := range upTo {
			rows[of(i)]++
		}
		var scan []leaks.Holder
		for name, blocks := range rows {
			scan = append(scan, leaks.Holder{Site: "train.py:5 keep", Name: name, Bytes: blocks * 512, Blocks: blocks})
		}
		out = append(out, scan)
	}
	return out
}

// TestContainersOfOneStack: a loop over several containers fills them from one stack. They have a finding each if they take whole numbers
// of blocks, in which all findings add up to the line's; otherwise the line has one.
func TestContainersOfOneStack(t *testing.T) {
	const made = eventtest.Report + " /home/a/train.py:5:keep"
	type found struct {
		holder string
		bytes  float64
		period int
		newer  uint64
	}
	grow := true
	find := func(perStep int, sizes func(i int) uint64, of func(i int) string) (out []found) {
		j := newJob()
		n := 0
		holders := map[uint64]string{}
		for range 60 {
			j.Pass(input, forward, forward, backward, adam)
			for range perStep {
				holders[j.Alloc(made, sizes(n))] = of(n)
				n++
			}
		}
		trace, err := view.NewTrace(&j.Stream, nil)
		require.NoError(t, err)
		table, err := steps.Find(trace, nil)
		require.NoError(t, err)
		r, err := leaks.Find(trace, table, &leaks.Options{
			HolderOf: func(b *heap.Block) string { return holders[b.Addr] }, Earlier: scansOf(of, n, grow),
		})
		require.NoError(t, err)
		for _, f := range r.Findings {
			out = append(out, found{f.Holder, f.Bytes, f.Period, f.Newer})
		}
		sum, lines := leaks.Total(r.Findings)
		require.Equal(t, 1, lines)
		require.InDelta(t, 512*perStep, sum.Bytes, 1e-6)
		return out
	}
	even := func(int) uint64 { return 512 }
	oneOf := func(names ...string) func(int) string { return func(i int) string { return names[i%len(names)] } }
	require.Equal(t, []found{{"log.kept[0..59]", 512, 1, 0}, {"log.seen[0..59]", 512, 1, 0}},
		find(2, even, oneOf("log.kept[0..59]", "log.seen[0..59]")))
	require.Equal(t, []found{{"log.kept[0..59]", 1024, 1, 0}, {"log.seen[0..59]", 512, 1, 0}},
		find(3, even, oneOf("log.kept[0..59]", "log.seen[0..59]", "log.kept[0..59]")))
	require.Equal(t, []found{{"log.kept[0..59]", 512. / 3 * 2, 3, 0}, {"log.seen[0..59]", 512. / 3, 3, 0}},
		find(1, even, oneOf("log.kept[0..59]", "log.seen[0..59]", "log.kept[0..59]")))
	newer := oneOf("log.kept[0..49]", "log.seen[0..49]")
	require.Equal(t, []found{{"log.kept[0..49]", 512, 1, 0}, {"log.seen[0..49]", 512, 1, 0}}, find(2, even, func(i int) string {
		if i >= 100 {
			return ""
		}
		return newer(i)
	}), "without those that are newer than the scan")
	for what, of := range map[string]func(int) string{
		"no whole numbers": func(i int) string {
			return map[bool]string{true: "log.kept[0..59]", false: "log.seen[0..59]"}[i < 51]
		},
		"one root":             oneOf("log[0..59]['loss']", "log[0..59]['rest']"),
		"half of it not known": oneOf("log.kept[0..59]", "[no reference found]"),
	} {
		require.Len(t, find(2, even, of), 1, what)
	}
	grow = false
	require.Len(t, find(2, even, oneOf("log.kept[0..59]", "log.seen[0..59]")), 1, "no scan shows that both grow")
}
