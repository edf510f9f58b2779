// SPDX-License-Identifier: Apache-2.0

package notice

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/internal/made"
	"github.com/gputrace/gputrace/recorder/reconcile"
)

// run records two processes, one of which allocates nothing, and returns the other and the events.
func run(t *testing.T) (*recorder.Process, []recorder.Event) {
	t.Helper()
	seen := &made.Observer{}
	source := &made.Source{Targets: []recorder.Target{&made.Target{ID: 6}, &made.Target{ID: 7}}, Batches: []made.Batch{
		{Events: []event.Event{made.Alloc(7, made.Second, 0x1000, 512, 512)}},
	}}
	r := recorder.New(source, &recorder.Options{PIDs: []int{6, 7}, Observer: seen})
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Len(t, results.Processes(), 1)
	return results.Processes()[0], seen.Events
}

// TestLines: each event is written as it was shown on the terminal when the recorder itself wrote it.
func TestLines(t *testing.T) {
	p, events := run(t)
	require.Len(t, events, 1)
	require.Equal(t, []string{"pid 6 used no GPU memory"}, Lines(events[0], true))
	leak := leaks.Finding{Line: 17, File: "/a/train.py", Bytes: 1024, Requested: 1000, Holder: "main() local seen[0..99]", Seconds: 9}
	finding := func(news recorder.News) *recorder.Finding {
		return &recorder.Finding{Process: p, News: news, Leak: leak, Step: 12}
	}
	corrected := heap.Result{Added: heap.Count{Objects: 1, Bytes: 2048}}
	for want, e := range map[string]recorder.Event{
		"  growing: " + table.LeakText(&leak):                              finding(recorder.Growing),
		"  held by  main() local seen[0..99]":                              finding(recorder.HeldBy),
		"  full in  9.0 s at this rate":                                    finding(recorder.FullIn),
		"  growing: more lines, which the report names":                    finding(recorder.Further),
		"  no longer growing: " + leak.Name() + ", as of step 12":          finding(recorder.Withdrawn),
		"  out of memory: a request for 4.0 KiB failed":                    &recorder.OutOfMemory{Bytes: 4096},
		"  the program has caught that and goes on; so does the recording": &recorder.Survived{},
		"  out of memory: a request for 4.0 KiB failed; x.oom1/ has the recording up to here": &recorder.OutOfMemory{
			Bytes: 4096, Kept: "x.oom1",
		},
		"who holds the live blocks could not be read: torn": &recorder.HoldersUnread{Err: errors.New("torn")},
		"  recorded 90.0 s": &recorder.Ending{Recorded: 90 * time.Second},
		"  recorded 5.0 s: reading who holds the blocks, Ctrl-C skips": &recorder.Ending{Recorded: 5 * time.Second, Reading: true},
		"live = allocator state: 2 blocks compared":                    &recorder.Comparison{Outcome: &reconcile.Outcome{Blocks: 2}},
		"the live set could not be compared with the allocator state: it moves": &recorder.Comparison{
			Outcome: &reconcile.Outcome{Err: errors.New("it moves")},
		},
		"  events were lost; the allocator state put the live set right: blocks that it lacked: 1 (2.0 KiB)": &recorder.Comparison{
			Outcome: &reconcile.Outcome{Corrected: &corrected},
		},
	} {
		require.Equal(t, []string{want}, Lines(e, false))
	}
	require.Equal(t, []string{"  pid 7: held by  main() local seen[0..99]"}, Lines(finding(recorder.HeldBy), true))
	require.Empty(t, Lines(&recorder.Loss{}, true))
}

// TestAlertLines: an alert has a line for itself and one for each line of the program, indented below the live line.
func TestAlertLines(t *testing.T) {
	rule := alerts.Rule{Text: "use>1000", Kind: alerts.Use, Bound: 1000}
	got := Lines(&recorder.Alert{Alert: &alerts.Alert{Rule: rule, Process: "pid 7", Device: "cuda:0", Measured: math.Ldexp(1, 20)}}, false)
	require.NotEmpty(t, got)
	require.Regexp(t, `^  \S.*use>1000`, got[0])
}
