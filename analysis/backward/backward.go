// SPDX-License-Identifier: Apache-2.0

// Package backward finds the line of the forward pass that an allocation of the backward pass follows. Forward numbers the nodes
// of autograd's graph, thread by thread; each allocation says which number comes next on its thread, and in backward which number
// the node has that runs. So the node was made between two allocations of forward, or in one.
package backward

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Joiner puts the stacks of forward behind those of backward. It takes the events of one process in their order. Not safe for
// concurrent use.
type Joiner struct {
	resolve event.Resolve
	library func() []string
	limit   int // of joined stacks
	history map[uint32]*history
	about   map[event.StackID]*about
	nodes   map[event.StackID]string // names of the nodes that stacks run
	joined  map[event.StackID]*event.Stack
	pairs   map[[2]*about]*origin // what is between two stacks
	callers callers
	counts  Counts
	clock   uint64 // of history.used
}

// Counts is what became of the allocations of the backward pass.
type Counts struct {
	Certain uint64 // named by the line of forward
	Between uint64 // named by two lines: the node was made between them
	Unknown uint64 // the node was made before the first event, or its line is not known for another reason; the call names it
	NoNode  uint64 // the node has no number: it adds up a gradient, and the call of the backward pass names it
}

// New makes a joiner that has seen nothing. library returns the prefixes of Python files that are not the program's own, as of
// stacks.OwnFrame; limit is how many different joined stacks are made: what comes beyond is not joined.
func New(resolve event.Resolve, library func() []string, limit int) *Joiner {
	return &Joiner{
		resolve: resolve, library: library, limit: limit, history: map[uint32]*history{}, about: map[event.StackID]*about{},
		nodes: map[event.StackID]string{}, joined: map[event.StackID]*event.Stack{},
		pairs:   map[[2]*about]*origin{},
		callers: callers{map[event.StackID]*origin{}, map[uint32]*origin{}},
	}
}

// Counts is what became of the allocations so far.
func (j *Joiner) Counts() Counts { return j.counts }

// Stack is Resolve's, and knows the joined stacks too.
func (j *Joiner) Stack(id event.StackID) *event.Stack {
	if s := j.joined[id]; s != nil {
		return s
	}
	return j.resolve(id)
}

// Join sets the stacks by which the allocations of the backward pass among events, and requests that failed in it, are named.
func (j *Joiner) Join(events []event.Event) {
	for i := range events {
		e := &events[i]
		if e.Stack != 0 && e.Stack != event.StackLeftOut && !e.Autograd.Running && e.Layer == event.LayerAllocator {
			j.follow(e)
		}
		if e.Autograd == (event.Autograd{}) || e.Stack == 0 || e.Stack.Placeholder() != nil {
			continue
		}
		if e.Kind == event.KindOutOfMemory {
			j.joinFailed(e)
			continue
		}
		if e.Autograd.Running {
			e.Stack = j.named(e)
		}
		if e.Autograd.Thread != 0 {
			j.of(e.Autograd.Thread).add(mark{e.Autograd.Next, e.Stack})
		}
	}
}

// joinFailed is Join of a request that failed. It is no allocation: it is not counted, and no node was made behind it.
func (j *Joiner) joinFailed(e *event.Event) {
	if e.Autograd.Running {
		counts := j.counts
		e.Stack, j.counts = j.named(e), counts
	}
}

// named is the stack by which an allocation of the backward pass is named.
func (j *Joiner) named(e *event.Event) event.StackID {
	a := &e.Autograd
	if a.Node == event.Unknown {
		j.counts.NoNode++
		return j.called(e.Stack)
	}
	from := j.forward(e)
	if from == nil {
		j.counts.Unknown++
		return j.called(e.Stack)
	}
	id := j.join(e.Stack, from)
	switch {
	case id == e.Stack:
		j.counts.Unknown++
	case from.between:
		j.counts.Between++
	default:
		j.counts.Certain++
	}
	return id
}

// called is the stack by which an allocation of the backward pass is named if it follows no line of the forward pass: that of the call.
func (j *Joiner) called(id event.StackID) event.StackID {
	if from := j.caller(); from != nil {
		return j.join(id, from)
	}
	return id
}

// origin is where a node was made.
type origin struct {
	frames  []event.Frame // of the forward pass, with the mark before them
	id      uint64        // the same for the same frames
	between bool
}

// forward finds where the node was made that an event's allocation is of; nil: it is not known.
func (j *Joiner) forward(e *event.Event) *origin {
	h := j.history[e.Autograd.NodeThread]
	if h == nil {
		return nil
	}
	number := e.Autograd.Node
	first := h.first(number + 1)
	if node := cmp.Or(e.Autograd.Class, j.node(e.Stack)); node != "" {
		for i := first; i < len(h.marks) && h.marks[i].next == number+1; i++ {
			if at := j.look(h.marks[i].stack); at != nil && at.made(node) {
				return &at.origin
			}
		}
	}
	if first == 0 || first == len(h.marks) {
		return nil
	}
	return j.between(j.look(h.marks[first-1].stack), j.look(h.marks[first].stack))
}

// node is the name of the node that a stack runs.
func (j *Joiner) node(id event.StackID) string {
	name, ok := j.nodes[id]
	if !ok {
		if st := j.Stack(id); st != nil {
			name = stacks.NodeName(st.Frames)
		}
		j.nodes[id] = name
	}
	return name
}

// join is the stack of backward with that of forward behind it.
func (j *Joiner) join(id event.StackID, from *origin) event.StackID {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, []uint64{uint64(id), from.id}) // a hash takes everything
	joined := event.StackID(h.Sum64())
	if j.joined[joined] != nil {
		return joined
	}
	st := j.resolve(id)
	if st == nil || len(j.joined) >= j.limit || joined == 0 || joined.Placeholder() != nil {
		return id
	}
	frames := slices.Concat(stacks.OfNode(st.Frames), from.frames)
	j.joined[joined] = &event.Stack{ID: joined, Status: st.Status, Frames: frames}
	return joined
}
