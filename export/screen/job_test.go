// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/eventtest"
)

var update = flag.Bool("update", false, "write the golden file anew")

// rankAnswer is the conclusion on a rank that keeps some bytes a step in a list, and has so many MiB of it and as many of something else.
func rankAnswer(t *testing.T, bytes float64, live uint64) *answer.Answer {
	t.Helper()
	j := eventtest.NewJob()
	j.Alloc(eventtest.Kept, live<<20)
	j.Alloc(eventtest.Forward, 64<<20)
	trace, err := view.NewTrace(&j.Stream, nil)
	require.NoError(t, err)
	r := &leaks.Report{Verdict: leaks.Steady, Steps: leaks.Steps{Count: 60, Period: 5e8}}
	if bytes > 0 {
		r.Verdict = leaks.Growing
		r.Findings = []leaks.Finding{{
			Layer: event.LayerAllocator, File: "/home/a/train.py", Line: 41, Function: "main", Requested: bytes, Bytes: bytes, Blocks: 1, Period: 1,
			First: 1, Last: 60,
			Share: 0.98, Holder: "losses[0..59]", Seconds: 90, Confidence: leaks.High, Stacks: []event.StackID{j.ID(eventtest.Kept)},
		}}
	}
	free := map[event.Device]uint64{{Type: event.DeviceCUDA}: 1 << 30}
	return answer.New(&answer.Input{View: trace.End(), Now: trace.End(), Leaks: r, Start: 1, End: 30e9, Events: 10, Free: free})
}

// TestPrintJob: a job has the form of a process: who grows, then the rows with the processes that have them, then a line for each.
func TestPrintJob(t *testing.T) {
	job := answer.NewJob([]answer.Process{
		{Identity: ranks.Identity{Rank: 0, PID: 10}, Answer: rankAnswer(t, 0, 1)},
		{Identity: ranks.Identity{Rank: 1, PID: 11}, Answer: rankAnswer(t, 2<<20, 120)},
		{Identity: ranks.Identity{Rank: 2, PID: 12}, Answer: rankAnswer(t, 1<<20, 60)},
	})
	require.Len(t, job.Groups, 2)
	require.Equal(t, []int{1, 2}, job.Groups[0].Processes)
	require.InDelta(t, float64(6<<20), job.All.Rate, 1, "two ranks, 0.5 s a step")
	require.True(t, math.IsNaN(answer.NewJob(nil).All.Seconds))
	require.EqualValues(t, (3*64+181)<<20, job.All.Total)
	var all strings.Builder
	for _, width := range []int{60, 80, 120} {
		var out strings.Builder
		require.NoError(t, PrintJob(&out, &JobInput{
			Job: job, Processes: 3, Screen: Screen{Width: width}, Page: "out/report.html",
			Counted: table.JobInput{Duration: 30 * time.Second,
				Rows: []table.JobRow{{Process: "rank 0, pid 10 train.py", Device: "cuda:0", Live: 65 << 20, Peak: 65 << 20, Reserved: 80 << 20,
					Allocated: 5}}},
		}))
		for line := range strings.Lines(out.String()) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
		}
		fmt.Fprintf(&all, "===== %d columns\n%s", width, out.String())
	}
	const file = "testdata/job.golden"
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(all.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), all.String())
}
