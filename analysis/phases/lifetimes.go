// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"math/bits"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// turns reports whether a phase is one of those of which one follows another in a training loop. Data loaders and the program's own code
// run in between.
func turns(p Phase) bool {
	switch p {
	case Setup, Forward, Backward, Optimizer, ZeroGrad, Evaluation:
		return true
	}
	return false
}

// kept is what memory is for by the phase of its allocation, when it is in use beyond it.
func kept(p Phase) Category {
	switch p {
	case Setup:
		return Parameters
	case Input:
		return Inputs
	case Forward, Evaluation:
		return Activations
	case Backward, ZeroGrad:
		return Gradients
	case Optimizer:
		return OptimizerState
	case Communication:
		return Workspace
	}
	return NoCategory
}

// held is what memory is for by what holds it, as package inspect/holders calls it.
var held = map[string]Category{
	"parameters": Parameters, "buffers": Parameters, "gradients": Gradients, "optimizer state": OptimizerState,
	"kept by autograd graphs": Activations, "workspaces": Workspace,
}

// OfHolder is what memory is for by the category of its holder; NoCategory: that does not say.
func OfHolder(category string) Category {
	if c, ok := held[category]; ok {
		return c
	}
	return NoCategory
}

// Beside is what memory is for whose holder has no category. A reading tells parameters from other tensors: what lasts like parameters
// but is held by another variable, as a loaded checkpoint, has no category either. holder is its name; empty, or in brackets: no variable
// of the program is known.
func Beside(c Category, holder string) Category {
	if c == Parameters && holder != "" && holder[0] != '<' && holder[0] != '[' {
		return NoCategory
	}
	return c
}

// Start is what is noted of an allocation when it is made.
type Start struct {
	Result
	PID, TID uint32
	Stack    event.StackID
	class    int // of its size
	at       now
}

// now is how often the phase changed: that of the process, and that of a thread of it. The zero value is before the first event.
type now struct{ turn, visit uint64 }

// Lifetimes follows allocations from their start to their end, and says what they are for. Not safe for concurrent use.
type Lifetimes struct {
	c         *Classifier
	processes map[uint32]*process
	last      *process        // that of the last event; nil: there was none
	fates     map[alike]*fate // also of all sizes together, with the class anySize
}

// alike is what allocations have in common that usually end alike: the stack, and the class of the size. All layers
// of a network may have one stack, of which the last one's output is kept.
type alike struct {
	stack event.StackID
	class int
}

const (
	anySize = 0
	// fewAlike is how many allocations of one class of sizes say less than those of all sizes, as long as none was freed.
	fewAlike = 2
)

// classOf is the class of a size in bytes: there are four for each power of two.
func classOf(size uint64) int {
	n := bits.Len64(size)
	return 1 + 4*n + int(size<<(64-n)>>61&3)
}

// fate is what became of allocations that are alike.
type fate struct {
	made  uint64
	freed tally[Category] // what they were for
}

func (l *Lifetimes) fate(stack event.StackID, class int) *fate {
	key := alike{stack, class}
	f := l.fates[key]
	if f == nil {
		f = &fate{}
		l.fates[key] = f
	}
	return f
}

// process is what one process does now.
type process struct {
	pid     uint32
	phase   Phase
	turn    uint64
	threads map[uint32]*thread
	last    *thread // of the last event; nil: there was none
	// failed: a request was refused, and none was made since. What is freed then is freed by the exception, or because the program ends.
	failed bool
}

// thread is what one of its threads does now.
type thread struct {
	tid   uint32
	phase Phase
	visit uint64
}

// now is that of a thread.
func (p *process) now(tid uint32) now {
	out := now{turn: p.turn}
	if t := p.thread(tid); t != nil {
		out.visit = t.visit
	}
	return out
}

// thread is one that allocated; nil: it did not.
func (p *process) thread(tid uint32) *thread {
	if p.last != nil && p.last.tid == tid {
		return p.last
	}
	t := p.threads[tid]
	if t != nil {
		p.last = t
	}
	return t
}

// Follow begins to follow a stream of events.
func (c *Classifier) Follow() *Lifetimes {
	return &Lifetimes{c: c, processes: map[uint32]*process{}, fates: map[alike]*fate{}}
}

func (l *Lifetimes) process(pid uint32) *process {
	if l.last != nil && l.last.pid == pid {
		return l.last
	}
	p := l.processes[pid]
	if p == nil {
		p = &process{pid: pid, threads: map[uint32]*thread{}}
		l.processes[pid] = p
	}
	l.last = p
	return p
}

// See takes the next event, before it is applied.
func (l *Lifetimes) See(e *event.Event) {
	if e.Layer != event.LayerAllocator {
		return
	}
	if e.Kind == event.KindOutOfMemory {
		l.process(e.PID).failed = true
	}
	if e.Kind != event.KindAlloc {
		return
	}
	p, phase := l.process(e.PID), l.c.Of(e.Stack).Phase
	p.failed = false
	t := p.thread(e.TID)
	if t == nil {
		t = &thread{tid: e.TID}
		p.threads[e.TID] = t
	}
	if phase != t.phase {
		t.phase = phase
		t.visit++
	}
	if turns(phase) && phase != p.phase {
		p.phase = phase
		p.turn++
	}
}

// Start notes the allocation of a block. made: by an event of the thread tid that was seen now; else the block was
// in use before, and tid means nothing.
func (l *Lifetimes) Start(b *heap.Block, tid uint32, made bool) Start {
	out := Start{Result: l.c.Of(b.Stack), PID: b.PID, TID: tid, Stack: b.Stack, class: classOf(b.Size)}
	if made {
		out.at = l.process(b.PID).now(tid)
		if b.Stack != 0 {
			l.fate(b.Stack, out.class).made++
			l.fate(b.Stack, anySize).made++
		}
	}
	return out
}

// lasting are the categories that do not depend on the lifetime.
var lasting = map[Category]bool{Workspace: true, KVCache: true}

// Freed is what an allocation was for that a thread frees now; tid 0: it is not known which. After a request was
// refused it is what it was for when it was refused.
func (l *Lifetimes) Freed(s *Start, tid uint32) Category {
	if l.process(s.PID).failed {
		return l.InUse(s)
	}
	out := l.c.keptFor(s)
	if tid != 0 && tid == s.TID && s.at == l.process(s.PID).now(tid) && s.at.turn != 0 && !lasting[s.Category] {
		out = Temporary
	}
	if s.Stack != 0 {
		l.fate(s.Stack, s.class).freed.add(out, 1)
		l.fate(s.Stack, anySize).freed.add(out, 1)
	}
	return out
}

// InUse is what an allocation is for that is in use when the stream ends. In the phase of its allocation it is what all others
// like it were for; NoCategory where they differ, or there are none. It is not temporary where most of those are in use.
func (l *Lifetimes) InUse(s *Start) Category {
	alone := s.at.turn == 0 && s.Category != NoCategory // no phase was seen, as of a program without PyTorch
	if alone || s.at != l.process(s.PID).now(s.TID) || lasting[s.Category] {
		return l.c.keptFor(s)
	}
	f := l.fates[alike{s.Stack, s.class}]
	if f == nil || len(f.freed) == 0 && f.made <= fewAlike {
		f = l.fates[alike{s.Stack, anySize}]
	}
	if f == nil || len(f.freed) != 1 || f.freed[0].key == Temporary && f.made > 2*f.freed[0].n {
		return NoCategory
	}
	return f.freed[0].key
}

// keptFor is what an allocation is for that is in use beyond its phase.
func (c *Classifier) keptFor(s *Start) Category {
	if s.Category != NoCategory || s.Loaded && s.Phase == Setup {
		return s.Category
	}
	return kept(s.Phase)
}
