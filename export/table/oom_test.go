// SPDX-License-Identifier: Apache-2.0

package table

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

const (
	oomMiB = 1 << 20
	oomGiB = 1 << 30
)

// fullCase is a request for 1 GiB on a device of 24 GiB that is full.
func fullCase() oom.Case {
	return oom.Case{
		PID: 7, Reported: true, Site: "train.py:9 main", Requested: oomGiB, Asked: oomGiB, Tries: 2, Decision: oom.Full, Caught: oom.Yes,
		Torch: balance.Torch{Allocated: 22 * oomGiB, Reserved: 23 * oomGiB}, Total: 24 * oomGiB, Free: 512 * oomMiB, Limit: event.Unknown,
		Healthy: 2 * oomGiB, Before60: event.Unknown, Largest: oomMiB, Pieces: 3 * oomGiB,
	}
}

// TestOOMText: what a sentence says beyond its decision.
func TestOOMText(t *testing.T) {
	for want, change := range map[string]func(c *oom.Case){
		"Within this step eval.py:3 eval has allocated 40 blocks that are still in use, 20.0 GiB; 19.0 GiB of it are held by list in eval": func(c *oom.Case) {
			c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: "list in eval", Held: 19 * oomGiB, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
		},
		"still in use, 20.0 GiB": func(c *oom.Case) {
			c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
		},
		"20.0 GiB. If a graph keeps them: evaluate under torch.no_grad()": func(c *oom.Case) {
			c.Phase, c.Grown = phases.Evaluation, oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Places: 3, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
		},
		"held by total.grad_fn. A graph keeps them: evaluate under torch.no_grad()": func(c *oom.Case) {
			c.Phase, c.Grown = phases.Evaluation, oom.Growth{Site: "eval.py:3 eval", Holder: "total.grad_fn", Held: 1, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
		},
		"The optimizer was making its state, of which 3.0 GiB are there": func(c *oom.Case) { c.State, c.Phase = 3*oomGiB, phases.Optimizer },
		"With expandable_segments:True it would not have failed, by a replay": func(c *oom.Case) {
			c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true}
		},
		"it would not have failed, by a replay that is an estimate": func(c *oom.Case) { c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{} },
		"With expandable_segments:True net.py:5 forward fails in step 3, by a replay": func(c *oom.Case) {
			c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Site: "net.py:5 forward", Step: 3}
		},
		"net.py:5 forward fails, by a replay": func(c *oom.Case) {
			c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Site: "net.py:5 forward"}
		},
		"asked for 1.0 GiB with 22.0 GiB allocated (a.py:1 load 12.0 GiB, inputs 6.0 GiB) and 23.0 GiB reserved; 512.0 MiB of the device were free. The steps before peaked at 2.0 GiB": func(c *oom.Case) {
			c.Categories = []oom.Sum{{Name: phases.NoCategory, Count: heap.Count{Bytes: 16 * oomGiB}}, {Name: phases.Inputs, Count: heap.Count{Bytes: 6 * oomGiB}}}
			c.Top = []oom.Holding{
				{Site: "a.py:1 load", Holder: "x", Category: phases.NoCategory, Count: heap.Count{Bytes: 8 * oomGiB}},
				{Site: "b.py:1 f", Category: phases.Inputs, Count: heap.Count{Bytes: 6 * oomGiB}},
				{Site: "a.py:1 load", Holder: "y", Category: phases.NoCategory, Count: heap.Count{Bytes: 4 * oomGiB}},
				{Site: "c.py:1 g", Category: phases.NoCategory, Count: heap.Count{Bytes: 4 * oomGiB}},
			}
		},
		"Private pools keep 3.0 GiB free, in pieces of at most 512.0 MiB. The steps before peaked at 2.0 GiB": func(c *oom.Case) {
			c.Pools = []oom.PoolFree{
				{Request: true, Private: true, Free: 5 * oomGiB}, {Private: true, Free: oomGiB, Largest: 512 * oomMiB},
				{Private: true, Free: 2 * oomGiB, Largest: 128 * oomMiB}, {Free: oomGiB, Largest: oomGiB},
			}
		},
		"it had grown to 20.0 GiB by then, of 22.0 GiB allocated. Besides, the program's own limit: train.py:9 main asked for 1.0 GiB, PyTorch has 23.0 GiB reserved and may have 23.5 GiB; it did not ask the driver. 512.0 MiB of the device were free": func(c *oom.Case) {
			c.Decision, c.Also, c.Limit, c.Findings = oom.Leak, []oom.Decision{oom.Limit}, 23*oomGiB+512*oomMiB, oomFinding(20*oomGiB)
		},
		"of 22.0 GiB allocated. Besides, fragmentation: train.py:9 main asked for 1.0 GiB, and 3.0 GiB were free in the segments of its pool, in pieces of which the largest has 1.0 MiB; 512.0 MiB of the device were free": func(c *oom.Case) {
			c.Decision, c.Also, c.Findings = oom.Leak, []oom.Decision{oom.Fragmentation}, oomFinding(oomGiB)
		},
		"cudaMalloc, the driver refused it, and PyTorch did not report it; 512.0 MiB of the device were free. Outside of PyTorch a.py:3 f keeps 48.0 MiB more each step, since step 1 of 9": func(c *oom.Case) {
			c.Decision, c.Reported, c.Call, c.Other.Bytes = oom.DriverError, false, "cudaMalloc", 9*oomGiB
			c.Outside = oomFinding(9 * oomGiB)
		},
		"the driver refused it, and PyTorch did not report it; 512.0 MiB of the device were free": func(c *oom.Case) {
			c.Decision, c.Reported, c.Call, c.Other.Bytes = oom.DriverError, false, "cudaMalloc", oomGiB
		},
		"Expandable segments are on":                     func(c *oom.Case) { c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Recorded: true} },
		"reserved and may have 23.5 GiB; it did not ask": func(c *oom.Case) { c.Decision, c.Limit = oom.Limit, 23*oomGiB+512*oomMiB },
	} {
		t.Run(want, func(t *testing.T) {
			c := fullCase()
			change(&c)
			text := OOMText(&c)
			require.True(t, strings.HasSuffix(text, want) || strings.Contains(text, want+" the driver. "), text)
		})
	}
}

// oomFinding is a line that keeps 48 MiB each step.
func oomFinding(live uint64) []leaks.Finding {
	return []leaks.Finding{{
		File: "a.py", Line: 3, Function: "f", Requested: 48 * oomMiB, Bytes: 48 * oomMiB, Blocks: 1, Period: 1, First: 1, Last: 9, LiveBytes: live, Share: math.NaN(),
		Seconds: math.NaN(), Confidence: leaks.High,
	}}
}

// TestOOMAgain: failures of one line that follow each other are one entry, whatever is between others.
func TestOOMAgain(t *testing.T) {
	r := &oom.Report{}
	for i, site := range []string{"a.py:1 f", "a.py:1 f", "a.py:1 f", "b.py:2 g", "a.py:1 f"} {
		c := fullCase()
		c.Number, c.Site, c.Time = i+1, site, uint64(i+1)*1e9
		r.Cases = append(r.Cases, c)
	}
	r.Cases[4].Caught = oom.No
	var out strings.Builder
	require.NoError(t, OOM(&out, &OOMInput{Report: r}))
	require.Equal(t, 3, strings.Count(out.String(), "OUT OF MEMORY"), out.String())
	require.Equal(t, 1, strings.Count(strings.Join(strings.Fields(out.String()), " "), "again 2 failures of the same line and for the same reason, the last at +3.000"), out.String())
	require.Equal(t, 2, strings.Count(out.String(), "was not read in time"))
	require.Equal(t, 1, strings.Count(out.String(), "was not read before the program ended"))
}
