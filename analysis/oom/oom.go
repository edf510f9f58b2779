// SPDX-License-Identifier: Apache-2.0

// Package oom says why requests for GPU memory failed: each with where all memory was at that moment, what was free and could not be
// used, and one decision. The rules and thresholds are in docs/oom.md.
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

// Decision is why a request failed, in a word.
type Decision string

// The decisions; docs/oom.md says when each is taken.
const (
	AbsurdRequest  Decision = "absurd_request"  // no device, or not this one, could serve it
	DriverError    Decision = "driver_error"    // the driver refused it, and PyTorch did not report it
	Leak           Decision = "leak"            // what grows from step to step takes the place
	LargerStep     Decision = "larger_step"     // a cause only: the step needs more than those before, which is Full
	Fragmentation  Decision = "fragmentation"   // the memory is free, in pieces that are too small
	PrivatePool    Decision = "private_pool"    // the memory is free, in a pool or of a stream that the request may not use
	Limit          Decision = "limit"           // the program's own limit, not the device's
	OtherProcess   Decision = "other_process"   // others have the memory
	OutsidePyTorch Decision = "outside_pytorch" // the process has it, beside PyTorch's allocator
	PendingFrees   Decision = "pending_frees"   // it was freed and waits for another stream
	Cached         Decision = "cached"          // PyTorch keeps it unused, and the request is not PyTorch's
	EarlierPhase   Decision = "earlier_phase"   // the state of an optimizer that a call has used which has returned
	LoadedTwice    Decision = "loaded_twice"    // what was loaded from a file lies on the device beside the parameters that it was copied to
	Loading        Decision = "loading"         // a loop that loads or fills has put it there, before there were steps
	Full           Decision = "full"            // too much is asked for: by this step, or nothing suffices alone
)

// Answer is whether something is so, as far as it is known.
type Answer uint8

// The answers.
const (
	Unknown Answer = iota
	Yes
	No
)

// Input is what Find looks at.
type Input struct {
	Trace *view.Trace
	Steps *steps.Table
	Leaks *leaks.Report // nil: not judged
	// Readings are what the driver and the process's memory said while the trace was made, by time.
	Readings []figures.Reading
	// Ended says that the process ended with the trace, and Exit with which status; nil: that is not known.
	Ended bool
	Exit  *int
	// Library has prefixes of Python files that are not the program's own.
	Library []string
}

// Report is all requests that failed.
type Report struct {
	Cases []Case // in order
	// More is how many further requests failed that are not in Cases: the first and the last are.
	More int
	// Recovered is how many times the driver refused memory and the request was satisfied nevertheless, after the allocator had
	// returned its cache, or by asking again.
	Recovered int
	// Silent: no allocator of PyTorch's has reported anything, as with the backend cudaMallocAsync, so that requests that PyTorch refuses by
	// itself are not seen.
	Silent bool
}

// Case is one request that failed. Sizes are bytes; what is not known is event.Unknown.
type Case struct {
	Number   int // as in the moment oom:N
	PID      uint32
	TID      uint32
	Device   event.Device
	Time     uint64 // CLOCK_BOOTTIME nanoseconds
	Step     int    // 0: before the first, or not known
	Phase    phases.Phase
	Site     string // the line of the program that asked
	Stack    *event.Stack
	Call     string // of a driver error, the function that failed
	Reported bool   // by PyTorch
	Caught   Answer // the program went on
	Exit     *int   // its exit status, if it ended without asking for memory again; nil: it did ask, or that is not known
	// Async: PyTorch's backend is cudaMallocAsync, which reports nothing. Blocks are the driver's then, Torch is their sum as the program asked
	// for them, and what the driver's pool keeps beside them is in Context.
	Async bool
	Own   bool // of a request that PyTorch did not report: it is PyTorch's own, by that backend

	Requested uint64 // as PyTorch rounded it; of a driver error, as the call was given it
	Asked     uint64 // what the driver was asked for last; Unknown: it was not asked
	Page      uint64 // of Asked, what a call asked for: Asked is pages of an expandable segment; 0: one call asked for all
	Tries     int    // refusals of the driver for this request
	Flushed   uint64 // bytes of cached segments that PyTorch returned to the driver for it

	Torch  balance.Torch // at the failing call
	Owners []balance.OwnerUse
	Other  heap.Count // all of Owners

	// The device, by the reading nearest to the failure. Context is what the driver counts for the process beyond Torch and Other.
	Context  uint64
	Total    uint64
	Others   uint64 // of other processes
	By       []figures.ProcessUse
	Returned uint64 // of Others, the least that they have returned between the failure and the reading; 0: nothing is known to be
	Rest     uint64 // in use by no process that the driver lists, such as the driver's own; Unknown
	Free     uint64 // Total less all use, at the failing call
	// Unseen is what the context and other processes have at least, by the refusal, where no reading says it; 0: nothing shows it.
	Unseen uint64
	Read   uint64 // when it was read, CLOCK_BOOTTIME nanoseconds; 0: not at all

	Limit      uint64 // of the program's own, bytes of segments; Unknown: it has none, or it is not known
	LimitBelow uint64 // where only bounds of it are known: it is at least Limit and less than this; 0: Limit is exact

	Pools   []PoolFree // free memory in segments, that of the request first
	Largest uint64     // free piece that the request could have been given, had it been smaller
	Pieces  uint64     // all inactive splits of the request's pool and stream
	Pins    []Pin      // the segments with most free memory, and what keeps them

	Top        []Holding // live blocks by line, holder and category, largest first
	Categories []Sum     // live blocks by category, largest first
	HeldAt     uint64    // when the holders were read, CLOCK_BOOTTIME nanoseconds; 0: they are not known

	Before60 uint64 // allocated 60 s before; Unknown: the trace is shorter
	Steps    []StepPeak
	Healthy  uint64 // largest allocated total of the steps before that of the failure
	Findings []leaks.Finding
	Outside  []leaks.Finding // of device memory outside PyTorch

	Ended     Leftover    // the state of an optimizer of a phase before
	Loaded    Leftover    // what was loaded beside the parameters
	Elsewhere []DeviceUse // the other devices of the process
	Gathered  uint64      // bytes that nn.DataParallel has brought to the device in this step

	Grown   Growth // within the step of the failure; Site is empty: no line stands out
	Fill    Growth // what one line has put there before any step, with next to nothing freed; Site is empty: none has
	State   uint64 // what the optimizer has allocated in its first step, where the request failed in that; 0: it did not
	Need    uint64 // how much more had to be free; Unknown
	Follows uint64 // how much more earlier steps needed after this request than with it; Unknown: none has made it

	// Causes are what takes memory, each judged by itself: those without which alone the request would have fitted first, in order of how far they
	// are beyond what is usual. Decision is the first of them, else Full, and Also are the others that suffice alone.
	Causes   []Cause
	Decision Decision
	Larger   bool // Full is by LargerStep
	Also     []Decision
	Replay   *Replay // whether expandable segments would have helped; nil: that is not known

	whole  bool     // the process had no memory of the device before the trace
	asks   bool     // what the allocator asks the driver for is known
	limits []uint64 // what can be the program's own limit, bytes
	usual
}

// usual is what earlier steps show. Sizes are bytes; event.Unknown: it was not observed.
type usual struct {
	floor       uint64 // allocated when the step of the failure began
	rise        uint64 // the most that an earlier step has added to what there was when it began
	net         uint64 // by how much floor is above that of the first step
	idle        uint64 // reserved and not allocated at the peak of an earlier step: the least
	kept        uint64 // of what is free in other pools, what was free there when the step began
	usualOther  uint64 // outside PyTorch when an earlier step began: the least
	usualOthers uint64 // of other processes, by readings before the failure: the one in the middle
}

func unknownUsual() usual {
	const u = event.Unknown
	return usual{u, u, u, u, u, u, u}
}

// Replay is what became of the request, and of what follows it, with expandable segments.
type Replay struct {
	Recorded bool // they were on when it was recorded: nothing was replayed
	Outcome  Outcome
	Step     int    // of the first request that fails; 0: before the first, or there are no steps
	Site     string // of that; empty: none fails
	Exact    bool   // under the recorded settings the replay reserves what PyTorch did, at each event
}

// Outcome is how a replay ended.
type Outcome string

// The outcomes.
const (
	Fits     Outcome = "fits"     // the request and all that followed it in earlier steps
	FitsOnce Outcome = "fits_now" // the request; what follows it is not known
	Fails    Outcome = "fails"
)

// StepPeak is the largest allocated total of a step, bytes.
type StepPeak struct {
	Step int
	Peak uint64
}

// Sum is live blocks of a category.
type Sum struct {
	Name phases.Category
	heap.Count
}

// Holding is live blocks of one line, holder and category.
type Holding struct {
	Site     string
	Holder   string // view.NoHolder: not known
	Category phases.Category
	heap.Count
}

// Part is a part of what is allocated: a category, or a line of what has none.
type Part struct {
	Category phases.Category // empty: Site is given
	Site     string
	Bytes    uint64
}

// LargestParts are the largest parts of what is allocated, at most n.
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

// PoolFree is the free memory of a pool: what one request could be given is of one pool and stream.
type PoolFree struct {
	Small     bool // of blocks up to 1 MiB
	Private   bool // it is a CUDA graph's or MemPool's; false also where that is not known
	Owner     PoolOwner
	Stream    uint64 // raw handle; event.Unknown
	Request   bool   // it is that of the request
	Reserved  uint64
	Free      uint64 // inactive splits and free segments
	FreeWhole uint64 // of Free, segments without a block
	Largest   uint64
}

// PoolOwner is what a private pool was made for.
type PoolOwner string

// The owners, by the pool's id, of which CUDA graphs have the first number and what the program has made the second (MempoolId_t of
// c10/core/Allocator.h). Empty: it is not known, or the pool is not private.
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

// maxCases is of how many requests all is found out.
const maxCases = 100

// Find finds the requests of a trace that failed, and why. The trace is replayed once, if there are any.
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

// Fatal is how many requests failed that the program is not known to have survived.
func (r *Report) Fatal() int {
	n := 0
	for i := range r.Cases {
		if r.Cases[i].Caught != Yes {
			n++
		}
	}
	return n
}

// Main is the case that a summary begins with: the last that the program is not known to have survived, else the last; nil: there is
// none.
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
