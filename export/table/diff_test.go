// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leakdiff"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
)

func entry(file string, line int, function, source string, bytes int64, blocks uint64) view.Row {
	name := file[len("/a/"):]
	if line > 0 {
		name += ":" + strconv.Itoa(line)
	}
	return view.Row{Name: name, Func: function, File: file, Line: line, Source: source, Bytes: bytes, Blocks: blocks}
}

// diffEntries are two sides with every kind of row.
func diffEntries() (before, after []view.Row) {
	before = []view.Row{
		entry("/a/train.py", 38, "Block.forward", "x = x + self.attention(self.norm(x))", 64*mib, 8),
		entry("/a/train.py", 41, "main", "buffer = torch.zeros(1 << 20)", 4*mib, 1),
		entry("/a/train.py", 60, "main", "loss.backward()", 5*mib, 3),
		entry("/a/net.py", 7, "Head.forward", "return self.out(x)", 2*mib, 2),
		entry("/a/train.py", 70, "main", "optimizer.step()", gib, 100),
		{Name: "cuBLAS", Bytes: 8519680, Blocks: 1},
		{Name: stacks.BeforeAttach, Bytes: 3 * gib},
		{Name: stacks.LostEvents, Bytes: -512},
	}
	after = []view.Row{
		entry("/a/train.py", 41, "Block.forward", "x = x + self.attention(self.norm(x))", 96*mib, 12),
		entry("/a/train.py", 41, "main", "buffer = torch.zeros(1 << 22)", 16*mib, 1),
		entry("/a/train.py", 99, "keep\x1b[2J", "kept.append(loss)\u202e", 3*mib, 96),
		entry("/a/head.py", 1204, "Head.forward", "return self.out(x)", 3*mib, 3),
		entry("/a/train.py", 70, "main", "optimizer.step()", gib, 100),
		{Name: "cuBLAS", Bytes: 8519681, Blocks: 1},
		{Name: stacks.BeforeAttach, Bytes: 4 * gib},
		{Name: stacks.LostEvents, Bytes: -1024},
	}
	return before, after
}

func TestDiff(t *testing.T) {
	before, after := diffEntries()
	stacks := func(entries []view.Row, root int) []view.Row {
		entries = entries[:3:3]
		for i := range entries {
			leaf := view.Call{Name: entries[i].Name, Func: entries[i].Func, File: entries[i].File, Line: entries[i].Line}
			entries[i].Stack = []view.Call{{Name: "at::empty"}, leaf, {Name: "train.py:" + strconv.Itoa(root), Func: "main", File: "/a/train.py",
				Line: root}}
		}
		return entries
	}
	for name, in := range map[string]DiffInput{
		"line":     {Difference: view.Diff(before, after, view.ByLine)},
		"function": {Difference: view.Diff(before, after, view.ByFunction)},
		"top":      {Difference: view.Diff(before, after, view.ByLine), Top: 2},
		"same":     {Difference: view.Diff(before, before, view.ByLine)},
		"nothing":  {Difference: view.Diff(nil, nil, view.ByDevice)},
		"stack":    {Difference: view.Diff(stacks(before, 120), stacks(after, 121), view.ByStack)},
	} {
		t.Run(name, func(t *testing.T) {
			in.Before, in.After = "old/trace.gputrace, at the end, +12.000 s", "new/tr\x1bace.gputrace, at the peak of each device"
			in.Verdict = "1.0 MiB more in use"
			goldens(t, "diff."+name, func(w io.Writer, width int) error {
				in.Width = width
				return Diff(w, in)
			})
		})
	}
}

func TestDiffError(t *testing.T) {
	before, after := diffEntries()
	require.ErrorIs(t, Diff(failingWriter{}, DiffInput{Difference: view.Diff(before, after, view.ByLine)}), io.ErrShortWrite)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// TestDiffFindings: what grows in two recordings, before the rows.
func TestDiffFindings(t *testing.T) {
	finding := func(line int, requested float64) *leaks.Finding {
		return &leaks.Finding{
			File: "/a/train.py", Line: line, Function: "main", Requested: requested, Blocks: 1, Period: 1, First: 11, Last: 59, Share: 1,
			Seconds: math.NaN(),
		}
	}
	held := finding(41, 3*mib)
	held.Holder = "main() local kept[0..48]"
	var out bytes.Buffer
	require.NoError(t, Diff(&out, DiffInput{
		Difference: view.Diff(nil, nil, view.ByLine), Before: "a", After: "b", Findings: &leakdiff.Comparison{
			Before: leaks.Growing, After: leaks.Growing,
			Changes: []leakdiff.Change{{After: held}, {Before: finding(50, 4096), After: finding(52, 8192)}, {Before: finding(60, 512)}},
		},
	}))
	require.Contains(t, out.String(), `
growth   growing before, growing after
new      train.py:41 main keeps 3.0 MiB more each step, since step 11 of 59,
         100 % of the growth
         held by main() local kept[0..48]
still    train.py:52 main keeps 8.0 KiB more each step, since step 11 of 59,
         100 % of the growth; before, 4.0 KiB each step
ended    train.py:60 main keeps 512 B more each step, since step 11 of 59, 100 %
         of the growth

in use by`)
}
