// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/export/table"
)

var update = flag.Bool("update", false, "write the golden file anew")

// TestPrint: the verdict, then the rows, at each width; what is less than a hundredth is left out.
func TestPrint(t *testing.T) {
	finding := &leaks.Finding{File: "/a/train.py", Line: 41, Function: "main", Requested: 2 << 20, Period: 1, First: 1, Last: 60, Share: 0.98, Holder: "losses[0..59]", Seconds: 90}
	a := &Answer{
		Verdicts: []Verdict{{"GROWING", "ranks 0-1: " + table.LeakText(finding), finding}, {"OUT OF MEMORY", "rank 1: a request was refused", nil}},
		When:     "in use at the end",
		Lines: []ranks.Row{
			{Part: ranks.Part{Name: "a_module_with_a_long_name_of_its_own.py:1234 Decoder.forward.<locals>.<listcomp>", Bytes: 3 << 20}, Share: 0.75, Which: "all 2"},
			{Part: ranks.Part{Name: "[before attach]", Bytes: 1 << 20}, Share: 0.25, Which: "rank 0"},
			{Part: ranks.Part{Name: "train.py:1", Bytes: 1}, Share: 0.001, Which: "rank 0"},
		},
		Holders: []ranks.Row{{Part: ranks.Part{Name: "Trainer.fit() local self.callbacks[*].history['validation'][*].loss", Bytes: 4 << 20}, Share: 1, Which: "all 2"}},
	}
	var all strings.Builder
	for _, width := range []int{60, 80, 120, 200} {
		var out strings.Builder
		require.NoError(t, Print(&out, a, width))
		for line := range strings.Lines(out.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
		}
		fmt.Fprintf(&all, "===== %d columns\n%s", width, out.String())
	}
	const file = "testdata/job.golden"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String())
	require.NotContains(t, all.String(), "train.py:1 ")

	var none strings.Builder
	require.NoError(t, Print(&none, &Answer{}, 80))
	require.Empty(t, none.String())
}
