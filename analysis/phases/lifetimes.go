// SPDX-License-Identifier: Apache-2.0

package phases

import "github.com/gputrace/gputrace/event"

// turns are the phases of which one follows another in a training loop. Data loaders and the program's own code run in between.
var turns = map[Phase]bool{Setup: true, Forward: true, Backward: true, Optimizer: true, ZeroGrad: true, Evaluation: true}

// kept is what memory is for by the phase of its allocation, when it is in use beyond it.
var kept = map[Phase]Category{
	Setup: Parameters, Input: Inputs, Forward: Activations, Backward: Gradients, Optimizer: OptimizerState, ZeroGrad: Gradients,
	Communication: Workspace, Evaluation: Activations,
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

// Start is what is noted of an allocation when it is made.
type Start struct {
	Result
	PID, TID uint32
	Stack    event.StackID
	at       now
}

// now is how often the phase changed: that of the process, and that of a thread of it. The zero value is before the first event.
type now struct{ turn, visit uint64 }

// finished counts the allocations of a stack that were freed, by what they were for.
type finished map[Category]uint64

// Lifetimes follows allocations from their start to their end, and says what they are for. Not safe for concurrent use.
type Lifetimes struct {
	c         *Classifier
	processes map[uint32]*process
	finished  map[event.StackID]finished
}

// process is what one process does now.
type process struct {
	phase   Phase
	turn    uint64
	threads map[uint32]*thread
}

// thread is what one of its threads does now.
type thread struct {
	phase Phase
	visit uint64
}

// now is that of a thread.
func (p *process) now(tid uint32) now {
	out := now{turn: p.turn}
	if t := p.threads[tid]; t != nil {
		out.visit = t.visit
	}
	return out
}

// Follow begins to follow a stream of events.
func (c *Classifier) Follow() *Lifetimes {
	return &Lifetimes{c: c, processes: map[uint32]*process{}, finished: map[event.StackID]finished{}}
}

func (l *Lifetimes) process(pid uint32) *process {
	p := l.processes[pid]
	if p == nil {
		p = &process{threads: map[uint32]*thread{}}
		l.processes[pid] = p
	}
	return p
}

// See takes the next event, before it is applied.
func (l *Lifetimes) See(e *event.Event) {
	if e.Kind != event.KindAlloc || e.Layer != event.LayerTorch {
		return
	}
	p, phase := l.process(e.PID), l.c.Of(e.Stack).Phase
	t := p.threads[e.TID]
	if t == nil {
		t = &thread{}
		p.threads[e.TID] = t
	}
	if phase != t.phase {
		t.phase = phase
		t.visit++
	}
	if turns[phase] && phase != p.phase {
		p.phase = phase
		p.turn++
	}
}

// Start notes an allocation. made: by an event that was seen now; else it was in use before, and tid means nothing.
func (l *Lifetimes) Start(pid, tid uint32, stack event.StackID, made bool) Start {
	out := Start{Result: l.c.Of(stack), PID: pid, TID: tid, Stack: stack}
	if made {
		out.at = l.process(pid).now(tid)
	}
	return out
}

// Freed is what an allocation was for that a thread frees now; tid 0: it is not known which.
func (l *Lifetimes) Freed(s *Start, tid uint32) Category {
	out := l.c.keptFor(s)
	if tid != 0 && tid == s.TID && s.at == l.process(s.PID).now(tid) && s.at.turn != 0 && s.Category != Workspace {
		out = Temporary
	}
	if s.Stack != 0 {
		if l.finished[s.Stack] == nil {
			l.finished[s.Stack] = finished{}
		}
		l.finished[s.Stack][out]++
	}
	return out
}

// InUse is what an allocation is for that is in use when the stream ends. In the phase of its allocation it is what all others of its
// stack were for; NoCategory where they differ, or there are none.
func (l *Lifetimes) InUse(s *Start) Category {
	if s.at != l.process(s.PID).now(s.TID) || s.Category == Workspace {
		return l.c.keptFor(s)
	}
	if all := l.finished[s.Stack]; len(all) == 1 {
		for c := range all {
			return c
		}
	}
	return NoCategory
}

// keptFor is what an allocation is for that is in use beyond its phase.
func (c *Classifier) keptFor(s *Start) Category {
	if s.Category != NoCategory {
		return s.Category
	}
	if out, ok := kept[s.Phase]; ok {
		return out
	}
	return NoCategory
}
