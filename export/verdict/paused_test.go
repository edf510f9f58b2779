// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/event"
)

// A process that does not run allocates nothing: the verdict says why. One that ran before is judged as ever.
func TestPaused(t *testing.T) {
	const paused = "stopped by a signal (kill -CONT 7 continues it)"
	a := &answer.Answer{Leaks: &leaks.Report{}, Duration: 2 * time.Second}
	require.Equal(t, "UNKNOWN  no allocation or free was seen in 2.0 s", Of(a).String())
	a.Paused = paused
	require.Equal(t, "UNKNOWN  no allocation or free was seen in 2.0 s: the process was "+paused, Of(a).String())
	require.Empty(t, Of(a).Notes)
	a.Events, a.Leaks.Verdict = 1, leaks.Steady
	require.Equal(t, []Note{{"paused", "the process was " + paused + " when the recording ended"}}, Of(a).Notes)
}

// TestCapital: a sentence begins with a capital, and a file keeps its name.
func TestCapital(t *testing.T) {
	require.Equal(t, "No line grows", capital("no line grows"))
	require.Equal(t, "gan.py:34 Run.step keeps 12.0 MiB more", capital("gan.py:34 Run.step keeps 12.0 MiB more"))
	require.Empty(t, capital(""))
}

// TestRisen: what rose while the process was recorded has a rate, unless nothing happened in the later half.
func TestRisen(t *testing.T) {
	a := &answer.Answer{First: 100 << 20, Last: 900 << 20, Duration: 10 * time.Second, Quiet: uint64(4 * time.Second)}
	require.Equal(t, "PyTorch's blocks rose from 100.0 MiB to 900.0 MiB, +80.0 MiB/s. ", risen(a))
	a.Quiet = uint64(5 * time.Second)
	require.Equal(t, "PyTorch's blocks rose from 100.0 MiB to 900.0 MiB, and have not changed for 5.0 s. ", risen(a))
	a.Last = 109 << 20
	require.Empty(t, risen(a))
}

// TestHostNotes: growth of host memory has no row, so that its amount and its advice are notes.
func TestHostNotes(t *testing.T) {
	require.Empty(t, hostNotes(&leaks.Finding{Layer: event.LayerAllocator, LiveBytes: 4096, LiveBlocks: 1}))
	got := hostNotes(&leaks.Finding{Layer: event.LayerHost, LiveBytes: 8 << 20, LiveBlocks: 2})
	require.Equal(t, []Note{{"live", "8.0 MiB in 2 blocks, allocated since the attach"}}, got)
}

// TestGrowsAfterFailure: what grows in a program that survived a failure is beside the failure, unless it is its cause.
func TestGrowsAfterFailure(t *testing.T) {
	grown := []leaks.Finding{{File: "a.py", Line: 3, Bytes: 512, Blocks: 1, Period: 1}}
	words := func(caught oom.Answer, d oom.Decision) (out []string) {
		a := &answer.Answer{Seconds: math.NaN(), Case: &oom.Case{Caught: caught, Decision: d, Findings: grown}, Leaks: &leaks.Report{
			Verdict: leaks.Growing, Findings: grown,
		}}
		for _, n := range Of(a).Notes {
			out = append(out, n.Name)
		}
		return out
	}
	require.Equal(t, []string{"why", "device", "grows"}, words(oom.Yes, oom.Full))
	require.Equal(t, []string{"why", "device"}, words(oom.Yes, oom.Leak))
	require.Equal(t, []string{"why", "device"}, words(oom.No, oom.Full))
}

// TestGarbageGrows: growth that is all garbage says so, and growth of something else does not.
func TestGarbageGrows(t *testing.T) {
	const freed = "; all of it is garbage, which Python's cycle collector has not freed so far"
	a := &answer.Answer{Seconds: math.NaN(), Leaks: &leaks.Report{Verdict: leaks.Growing}}
	a.Leaks.Findings = []leaks.Finding{{Holder: "garbage Node.state"}, {Holder: "garbage Tree"}}
	require.Contains(t, growing(a), freed)
	a.Leaks.Findings[1].Holder = "losses[0..9]"
	require.NotContains(t, growing(a), freed)
}

// TestBoundedNote: a container that explains a rise has its bound.
func TestBoundedNote(t *testing.T) {
	require.Nil(t, boundedNote(nil))
	require.Equal(t, []Note{{"fills", "history[0..174] had 306 of at most 600 elements when it was read: 150.0 MiB when it is full"}},
		boundedNote(&answer.Bounded{Holder: "history[0..174]", Length: 306, Most: 600, Full: 150 << 20}))
	require.Equal(t, "main.history[0..174] and 1 other container had 306 of at most 600 elements when they were read: "+
		"150.0 MiB when they are full",
		boundedNote(&answer.Bounded{Holder: "main.history[0..174]", Others: 1, Length: 306, Most: 600, Full: 150 << 20})[0].Text)
}
