// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// TestOlderGrows: memory from before the attach grows too if its holder holds nothing newer but what grows.
func TestOlderGrows(t *testing.T) {
	report := &leaks.Report{Verdict: leaks.Growing, Steps: leaks.Steps{Period: 1e9}, Findings: []leaks.Finding{
		{Layer: event.LayerAllocator, File: "/a.py", Line: 1, Bytes: 100, Grown: 1000, Holder: "garbage Rollout.obs", Stacks: []event.StackID{1}},
	}}
	of := func(stack event.StackID, holder string, bytes int64, blocks uint64) view.Row {
		e := entry(int(stack), bytes)
		e.StackID, e.Holder, e.Blocks = stack, holder, blocks
		if stack == 0 {
			e.Name, e.File, e.Line = stacks.BeforeAttach, "", 0
		}
		return e
	}
	grown := of(1, "garbage Rollout.obs", 800, 8)
	for name, c := range map[string]struct {
		entries []view.Row
		want    int64
	}{
		"the same garbage":              {[]view.Row{grown, of(1, "garbage Rollout.act", 200, 2), of(0, "garbage Rollout.act", 70, 1)}, 1070},
		"something else grows not":      {[]view.Row{grown, of(1, "garbage Rollout.act", 200, 2), of(0, "garbage Model.weight", 70, 1)}, 1000},
		"held by what also holds other": {[]view.Row{grown, of(1, "log", 200, 2), of(2, "log", 50, 1), of(0, "log", 70, 1)}, 1000},
		"C++, of the same size":         {[]view.Row{grown, of(1, "<held by C++ only>", 200, 2), of(0, "<held by C++ only>", 700, 7)}, 1700},
		"C++, of another size":          {[]view.Row{grown, of(1, "<held by C++ only>", 200, 2), of(0, "<held by C++ only>", 700, 1)}, 1000},
		"not known":                     {[]view.Row{grown, of(1, view.NoHolder, 200, 2), of(0, view.NoHolder, 700, 7)}, 1000},
	} {
		rows, _, _ := rowsOf(&Input{Leaks: report}, c.entries...)
		require.NotNil(t, rows[0].Finding, name)
		require.Equal(t, c.want, rows[0].Bytes, name)
	}
}
