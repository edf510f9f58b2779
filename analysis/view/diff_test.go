// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// at is the memory of a line of /a/train.py, or of another file.
func at(line int, function, source string, bytes int64) view.Row {
	return in("/a/train.py", line, function, source, bytes)
}

func in(file string, line int, function, source string, bytes int64) view.Row {
	return view.Row{Name: fmt.Sprintf("train.py:%d", line), Func: function, File: file, Line: line, Source: source, Bytes: bytes, Blocks: 1}
}

func named(name string, bytes int64) view.Row { return view.Row{Name: name, Bytes: bytes} }

// inShort is the rows of a difference in short: "train.py:3 > train.py:5 +10 moved".
func inShort(d *view.Difference) []string {
	var out []string
	for i := range d.Rows {
		c := &d.Rows[i]
		text := "-"
		if c.Before != nil {
			text = c.Before.Name
		}
		text += " > "
		if c.After != nil {
			text += c.After.Name
		} else {
			text += "-"
		}
		text += fmt.Sprintf(" %+d", c.Bytes())
		if c.Moved {
			text += " moved"
		}
		if c.Edited {
			text += " edited"
		}
		out = append(out, text)
	}
	return out
}

func TestDiffLines(t *testing.T) {
	type entries = []view.Row
	for name, c := range map[string]struct {
		before, after entries
		want          []string
	}{
		"the same": {entries{at(3, "f", "x = 1", 10)}, entries{at(3, "f", "x = 1", 30)}, []string{"train.py:3 > train.py:3 +20"}},
		"nothing":  {nil, nil, nil},
		"new":      {nil, entries{at(3, "f", "x", 10)}, []string{"- > train.py:3 +10"}},
		"gone":     {entries{at(3, "f", "x", 10)}, nil, []string{"train.py:3 > - -10"}},
		"unchanged": {entries{at(3, "f", "x", 10), at(4, "f", "y", 5)}, entries{at(3, "f", "x", 10), at(4, "f", "y", 6)},
			[]string{"train.py:4 > train.py:4 +1", "train.py:3 > train.py:3 +0"}},
		"moved":     {entries{at(3, "f", "x", 10)}, entries{at(5, "f", "x", 30)}, []string{"train.py:3 > train.py:5 +20 moved"}},
		"no text":   {entries{at(3, "f", "", 10)}, entries{at(5, "f", "", 30)}, []string{"- > train.py:5 +30", "train.py:3 > - -10"}},
		"text once": {entries{at(3, "f", "", 10)}, entries{at(3, "f", "x", 30)}, []string{"train.py:3 > train.py:3 +20"}},
		"function":  {entries{at(3, "f", "x", 10)}, entries{at(3, "g", "y", 30)}, []string{"- > train.py:3 +30", "train.py:3 > - -10"}},
		"edited": {entries{at(3, "f", "x = zeros(10)", 10)}, entries{at(3, "f", "x = zeros(20)", 30)},
			[]string{"train.py:3 > train.py:3 +20 edited"}},
		"other text": {entries{at(3, "f", "loss.backward()", 10)}, entries{at(3, "f", "x = zeros(20)", 30)},
			[]string{"- > train.py:3 +30", "train.py:3 > - -10"}},
		"a line was put in before it, where another one now stands": {
			entries{at(3, "f", "x = a(1)", 10), at(4, "f", "y = b(2)", 100)},
			entries{at(3, "f", "w = c(3)", 7), at(4, "f", "x = a(1)", 11), at(5, "f", "y = b(2)", 100)},
			[]string{"- > train.py:3 +7", "train.py:3 > train.py:4 +1 moved", "train.py:4 > train.py:5 +0 moved"},
		},
		"the same text twice: it is not clear which is which": {
			entries{at(3, "f", "x = relu(x)", 10), at(6, "f", "x = relu(x)", 20)},
			entries{at(4, "f", "x = relu(x)", 10), at(7, "f", "x = relu(x)", 20)},
			[]string{"train.py:6 > - -20", "- > train.py:7 +20", "train.py:3 > - -10", "- > train.py:4 +10"},
		},
		"the same text twice, one of them where it was": {
			entries{at(3, "f", "x = relu(x)", 10), at(6, "f", "x = relu(x)", 20)},
			entries{at(3, "f", "x = relu(x)", 10), at(7, "f", "x = relu(x)", 21)},
			[]string{"train.py:6 > train.py:7 +1 moved", "train.py:3 > train.py:3 +0"},
		},
		"another folder": {entries{in("/a/x/train.py", 3, "f", "x", 1)}, entries{in("/b/train.py", 3, "f", "x", 2)},
			[]string{"train.py:3 > train.py:3 +1"}},
		"a function that was put into another file": {entries{in("/a/train.py", 3, "Net.forward", "x", 1)},
			entries{in("/a/net.py", 9, "Net.forward", "x", 2)}, []string{"train.py:3 > train.py:9 +1 moved"}},
		"native": {entries{named("at::empty", 1), named("cuBLAS", 5)}, entries{named("at::empty", 2), named("NCCL", 3)},
			[]string{"cuBLAS > - -5", "- > NCCL +3", "at::empty > at::empty +1"}},
		"lost": {entries{named(stacks.LostEvents, -8)}, entries{named(stacks.LostEvents, 2)}, []string{"[lost events] > [lost events] +10"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, inShort(view.Diff(c.before, c.after, view.ByLine)))
		})
	}
}

func TestDiffBlocksKnown(t *testing.T) {
	some, unknown, none := at(3, "f", "", 10), named(stacks.BeforeAttach, 10), named(stacks.LostEvents, 0)
	for want, changes := range map[bool][]view.Change{
		true:  {{Before: &some, After: &some}, {Before: &some}, {After: &some}, {After: &none}},
		false: {{Before: &unknown, After: &some}, {After: &unknown}, {Before: &unknown}},
	} {
		for i := range changes {
			require.Equal(t, want, changes[i].BlocksKnown())
		}
	}
}

func TestDiffFunctions(t *testing.T) {
	before := []view.Row{at(3, "f", "", 1), at(4, "f", "", 2), in("/a/x.py", 1, "main", "", 5), in("/a/y.py", 1, "g", "", 1),
		in("/a/z.py", 1, "g", "", 1)}
	after := []view.Row{at(9, "f", "", 10), in("/a/w.py", 7, "main", "", 6), in("/a/v.py", 1, "g", "", 1)}
	require.Equal(t, []string{"f > f +7", "main > main +1 moved", "- > g +1", "g > - -1", "g > - -1"},
		inShort(view.Diff(before, after, view.ByFunction)))
}

func TestDiffStacks(t *testing.T) {
	stack := func(file string, lines ...int) view.Row {
		e := in(file, lines[0], "f", "", 10)
		for _, line := range lines {
			e.Stack = append(e.Stack, view.Call{Name: fmt.Sprintf("train.py:%d", line), Func: "f", File: file, Line: line})
		}
		return e
	}
	before := []view.Row{stack("/a/train.py", 3, 9), stack("/a/train.py", 3, 8, 1)}
	after := []view.Row{stack("/b/train.py", 3, 9), stack("/b/train.py", 4, 7, 1)}
	require.Equal(t, []string{"train.py:3 > train.py:3 +0", "train.py:3 > train.py:4 +0 moved"},
		inShort(view.Diff(before, after, view.ByStack)))
	after = append(after, stack("/b/train.py", 5, 7, 1))
	require.Contains(t, inShort(view.Diff(before, after, view.ByStack)), "train.py:3 > - -10", "two stacks it could be")
}

// TestDiffFolders: the same files in other folders, some of which have the same name.
func TestDiffFolders(t *testing.T) {
	files := func(names ...string) (out []view.Row) {
		for i, name := range names {
			out = append(out, in(name, 3, "f", fmt.Sprintf("unlike any other %d", i), int64(100+i)))
		}
		return out
	}
	before := files("/home/a/job/train.py", "/home/a/job/net/train.py", "/home/a/job/only.py", "/home/a/job/x/two.py", "/home/a/job/y/two.py")
	after := files("/mnt/train.py", "/mnt/net/train.py", "/mnt/other.py", "/mnt/v/two.py", "/mnt/w/two.py")
	after[2].Source = "z"
	d := view.Diff(before, after, view.ByFunction)
	pairs := map[string]string{}
	for i := range d.Rows {
		if c := &d.Rows[i]; c.Before != nil && c.After != nil {
			pairs[c.Before.File] = c.After.File
		}
	}
	require.Equal(t, map[string]string{"/home/a/job/train.py": "/mnt/train.py", "/home/a/job/net/train.py": "/mnt/net/train.py"}, pairs)
}

// TestDiffRenamed: a script that has another name now, beside libraries of another Python.
func TestDiffRenamed(t *testing.T) {
	side := func(script, python string) []view.Row {
		return []view.Row{
			in("/a/"+script, 3, "f", "x = relu(x)", 10), in("/a/"+script, 6, "f", "x = relu(x)", 20), in("/a/net.py", 1, "g", "y", 5),
			in("/opt/lib/"+python+"/site-packages/"+python+".py", 9, "h", "z", 7),
		}
	}
	d := view.Diff(side("train.py", "python3.10"), side("train_2.py", "python3.11"), view.ByLine)
	require.Len(t, d.Rows, 4)
	for i := range d.Rows {
		c := &d.Rows[i]
		require.True(t, c.Before != nil && c.After != nil, "%+v", c)
		require.Equal(t, c.Before.Func == "h", c.Moved, "only the text tells that of another library")
	}
	two := append(side("train_2.py", "python3.11"), in("/a/train_3.py", 3, "f", "x = relu(x)", 10))
	require.Len(t, view.Diff(side("train.py", "python3.10"), two, view.ByLine).Rows, 7, "it could be either")
}

// TestDiffSums: whatever is compared, the changes add up to the change of the allocators' totals, and nothing appears twice.
func TestDiffSums(t *testing.T) {
	for seed := range uint64(6) {
		views := []*view.View{}
		for _, s := range []uint64{seed, seed + 100} {
			stream := eventtest.Random(s, 2000)
			trace, err := view.NewTrace(stream, nil)
			require.NoError(t, err)
			middle, err := trace.At(stream.Events[1000].Time)
			require.NoError(t, err)
			views = append(views, trace.End(), middle, trace.Peak())
		}
		for i, before := range views {
			for _, after := range views[i:] {
				for by := range view.RowKindNames {
					requireSums(t, before, after, view.RowKind(by))
				}
			}
		}
	}
}

func requireSums(t *testing.T, before, after *view.View, by view.RowKind) {
	t.Helper()
	d := view.Diff(before.Rows(), after.Rows(), by)
	require.EqualValues(t, before.Total(), d.Before.Bytes)
	require.EqualValues(t, after.Total(), d.After.Bytes)
	bytes, blocks := int64(0), int64(0)
	for i := range d.Rows {
		bytes += d.Rows[i].Bytes()
		blocks += d.Rows[i].Blocks()
	}
	require.Equal(t, int64(after.Total())-int64(before.Total()), bytes)
	require.Equal(t, bytes, d.Bytes())
	require.Equal(t, int64(d.After.Blocks)-int64(d.Before.Blocks), blocks)
	if before == after {
		for i := range d.Rows {
			require.Zero(t, d.Rows[i].Bytes())
			require.False(t, d.Rows[i].Moved || d.Rows[i].Edited || d.Rows[i].Before == nil || d.Rows[i].After == nil)
		}
	}
}

// TestDiffRandom: random tables, of which many rows are nearly the same. The rows of each side are there once, in the same
// order whatever the order of the entries is.
func TestDiffRandom(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		random := func() (out []view.Row) {
			for range r.IntN(12) {
				e := in([]string{"/a/train.py", "/b/train.py", "/a/net.py"}[r.IntN(3)], r.IntN(4), string(rune('f'+r.IntN(2))),
					[]string{"", "x", "y"}[r.IntN(3)], r.Int64N(100)-20)
				out = append(out, e)
			}
			return out
		}
		before, after := random(), random()
		for by := range view.RowKindNames {
			d := view.Diff(before, after, view.RowKind(by))
			var got [2][]view.Row
			for i := range d.Rows {
				if e := d.Rows[i].Before; e != nil {
					got[0] = append(got[0], *e)
				}
				if e := d.Rows[i].After; e != nil {
					got[1] = append(got[1], *e)
				}
			}
			require.ElementsMatch(t, view.GroupRows(before, d.By), got[0])
			require.ElementsMatch(t, view.GroupRows(after, d.By), got[1])
			require.Equal(t, d, view.Diff(before, after, d.By))
		}
	}
}
