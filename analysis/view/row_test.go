// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// sumEntries adds entries up.
func sumEntries(entries []view.Row) (bytes int64, blocks uint64) {
	for i := range entries {
		bytes += entries[i].Bytes
		blocks += entries[i].Blocks
	}
	return bytes, blocks
}

// TestEntries: a table of any kind adds up to what the allocator and the driver have, and that by line has the rows of a report.
func TestEntries(t *testing.T) {
	for seed := range uint64(10) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		for _, v := range []*view.View{trace.End(), trace.Peak()} {
			entries := v.Rows()
			bytes, blocks := sumEntries(entries)
			require.EqualValues(t, v.Total(), bytes)
			for by := range view.RowKindNames {
				rows := view.GroupRows(entries, view.RowKind(by))
				rowBytes, rowBlocks := sumEntries(rows)
				require.Equal(t, bytes, rowBytes)
				require.Equal(t, blocks, rowBlocks)
			}
			requireReport(t, v, view.GroupRows(entries, view.ByLine))
		}
	}
}

// requireReport compares rows by line with those of the tables that a report prints.
func requireReport(t *testing.T, v *view.View, rows []view.Row) {
	t.Helper()
	type row struct {
		name, function, file string
		line                 int
		bytes, blocks        uint64
	}
	var want, got []row
	for _, table := range []view.Table{v.ByPython(0), v.ByNative(0)} {
		for _, r := range table.Rows {
			want = append(want, row{r.Name, r.Func, r.File, r.Line, uint64(r.Bytes), r.Blocks})
		}
	}
	for _, r := range rows {
		if r.Name != stacks.BeforeAttach && r.Name != stacks.LostEvents {
			got = append(got, row{r.Name, r.Func, r.File, r.Line, uint64(r.Bytes), r.Blocks})
		}
	}
	require.NotEmpty(t, got)
	require.ElementsMatch(t, want, got)
}

func TestGroupEntries(t *testing.T) {
	stack := []view.Call{{Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3}, {Name: "a.py:9", Func: "main", File: "/x/a.py", Line: 9}}
	entries := []view.Row{
		{Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3, Layer: "torch", Device: "cuda:0", Stack: stack, Bytes: 10, Blocks: 1},
		{Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3, Source: "y = g(x)", Layer: "device", Device: "cuda:1", Bytes: 20, Blocks: 2},
		{Name: "a.py:4", Func: "f", File: "/x/a.py", Line: 4, Source: "z", Layer: "torch", Device: "cuda:1", Bytes: 40, Blocks: 4},
		{Name: "a.py:4", Func: "f", File: "/y/a.py", Line: 4, Layer: "torch", Device: "cuda:1", Bytes: 80, Blocks: 8},
		{Name: "at::empty", Layer: "torch", Device: "cuda:1", Bytes: 160, Blocks: 16},
		{Name: stacks.LostEvents, Layer: "torch", Device: "cuda:1", Bytes: -5},
	}
	for by, want := range map[view.RowKind][]view.Row{
		view.ByLine: {
			{Name: "at::empty", Bytes: 160, Blocks: 16}, {Name: "a.py:4", Func: "f", File: "/y/a.py", Line: 4, Bytes: 80, Blocks: 8},
			{Name: "a.py:4", Func: "f", File: "/x/a.py", Line: 4, Source: "z", Bytes: 40, Blocks: 4},
			{Name: "a.py:3", Func: "f", File: "/x/a.py", Line: 3, Source: "y = g(x)", Bytes: 30, Blocks: 3},
			{Name: stacks.LostEvents, Bytes: -5},
		},
		view.ByFunction: {
			{Name: "at::empty", Bytes: 160, Blocks: 16}, {Name: "f", Func: "f", File: "/y/a.py", Bytes: 80, Blocks: 8},
			{Name: "f", Func: "f", File: "/x/a.py", Bytes: 70, Blocks: 7}, {Name: stacks.LostEvents, Bytes: -5},
		},
		view.ByLayer: {
			{Name: "torch", Layer: "torch", Bytes: 285, Blocks: 29}, {Name: "device", Layer: "device", Bytes: 20, Blocks: 2},
		},
		view.ByDevice: {
			{Name: "cuda:1", Device: "cuda:1", Bytes: 295, Blocks: 30}, {Name: "cuda:0", Device: "cuda:0", Bytes: 10, Blocks: 1},
		},
	} {
		require.Equal(t, want, view.GroupRows(entries, by), by.String())
	}
	require.Len(t, view.GroupRows(entries, view.ByStack), 6, "one has a stack and one of the same line has none")
}

func TestFindRowKind(t *testing.T) {
	for i, name := range view.RecordedRowKindNames {
		k, err := view.FindRowKind(name)
		require.NoError(t, err)
		require.EqualValues(t, i, k)
		require.Equal(t, name, k.String())
	}
	_, err := view.FindRowKind("modules")
	require.ErrorContains(t, err, `"modules"`)
}
