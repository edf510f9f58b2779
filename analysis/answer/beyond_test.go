// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// TestGrowingLineAllocatesOther: of the memory of a growing line that no reading found a holder for, no more than the growth belongs to
// the row of the growth, and blocks of its size come first. The rest is not lost.
func TestGrowingLineAllocatesOther(t *testing.T) {
	const kept = "log.kept[0..6]"
	report := &leaks.Report{Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}, Findings: []leaks.Finding{{
		Layer: event.LayerAllocator, File: "/a.py", Line: 1, Bytes: 100, Blocks: 1, Grown: 1000, LiveBytes: 1600, Kept: 1600, Others: 600,
		Holder: kept, Stacks: []event.StackID{1},
	}}}
	of := func(holder string, bytes int64, blocks uint64) view.Row {
		e := entry(1, bytes)
		e.StackID, e.Holder, e.Blocks = 1, holder, blocks
		return e
	}
	for name, c := range map[string]struct {
		entries          []view.Row
		want, wantBlocks int64
	}{
		"large blocks beside small ones": {[]view.Row{of(view.NoHolder, 9000, 3), of(kept, 700, 7), of(view.NoHolder, 300, 3)}, 1000, 10},
		"a row of both":                  {[]view.Row{of(kept, 700, 7), of(view.NoHolder, 1200, 12)}, 1000, 10},
		"a step is under way":            {[]view.Row{of(kept, 700, 7), of(view.NoHolder, 360, 3)}, 1060, 10},
		"more is known than grew":        {[]view.Row{of(kept, 1200, 12), of(view.NoHolder, 300, 3)}, 1500, 15},
		"other memory has a holder":      {[]view.Row{of(kept, 1000, 10), of("log.window[0..2]", 9000, 3)}, 1000, 10},
	} {
		rows, rest, total := rowsOf(&Input{Leaks: report}, c.entries...)
		require.NotNil(t, rows[0].Finding, name)
		require.Equal(t, c.want, rows[0].Bytes, name)
		require.EqualValues(t, c.wantBlocks, rows[0].Blocks, name)
		var other int64
		for _, s := range rest {
			other += s.Bytes
		}
		require.Equal(t, total, rows[0].Bytes+other, name)
	}
}

// TestGrowingLineOfOneVariable: where no other variable was read for a line, all its blocks of the sizes that grow belong to the growth.
func TestGrowingLineOfOneVariable(t *testing.T) {
	report := &leaks.Report{Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}, Findings: []leaks.Finding{{
		Layer: event.LayerAllocator, File: "/a.py", Line: 1, Bytes: 100, Blocks: 0, Grown: 1000, LiveBytes: 1600, Kept: 1600, Holder: "bank.rows",
		Stacks: []event.StackID{1},
	}}}
	rows, _, _ := rowsOf(&Input{Leaks: report}, entry(1, 1600))
	require.Equal(t, int64(1600), rows[0].Bytes)
}

// TestStackOfSeveralContainers: memory without a holder, of a stack that fills two containers, is divided by what each of their findings
// lacks. What was read of them counts, and nothing is lost.
func TestStackOfSeveralContainers(t *testing.T) {
	finding := func(holder string, live uint64) leaks.Finding {
		return leaks.Finding{
			Layer: event.LayerAllocator, File: "/a.py", Line: 1, Bytes: float64(live) / 10, Blocks: 1, Grown: live, LiveBytes: live,
			Kept: live, Holder: holder, Stacks: []event.StackID{1}, Parted: true,
		}
	}
	const kept, seen = "log.kept[0..6]", "log.seen[0..6]"
	report := &leaks.Report{
		Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}, Findings: []leaks.Finding{finding(kept, 3000), finding(seen, 1000)},
	}
	of := func(holder string, bytes int64) view.Row {
		e := entry(1, bytes)
		e.StackID, e.Holder = 1, holder
		return e
	}
	for name, c := range map[string]struct {
		entries              []view.Row
		kept, seen, inferred int64
	}{
		"none was read":         {[]view.Row{of(view.NoHolder, 4000)}, 3000, 1000, 4000},
		"as at an earlier time": {[]view.Row{of(view.NoHolder, 2000)}, 1500, 500, 2000},
		"one was read":          {[]view.Row{of(kept, 3000), of(view.NoHolder, 1000)}, 3000, 1000, 1000},
		"parts were read":       {[]view.Row{of(kept, 2000), of(seen, 800), of(view.NoHolder, 1200)}, 3000, 1000, 1200},
		"both were read":        {[]view.Row{of(kept, 3000), of(seen, 1000)}, 3000, 1000, 0},
	} {
		rows, _, _ := rowsOf(&Input{Leaks: report}, c.entries...)
		require.Len(t, rows, 2, name)
		require.Equal(t, []any{kept, c.kept, seen, c.seen}, []any{rows[0].Holder, rows[0].Bytes, rows[1].Holder, rows[1].Bytes}, name)
		require.EqualValues(t, c.inferred, rows[0].Inferred+rows[1].Inferred, name)
	}
}
