// SPDX-License-Identifier: Apache-2.0

package why

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
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

// TestAlone: a request for which PyTorch has no room even if it frees everything.
func TestAlone(t *testing.T) {
	const said = "PyTorch could have at most 23.5 GiB here, less than this request alone"
	c := fullCase()
	require.NotContains(t, Text(&c), "alone")
	c.Requested = 23*oomGiB + 600*oomMiB
	require.Contains(t, Text(&c), "512.0 MiB of the device was free. "+said+". The steps before peaked at 2.0 GiB")
	c.Decision, c.Larger = oom.LargerStep, true
	require.Contains(t, Text(&c), said)
	c.Limit = 12 * oomGiB
	require.Contains(t, Text(&c), "at most 12.0 GiB here by its own limit (set_per_process_memory_fraction), less than this")
	c.Free, c.Limit = event.Unknown, event.Unknown
	require.NotContains(t, Text(&c), "alone")
}

// TestText: what a sentence says beyond its decision.
// texts has, for each sentence or part of one, the change to a case that makes it.
var texts = map[string]func(c *oom.Case){
	"Within this step eval.py:3 eval has allocated 40 blocks that are still in use, 20.0 GiB; 19.0 GiB of it is held by list " +
		"in eval": func(c *oom.Case) {
		c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: "list in eval", Held: 19 * oomGiB,
			Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"20.0 GiB. They have the sizes of parameters that this line made before, which are still in use: if this is a copy of a model, " +
		"use the first one, or delete it before": func(c *oom.Case) {
		c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Copy: true, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"both are in use until it is made, 2.0 GiB: join them on the CPU, or fill one tensor that is made before": func(c *oom.Case) {
		c.Joined = oom.Growth{Site: "eval.py:3 eval", Count: heap.Count{Objects: 40, Bytes: oomGiB}}
	},
	"In the last 2.5 s memory rose from 1.0 GiB: eval.py:3 eval has allocated 40 blocks that are still in use, 20.0 GiB": func(c *oom.Case) {
		c.Time, c.Since, c.Low = 4e9, 15e8, oomGiB
		c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"still in use, 20.0 GiB": func(c *oom.Case) {
		c.Grown = oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"20.0 GiB. If a graph keeps them: evaluate under torch.no_grad()": func(c *oom.Case) {
		c.Phase, c.Grown = phases.Evaluation, oom.Growth{Site: "eval.py:3 eval", Holder: view.NoHolder, Places: 3,
			Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"held by total.grad_fn. A graph keeps them: evaluate under torch.no_grad()": func(c *oom.Case) {
		c.Phase, c.Grown = phases.Evaluation, oom.Growth{Site: "eval.py:3 eval", Holder: "total.grad_fn", Held: 1,
			Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
	},
	"The optimizer was making its state, of which 3.0 GiB is there": func(c *oom.Case) { c.State, c.Phase = 3*oomGiB, phases.Optimizer },
	"full: train.py:9 main asked for 1.0 GiB with 22.0 GiB allocated and 23.0 GiB reserved; 512.0 MiB of the device was free. The steps " +
		"before peaked at 2.0 GiB. 3.0 GiB that resume.py:4 main loaded has the sizes of parameters that are there too, held by checkpoint. " +
		"If it was copied into them, load it with map_location=\"cpu\", or drop it": func(c *oom.Case) {
		c.Loaded = oom.Leftover{Site: "resume.py:4 main", Holder: "checkpoint", Count: heap.Count{Bytes: 3 * oomGiB}}
	},
	"loaded twice, by the sizes: train.py:9 main asked for 1.0 GiB; 512.0 MiB of the device was free. 3.0 GiB that resume.py:4 main " +
		"loaded has the sizes of parameters that are there too. If it was copied into them, load it with map_location=\"cpu\", or " +
		"drop it": func(c *oom.Case) {
		c.Decision, c.Loaded = oom.LoadedTwice, oom.Leftover{Site: "resume.py:4 main", Holder: view.NoHolder,
			Count: heap.Count{Bytes: 3 * oomGiB}}
	},
	"memory of an earlier attempt: train.py:9 main asked for 1.0 GiB with 22.0 GiB allocated and 23.0 GiB reserved; 512.0 MiB of the " +
		"device was free. 9.0 GiB is left of an attempt that failed 2.0 s before, when 4.0 GiB was refused: tuner.tried['b'] keeps its " +
		"exception, whose traceback keeps the variables of its frames: keep str(error)": func(c *oom.Case) {
		c.Decision, c.Time = oom.EarlierAttempt, 5e9
		c.Attempt.Holder, c.Attempt.Count = "tuner.tried['b'].__traceback__.tb_frame", heap.Count{Bytes: 9 * oomGiB}
		c.Attempt.Time, c.Attempt.Requested = 3e9, 4*oomGiB
	},
	"was refused. If its exception is kept, that keeps the variables of its frames: keep only str(error), and leave the except block " +
		"before the next attempt": func(c *oom.Case) {
		c.Time, c.Attempt = 5e9, oom.Attempt{Time: 3e9, Leftover: oom.Leftover{Holder: view.NoHolder, Count: heap.Count{Bytes: 9 * oomGiB}}}
	},
	"Within this step the activations of 14 inputs that train.py:5 batch brought are in use, about 1.0 GiB of each. Where their losses do " +
		"not depend on each other, call backward() for each: a sum keeps them all": func(c *oom.Case) {
		c.Passes = oom.Passes{Site: "train.py:5 batch", Count: 14, Each: oomGiB}
	},
	"With expandable_segments:True it would not have failed, nor what followed it in earlier steps, by a replay": func(c *oom.Case) {
		c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Outcome: oom.Fits}
	},
	"in earlier steps, by a replay that is an estimate": func(c *oom.Case) {
		c.Decision, c.Replay = oom.Fragmentation,
			&oom.Replay{Outcome: oom.Fits}
	},
	"this request fits, by a replay; whether what would have followed it does is not known": func(c *oom.Case) {
		c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Outcome: oom.FitsOnce}
	},
	"With expandable_segments:True net.py:5 forward fails too, in step 3, by a replay": func(c *oom.Case) {
		c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Outcome: oom.Fails, Site: "net.py:5 forward", Step: 3}
	},
	"net.py:5 forward fails too, by a replay": func(c *oom.Case) {
		c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Exact: true, Outcome: oom.Fails, Site: "net.py:5 forward"}
	},
	"asked for 1.0 GiB with 22.0 GiB allocated (a.py:1 load 12.0 GiB, inputs 6.0 GiB) and 23.0 GiB reserved; 512.0 MiB of the device was " +
		"free. The steps before peaked at 2.0 GiB": func(c *oom.Case) {
		c.Categories = []oom.Sum{{Name: phases.NoCategory, Count: heap.Count{Bytes: 16 * oomGiB}},
			{Name: phases.Inputs, Count: heap.Count{Bytes: 6 * oomGiB}}}
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
}

func TestText(t *testing.T) {
	for want, change := range texts {
		requireText(t, want, change)
	}
}

// TestCaptureText: a capture of a CUDA graph has a pool of its own unless it is given one.
func TestCaptureText(t *testing.T) {
	frames := []event.Frame{{File: "/v/site-packages/torch/cuda/graphs.py", Func: "make_graphed_callables"}, {File: "/a/run.py", Func: "main"}}
	c := &oom.Case{Stack: &event.Stack{Frames: frames}}
	require.Contains(t, captureText(c), "unless all have the same pool=torch.cuda.graph_pool_handle()")
	c.Stack.Frames = frames[1:]
	require.Empty(t, captureText(c))
	c.Stack = nil
	require.Empty(t, captureText(c))
}

// TestStepsBeside: what a step needs is there beside a limit and a request that is too large, and another device beside fragmentation.
func TestStepsBeside(t *testing.T) {
	for want, change := range map[string]func(c *oom.Case){
		"the program's own limit, in a step that needs at least 23.0 GiB: those before peaked at 2.0 GiB. train.py:9 main asked for 1.0 GiB " +
			"with 22.0 GiB allocated and 23.0 GiB reserved; PyTorch may have 23.5 GiB (set_per_process_memory_fraction), and 512.0 MiB of " +
			"the device was free. It would also have fitted without the program's own limit, which leaves 1.0 GiB unused": func(c *oom.Case) {
			c.Larger, c.Also, c.Limit = true, []oom.Decision{oom.Limit}, 47*oomGiB/2
			c.Causes = []oom.Cause{
				{Decision: oom.LargerStep, Bytes: 21 * oomGiB, Alone: oom.Yes}, {Decision: oom.Limit, Bytes: oomGiB, Alone: oom.Yes},
			}
		},
		"a request larger than the device, in a step that needs at least 122.0 GiB: those before peaked at 2.0 GiB. " +
			"train.py:9 main asked for 100.0 GiB, the device has 24.0 GiB": func(c *oom.Case) {
			c.Decision, c.Requested, c.Total = oom.AbsurdRequest, 100*oomGiB, 24*oomGiB
			c.Causes = []oom.Cause{{Decision: oom.LargerStep, Bytes: 120 * oomGiB, Alone: oom.Yes}}
		},
		"On cuda:1 the process has only 1.0 GiB of 24.0 GiB": func(c *oom.Case) {
			c.Decision = oom.Fragmentation
			c.Elsewhere = []oom.DeviceUse{{Device: event.Device{Type: event.DeviceCUDA, Index: 1}, Used: oomGiB, Total: 24 * oomGiB}}
		},
	} {
		requireText(t, want, change)
	}
}

// TestDoubtText: growth that may have ended is said to be in doubt.
func TestDoubtText(t *testing.T) {
	for want, change := range map[string]func(c *oom.Case){
		"allocated. It rose only a few times, and a pool that fills looks the same": func(c *oom.Case) {
			c.Decision, c.Findings, c.Doubt = oom.Leak, oomFinding(20*oomGiB), leaks.FewRises
		},
		"allocated. The request was made outside the loop that grew, which may have ended": func(c *oom.Case) {
			c.Decision, c.Findings, c.Doubt = oom.Leak, oomFinding(20*oomGiB), leaks.MayBeOver
		},
		"without 2.0 GiB that a few equal rises had added": func(c *oom.Case) {
			c.Decision, c.Doubt, c.Also = oom.OtherProcess, leaks.FewRises, []oom.Decision{oom.Leak}
			c.Causes = []oom.Cause{{Decision: oom.Leak, Bytes: 2 * oomGiB, Alone: oom.Yes}}
		},
	} {
		requireText(t, want, change)
	}
}

// requireText compares the end of the sentence on a full device after a change.
func requireText(t *testing.T, want string, change func(c *oom.Case)) {
	t.Helper()
	t.Run(want, func(t *testing.T) {
		c := fullCase()
		change(&c)
		text := Text(&c)
		require.True(t, strings.HasSuffix(text, want) || strings.Contains(text, want+" the driver, and "), text)
	})
}

// TestLoadedByTheSameLine: of a model that does not fit where it is loaded, it says nothing of loading it elsewhere.
func TestLoadedByTheSameLine(t *testing.T) {
	c := &oom.Case{Site: "load.py:3 main", Fill: oom.Growth{Site: "load.py:3 main", Signs: advice.Load}}
	require.Empty(t, mappedText(c))
	c.Site = "load.py:5 main"
	require.Contains(t, mappedText(c), "loaded from a file")
	c.Fill.Signs = 0
	require.Empty(t, mappedText(c))
}

// TestCauses: what a sentence says of the causes.
func TestCauses(t *testing.T) {
	for want, change := range map[string]func(c *oom.Case){
		"This step first differs from those before at train.py:5 batch, which asked for 31.0 KiB and in those steps for at most 960 B. " +
			"Each of this line's last 30 requests was 8.0 MiB larger than the one before, as when torch.cat lengthens a tensor: " +
			"keep the parts in a list, on the CPU if there are many": func(c *oom.Case) {
			c.Larger, c.Departs, c.Ladder = true, oom.Departure{Site: "train.py:5 batch", Bytes: 31 << 10, Usual: 960}, oom.Ladder{Count: 30,
				More: 8 * oomMiB}
			c.Causes = []oom.Cause{{Decision: oom.LargerStep, Bytes: 21 * oomGiB, Alone: oom.Yes}}
		},
		"512.0 MiB of the device was free. In the steps before, this line asked for at most 96.0 MiB": func(c *oom.Case) {
			c.Larger, c.Departs = true, oom.Departure{Site: c.Site, Bytes: c.Requested, Usual: 96 * oomMiB}
			c.Causes = []oom.Cause{{Decision: oom.LargerStep, Bytes: 21 * oomGiB, Alone: oom.Yes}}
		},
		"before any step. It was loaded from a file: if it is not used on the device, load it to the CPU, as by map_location=\"cpu\"": func(c *oom.Case) {
			c.Decision, c.Phase = oom.Loading, phases.Setup
			c.Fill = oom.Growth{
				Site: "load.py:3 main", Holder: view.NoHolder, Phase: phases.Setup, Signs: advice.Load,
				Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB},
			}
		},
		"The steps before peaked at 2.0 GiB. Autocast keeps 2.0 GiB in copies of weights until its outermost context ends": func(c *oom.Case) {
			c.Casts = 2 * oomGiB
		},
		"it had grown to 20.0 GiB by then, of 22.0 GiB allocated. It would also have fitted without the program's own limit, which leaves 9.0 GiB unused, or without 3.0 GiB of fragmentation": func(c *oom.Case) {
			c.Decision, c.Findings = oom.Leak, oomFinding(20*oomGiB)
			c.Also = []oom.Decision{oom.Limit, oom.Fragmentation}
			c.Causes = []oom.Cause{
				{Decision: oom.Leak, Bytes: 20 * oomGiB, Alone: oom.Yes}, {Decision: oom.Limit, Bytes: 9 * oomGiB, Alone: oom.Yes},
				{Decision: oom.Fragmentation, Bytes: 3 * oomGiB, Alone: oom.Yes}, {Decision: oom.OtherProcess, Bytes: oomGiB, Alone: oom.No},
			}
		},
		"The steps before peaked at 2.0 GiB. Not enough alone: 400.0 MiB of other processes": func(c *oom.Case) {
			c.Need = 512 * oomMiB
			c.Causes = []oom.Cause{{Decision: oom.OtherProcess, Bytes: 400 * oomMiB, Alone: oom.No}, {Decision: oom.OutsidePyTorch, Bytes: 16 * oomMiB, Alone: oom.No}}
		},
		"full, in a step that needs at least 23.0 GiB: those before peaked at 2.0 GiB. train.py:9 main asked for 1.0 GiB with 22.0 GiB allocated and 23.0 GiB reserved; 512.0 MiB of the device was free. Within this step f has allocated 40 blocks that are still in use, 20.0 GiB": func(c *oom.Case) {
			c.Larger, c.Grown = true, oom.Growth{Site: "f", Holder: view.NoHolder, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
			c.Causes = []oom.Cause{{Decision: oom.LargerStep, Bytes: 21 * oomGiB, Alone: oom.Yes}}
		},
		"512.0 MiB of the device was free. load.py:3 main has put 40 blocks there, 20.0 GiB, before any step; 8.0 GiB of it is held by self.layers": func(c *oom.Case) {
			c.Decision = oom.Loading
			c.Fill = oom.Growth{Site: "load.py:3 main", Holder: "self.layers", Held: 8 * oomGiB, Phase: phases.Setup, Count: heap.Count{Objects: 40, Bytes: 20 * oomGiB}}
		},
		"asked for 2.0 TiB; PyTorch had 22.0 GiB allocated": func(c *oom.Case) {
			c.Decision, c.Requested, c.Total = oom.AbsurdRequest, 2<<40, event.Unknown
		},
		"cudaMalloc, the driver refused it, and PyTorch did not report it; 512.0 MiB of the device was free. Outside of PyTorch a.py:3 f keeps 48.0 MiB more each step, since step 1 of 9": func(c *oom.Case) {
			c.Decision, c.Reported, c.Call, c.Other.Bytes = oom.DriverError, false, "cudaMalloc", 9*oomGiB
			c.Outside = oomFinding(9 * oomGiB)
		},
		"the driver refused it, and PyTorch did not report it; 512.0 MiB of the device was free": func(c *oom.Case) {
			c.Decision, c.Reported, c.Call, c.Other.Bytes = oom.DriverError, false, "cudaMalloc", oomGiB
		},
		"Expandable segments are on": func(c *oom.Case) { c.Decision, c.Replay = oom.Fragmentation, &oom.Replay{Recorded: true} },
		"reserved and may have 23.5 GiB (set_per_process_memory_fraction) of the device's 24.0 GiB; it did not ask": func(c *oom.Case) { c.Decision, c.Limit = oom.Limit, 23*oomGiB+512*oomMiB },
	} {
		requireText(t, want, change)
	}
}

// oomFinding is a line that keeps 48 MiB each step.
func oomFinding(live uint64) []leaks.Finding {
	return []leaks.Finding{{
		File: "a.py", Line: 3, Function: "f", Requested: 48 * oomMiB, Bytes: 48 * oomMiB, Blocks: 1, Period: 1, First: 1, Last: 9, LiveBytes: live, Share: math.NaN(),
		Seconds: math.NaN(), Confidence: leaks.High,
	}}
}
