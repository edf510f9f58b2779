package table

import (
	"bytes"
	"io"
	"strconv"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis"
)

func entry(file string, line int, function, source string, bytes int64, blocks uint64) analysis.Entry {
	name := file[len("/a/"):]
	if line > 0 {
		name += ":" + strconv.Itoa(line)
	}
	return analysis.Entry{Name: name, Func: function, File: file, Line: line, Source: source, Bytes: bytes, Blocks: blocks}
}

// diffEntries are two sides with every kind of row.
func diffEntries() (before, after []analysis.Entry) {
	before = []analysis.Entry{
		entry("/a/train.py", 38, "Block.forward", "x = x + self.attention(self.norm(x))", 64*mib, 8),
		entry("/a/train.py", 41, "main", "buffer = torch.zeros(1 << 20)", 4*mib, 1),
		entry("/a/train.py", 60, "main", "loss.backward()", 5*mib, 3),
		entry("/a/net.py", 7, "Head.forward", "return self.out(x)", 2*mib, 2),
		entry("/a/train.py", 70, "main", "optimizer.step()", gib, 100),
		{Name: "cuBLAS", Bytes: 8519680, Blocks: 1},
		{Name: analysis.BeforeAttach, Bytes: 3 * gib},
		{Name: analysis.LostEvents, Bytes: -512},
	}
	after = []analysis.Entry{
		entry("/a/train.py", 41, "Block.forward", "x = x + self.attention(self.norm(x))", 96*mib, 12),
		entry("/a/train.py", 41, "main", "buffer = torch.zeros(1 << 22)", 16*mib, 1),
		entry("/a/train.py", 99, "keep\x1b[2J", "kept.append(loss)\u202e", 3*mib, 96),
		entry("/a/head.py", 1204, "Head.forward", "return self.out(x)", 3*mib, 3),
		entry("/a/train.py", 70, "main", "optimizer.step()", gib, 100),
		{Name: "cuBLAS", Bytes: 8519681, Blocks: 1},
		{Name: analysis.BeforeAttach, Bytes: 4 * gib},
		{Name: analysis.LostEvents, Bytes: -1024},
	}
	return before, after
}

func TestDiff(t *testing.T) {
	before, after := diffEntries()
	stacks := func(entries []analysis.Entry, root int) []analysis.Entry {
		entries = entries[:3:3]
		for i := range entries {
			leaf := analysis.Call{Name: entries[i].Name, Func: entries[i].Func, File: entries[i].File, Line: entries[i].Line}
			entries[i].Stack = []analysis.Call{{Name: "at::empty"}, leaf, {Name: "train.py:" + strconv.Itoa(root), Func: "main", File: "/a/train.py", Line: root}}
		}
		return entries
	}
	for name, in := range map[string]DiffInput{
		"line":     {Difference: analysis.Diff(before, after, analysis.ByLine)},
		"function": {Difference: analysis.Diff(before, after, analysis.ByFunction)},
		"top":      {Difference: analysis.Diff(before, after, analysis.ByLine), Top: 2},
		"same":     {Difference: analysis.Diff(before, before, analysis.ByLine)},
		"nothing":  {Difference: analysis.Diff(nil, nil, analysis.ByDevice)},
		"stack":    {Difference: analysis.Diff(stacks(before, 120), stacks(after, 121), analysis.ByStack)},
	} {
		t.Run(name, func(t *testing.T) {
			in.Before, in.After = "old/trace.gputrace, at the end, +12.000 s", "new/tr\x1bace.gputrace, at the peak of each device"
			var buf bytes.Buffer
			require.NoError(t, Diff(&buf, in))
			golden(t, "diff."+name, buf.String())
			for line := range bytes.Lines(buf.Bytes()) {
				require.LessOrEqual(t, utf8.RuneCount(line)-1, maxWidth)
			}
		})
	}
}

func TestDiffError(t *testing.T) {
	before, after := diffEntries()
	require.ErrorIs(t, Diff(failingWriter{}, DiffInput{Difference: analysis.Diff(before, after, analysis.ByLine)}), io.ErrShortWrite)
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
