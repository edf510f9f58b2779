// SPDX-License-Identifier: Apache-2.0

// Package oom finds out why requests for GPU memory failed. For each request it reports where all memory was at that
// moment, what was free and could not be used, and one decision. The rules and thresholds are in docs/decisions/oom.md.
package oom

import (
	"cmp"
	"fmt"

	"github.com/gputrace/gputrace/analysis/balance"
	"github.com/gputrace/gputrace/analysis/fragments"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Decision is the reason why a request failed.
type Decision string

// The decisions; docs/decisions/oom.md says when each is taken.
const (
	AbsurdRequest  Decision = "absurd_request"  // no device, or not this one, could serve it
	DriverError    Decision = "driver_error"    // the driver refused it, and PyTorch did not report that
	Leak           Decision = "leak"            // memory that grows from step to step
	LargerStep     Decision = "larger_step"     // a cause only, decided as Full: the step needs more than earlier ones
	Fragmentation  Decision = "fragmentation"   // enough is free, in pieces that are too small
	PrivatePool    Decision = "private_pool"    // enough is free, in a pool or of a stream that the request may not use
	Limit          Decision = "limit"           // the program's own limit, not the device's
	OtherProcess   Decision = "other_process"   // other processes have the memory
	OutsidePyTorch Decision = "outside_pytorch" // the process has the memory, outside PyTorch's allocator
	PendingFrees   Decision = "pending_frees"   // freed memory waits for another stream
	Cached         Decision = "cached"          // PyTorch keeps free memory, and the request is not PyTorch's
	EarlierPhase   Decision = "earlier_phase"   // state of an optimizer that was used by a call which has returned
	EarlierAttempt Decision = "earlier_attempt" // what is kept of an attempt that was refused memory before
	LoadedTwice    Decision = "loaded_twice"    // loaded from a file, and on the device beside the parameters to which it was copied
	Loading        Decision = "loading"         // a loop that loads or fills has allocated it, before there were steps
	Full           Decision = "full"            // too much was requested: by this step, or no cause is enough alone
)

// Answer says whether something is true, as far as known.
type Answer uint8

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)

// Input is the input of Find.
type Input struct {
	Trace *view.Trace
	Steps *steps.Table
	Leaks *leaks.Report // nil: not judged
	// Readings are figures of the driver and the process's memory, read while the trace was made, by time.
	Readings []figures.Reading
	// Ended means that the process ended with the trace; Exit is its exit status, nil when not known.
	Ended bool
	Exit  *int
	// Library has path prefixes of Python files that do not belong to the program itself.
	Library []string
}

// Report has all requests that failed.
type Report struct {
	Cases []Case // in order
	// More is the number of failed requests that are not in Cases, which has the first and the last ones.
	More int
	// Recovered is the number of requests that the driver first refused and that then succeeded, because the allocator
	// returned its cache, or on a retry.
	Recovered int
	// Silent means that no PyTorch allocator has reported anything, as with the backend cudaMallocAsync, so that
	// requests which PyTorch itself refuses are not seen.
	Silent bool
}

// Case is one request that failed. Sizes are bytes; unknown ones are event.Unknown.
type Case struct {
	Number   int // as in the moment oom:N
	PID      uint32
	TID      uint32
	Device   event.Device
	Time     uint64 // CLOCK_BOOTTIME nanoseconds
	Step     int    // 0: before the first, or not known
	Phase    phases.Phase
	Site     string // the line of the program that made the request
	Stack    *event.Stack
	Call     string // for a driver error, the function that failed
	Reported bool   // by PyTorch
	Caught   Answer // the program continued
	Exit     *int   // the exit status, if the program ended without another allocation; nil: it allocated again, or not known
	// Async: PyTorch's backend is cudaMallocAsync, which reports nothing. The blocks are then the driver's, Torch is
	// the sum of their requested sizes, and Context includes what the driver's pool keeps in addition.
	Async bool
	Own   bool // the request is PyTorch's own, by that backend, although PyTorch did not report it

	Requested uint64 // as PyTorch rounded it; for a driver error, the argument of the call
	Asked     uint64 // the last request to the driver; Unknown: there was none
	Page      uint64 // part of Asked requested by one call, if Asked is pages of an expandable segment; 0: one call requested all
	Tries     int    // number of refusals by the driver for this request
	Flushed   uint64 // bytes of cached segments that PyTorch returned to the driver for it

	Torch  balance.Torch // at the failing call
	Owners []balance.OwnerUse
	Other  heap.Count // sum of Owners

	// The device, from the reading nearest to the failure. Context is the driver's figure for the process beyond Torch and Other.
	Context  uint64
	Total    uint64
	Others   uint64 // memory of other processes
	By       []figures.ProcessUse
	Returned uint64 // lower bound of what others returned between the failure and the reading, part of Others; 0: nothing known
	Rest     uint64 // used by no process that the driver lists, such as the driver's own; Unknown
	Free     uint64 // Total less all use, at the failing call
	// Unseen is the context and other processes together, if no reading has the figures; 0: not known. It is a lower
	// bound that follows from the refusal, or UnseenExact: the program knew from the driver how much was free.
	Unseen      uint64
	UnseenExact bool
	Read        uint64 // time of the reading, CLOCK_BOOTTIME nanoseconds; 0: there was none

	Limit      uint64 // the program's own, bytes of segments; Unknown: none, or not known
	LimitBelow uint64 // if only bounds are known, the limit is at least Limit and less than this; 0: Limit is exact

	Pools   []PoolFree // free memory in segments, the request's pool first
	Largest uint64     // largest free piece that a smaller request could have used
	Pieces  uint64     // all inactive splits of the request's pool and stream
	Pins    []Pin      // the segments with the most free memory, and the blocks that keep them

	// served: the line got as much before the first step, as in a first evaluation.
	served bool
	input  broughtInput
	info   memoryInfo // of the driver, just before the failure was reported

	Top        []Holding // live blocks by line, holder and category, largest first
	Categories []Sum     // live blocks by category, largest first
	HeldAt     uint64    // time of the reading of holders, CLOCK_BOOTTIME nanoseconds; 0: not known

	Before60 uint64 // allocated 60 s before; Unknown: the trace is shorter
	Steps    []StepPeak
	Healthy  uint64 // largest allocated total of earlier steps
	Findings []leaks.Finding
	Doubt    leaks.Doubt     // about Findings
	Outside  []leaks.Finding // device memory outside PyTorch

	Attempt   Attempt     // kept of an attempt that was refused before; its Bytes are 0: nothing
	Ended     Leftover    // state of an optimizer of an earlier phase
	Loaded    Leftover    // loaded in addition to the parameters
	Loading   Leftover    // loaded so far by the call that asks for more, beside other blocks of the same sizes
	Elsewhere []DeviceUse // the other devices of the process
	Casts     uint64      // bytes of copies of weights that autocast keeps
	Gathered  uint64      // bytes that nn.DataParallel has gathered on the device in this step

	Grown  Growth // within the failing step; Site is empty: no line stands out
	Spread Growth // of an evaluation's lines together, if Grown has none and they keep blocks of many operations; Places 0: no
	// Since is when the memory began to rise to what it was, CLOCK_BOOTTIME nanoseconds, and Low what was allocated then, bytes, if no step
	// is known: Grown, Spread and Passes are then about this time instead of a step. 0: a step is known, or there was no such rise.
	Since, Low uint64
	Passes     Passes    // forward passes of the failing step that wait for one backward pass; Count 0: none
	Fill       Growth    // allocated by one line before any step, with almost nothing freed; Site is empty: none
	Joined     Growth    // blocks of one line that the request was to copy into one; Site is empty: not known to be any
	Departs    Departure // the first request of the failing step that no step before had so large
	Ladder     Ladder    // of the requests of the line that failed
	State      uint64    // allocated by the optimizer in its first step, if the request failed in that; 0: it did not
	Need       uint64    // how much was missing; Unknown
	Follows    uint64    // how much earlier steps needed after this request, beyond it; Unknown: none made it

	// Causes lists what takes memory, each evaluated separately: first those that would have been enough alone, sorted by how far
	// they exceed what is usual. Decision is the first of them, otherwise Full, and Also has the others that are enough alone.
	Causes   []Cause
	Decision Decision
	Larger   bool // Full because of LargerStep
	Also     []Decision
	Replay   *Replay // whether expandable segments would have helped; nil: not known

	whole  bool     // the process had no memory of the device before the trace
	asks   bool     // the allocator's requests to the driver are known
	limits []uint64 // possible values of the program's own limit, bytes
	usual
}

// usual describes earlier steps. Sizes are bytes; event.Unknown: not observed.
type usual struct {
	floor       uint64 // allocated at the beginning of the failing step
	rise        uint64 // the largest addition of an earlier step to the memory at its beginning
	net         uint64 // floor less that of the first step
	idle        uint64 // minimum of what was reserved and not allocated at the peak of an earlier step
	kept        uint64 // part of the free memory in other pools that was already free when the step began
	usualOther  uint64 // minimum memory outside PyTorch at the beginning of an earlier step
	usualOthers uint64 // median memory of other processes, in readings before the failure
}

func unknownUsual() usual {
	const u = event.Unknown
	return usual{u, u, u, u, u, u, u}
}

// Replay is the outcome of the request, and of what follows it, with expandable segments.
type Replay struct {
	Recorded bool // they were on in the recording: nothing was replayed
	Outcome  Outcome
	Step     int    // step of the first request that fails; 0: before the first, or there are no steps
	Site     string // line of that request; empty: none fails
	Exact    bool   // under the recorded settings, the replay reserves the same as PyTorch at each event
}

// Outcome is the result of a replay.
type Outcome string

// The outcomes.
const (
	Fits     Outcome = "fits"     // the request, and all that followed it in earlier steps
	FitsOnce Outcome = "fits_now" // the request; what follows it is not known
	Fails    Outcome = "fails"
)

// StepPeak is the largest allocated total of a step, bytes.
type StepPeak struct {
	Step int
	Peak uint64
}

// Sum counts the live blocks of a category.
type Sum struct {
	Name phases.Category
	heap.Count
}

// Holding counts the live blocks of one line, holder and category.
type Holding struct {
	Site     string
	Holder   string // view.NoHolder: not known
	Category phases.Category
	heap.Count
}

// Part is a part of the allocated memory: a category, or a line whose blocks have none.
type Part struct {
	Category phases.Category // empty: Site is set
	Site     string
	Bytes    uint64
}

// LargestParts returns at most n of the largest parts of the allocated memory.
func (c *Case) LargestParts(n int) []Part {
	sums := map[Part]uint64{}
	for i := range c.Categories {
		if s := &c.Categories[i]; s.Name != phases.NoCategory {
			sums[Part{Category: s.Name}] += s.Bytes
		}
	}
	for i := range c.Top {
		if r := &c.Top[i]; r.Category == phases.NoCategory {
			sums[Part{Site: r.Site}] += r.Bytes
		}
	}
	var out []Part
	for part, bytes := range sums {
		part.Bytes = bytes
		out = append(out, part)
	}
	name := func(p Part) string { return cmp.Or(string(p.Category), p.Site) }
	sorts.Func(out, func(x, y Part) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(name(x), name(y))) })
	return out[:min(n, len(out))]
}

// PoolFree is the free memory of a pool. One request can only use one pool and stream.
type PoolFree struct {
	Small     bool // for blocks up to 1 MiB
	Private   bool // a CUDA graph's or MemPool's; also false when not known
	Owner     PoolOwner
	Stream    uint64 // raw handle; event.Unknown
	Request   bool   // the request's pool
	Reserved  uint64
	Free      uint64 // inactive splits and free segments
	FreeWhole uint64 // part of Free in segments without a block
	Largest   uint64
}

// PoolOwner says what a private pool was created for.
type PoolOwner string

// The owners, by the pool's id (MempoolId_t of c10/core/Allocator.h), whose first number is set for CUDA graphs and the
// second for pools that the program created. Empty: not known, or the pool is not private.
const (
	GraphPool   PoolOwner = "cuda_graph"
	ProgramPool PoolOwner = "mem_pool" // a MemPool, or a torch.cuda.graph_pool_handle()
)

func ownerOf(p *fragments.Pool) PoolOwner {
	switch {
	case !p.IsPrivate(), p.ID == fragments.Private:
		return ""
	case p.ID[0] != 0:
		return GraphPool
	}
	return ProgramPool
}

// Pin is a segment that cannot be returned, and the blocks in it.
type Pin struct {
	Addr, Size uint64
	Free       uint64
	Largest    uint64
	By         []Holding // without category
}

// maxCases is the maximum number of requests that are analysed.
const maxCases = 100

// Find finds the failed requests of a trace, and why they failed. If there are any, it replays the trace once.
func Find(in *Input) (*Report, error) {
	failed, recovered := in.Trace.Refusals()
	out := &Report{Recovered: recovered, Silent: len(in.Trace.End().Snapshot.Accounts) == 0}
	if len(failed) == 0 {
		return out, nil
	}
	f := newFollower(in)
	for i := range failed {
		out.More += failed[i].Skipped
		if i >= maxCases-1 && i < len(failed)-1 {
			out.More++
			continue
		}
		f.wait(&failed[i], i+1)
	}
	if err := in.Trace.Replay(f.visitor()); err != nil {
		return nil, fmt.Errorf("look at the requests that failed: %w", err)
	}
	for i := range f.cases {
		f.cases[i].decide()
	}
	out.Cases = f.cases
	return out, nil
}

// Fatal returns the number of failed requests that the program is not known to have survived.
func (r *Report) Fatal() int {
	n := 0
	for i := range r.Cases {
		if r.Cases[i].Caught != Yes {
			n++
		}
	}
	return n
}

// Main returns the case for the beginning of a summary: the last one that the program is not known to have survived,
// otherwise the last one; nil: none.
func (r *Report) Main() *Case {
	for i := len(r.Cases) - 1; i >= 0; i-- {
		if r.Cases[i].Caught != Yes {
			return &r.Cases[i]
		}
	}
	if n := len(r.Cases); n > 0 {
		return &r.Cases[n-1]
	}
	return nil
}
