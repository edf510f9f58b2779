// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event/figures"
	scan "github.com/gputrace/gputrace/inspect/holders"
)

// gathered is what the paths of the blocks of one holder have in common beside its name.
type gathered struct {
	figures.HolderFacts
	hooks      map[string]map[int64]bool // by the way to the object that has them: the numbers of their handles
	categories map[string]uint64         // bytes
	threads    map[uint64]bool           // threads whose frames have the variable
	bounded    map[uint64]*bounded       // containers with a bound, by address
	elements   heldElements
	bytes      uint64 // of all blocks
	outside    uint64 // bytes to which no container with a bound leads
	open       bool   // one of the containers with a bound is not full
	slices     int    // blocks that are shown in part, less those that are shown as a whole or of which it is not known
}

// heldElements are the elements with blocks of each container, whatever the blocks are called: two paths can lead to one container.
type heldElements map[uint64]map[uint64]bool

// bounded is a container that can hold no more than a number of elements.
type bounded struct {
	length, most uint64
	state        bool               // of an optimizer, which makes it for a parameter in its first step with a gradient
	elements     map[uint64]uint64  // bytes of the blocks that an element holds, by its address
	blocks       map[[2]uint64]bool // what was counted, by element and address: a block can also be found at a place of the program
}

// Facts are what the report says about holders beside their names, by name; holders about which it says nothing are left out.
func (h *Index) Facts() map[string]figures.HolderFacts {
	all, elements := map[string]*gathered{}, heldElements{}
	for i := range h.owners {
		b := h.block(i)
		if len(b.Path) == 0 {
			continue
		}
		g := all[h.owners[i]]
		if g == nil {
			g = &gathered{
				hooks: map[string]map[int64]bool{}, categories: map[string]uint64{}, threads: map[uint64]bool{}, bounded: map[uint64]*bounded{},
				elements: elements,
			}
			all[h.owners[i]] = g
		}
		g.add(b)
	}
	out := map[string]figures.HolderFacts{}
	for name, g := range all {
		if g.finish(); g.HolderFacts != (figures.HolderFacts{}) {
			out[name] = g.HolderFacts
		}
	}
	return out
}

// add takes the path of a block.
func (g *gathered) add(b *scan.Block) {
	if c := phases.OfHolder(b.Category.String()); c != phases.NoCategory {
		g.categories[string(c)] += b.Size
	}
	if _, part := seenPart(b); part {
		g.slices++
	} else {
		g.slices--
	}
	if root := &b.Path[0]; root.Kind == scan.StepFrame && root.Frame != nil {
		g.threads[root.Frame.Thread] = true
	}
	chain, reset, weak, within := 0, "", false, false
	for i := range b.Path {
		s := &b.Path[i]
		weak = weak || s.Type == "WeakKeyDictionary"
		switch s.Kind {
		case scan.StepGarbage, scan.StepOwnHook:
			if g.Cycle == "" && len(s.Cycle) > 0 {
				g.Cycle = strings.TrimPrefix(s.Cycle.String(), "garbage ")
			}
		case scan.StepNext, scan.StepGradFn, scan.StepNative:
			chain++
			g.Written = g.Written || i > 0 && b.Path[i-1].Name == writeNode && s.Kind == scan.StepNext && s.Index != formerTensor
		case scan.StepElided:
			if s.Name == "" {
				chain += int(s.Index)
			} else if g.Links < int(s.Index) {
				g.Links, g.Link = int(s.Index), scan.Path{{Kind: scan.StepAttribute, Name: s.Name}}.String() // safe to show
			}
		case scan.StepSlot:
			g.Cache = g.Cache || s.Name == "cache"
		case scan.StepKey:
			if i > 0 && strings.HasSuffix(b.Path[i-1].Name, "_hooks") {
				g.hook(b.Path[:i], s.Index)
			}
		}
		g.Queue = g.Queue || isQueue(b.Path[:i+1])
		if s.Most > 0 && i+1 < len(b.Path) {
			g.Full, g.open, within = true, g.open || s.Length < s.Most || isState(s), true
			g.bound(s, b.Path[i+1].Addr, b)
		}
		if s.Resets && i+1 < len(b.Path) {
			reset = b.Path[:i+1].String()
		}
	}
	g.Weak = weak && (g.Weak || g.bytes == 0)
	if !within {
		g.outside += b.Size
	}
	g.bytes += b.Size
	if g.Chain = max(g.Chain, chain); g.Reset == "" {
		g.Reset = reset
	}
}

// queues are the classes that keep their elements in an attribute queue or _queue (Lib/queue.py, Lib/asyncio/queues.py).
var queues = map[string]bool{"Queue": true, "PriorityQueue": true, "LifoQueue": true}

// isQueue reports whether a path leads to the elements of a queue.
func isQueue(p scan.Path) bool {
	last := len(p) - 1
	if p[last].Kind != scan.StepAttribute || p[last].Name != "queue" && p[last].Name != "_queue" {
		return false
	}
	for last--; last >= 0 && p[last].Kind == scan.StepDict; last-- {
	}
	return last >= 0 && queues[p[last].Type]
}

// hook counts a hook of an object.
func (g *gathered) hook(object scan.Path, number int64) {
	name := object.String()
	if g.hooks[name] == nil {
		g.hooks[name] = map[int64]bool{}
	}
	g.hooks[name][number] = true
}

// bound takes a block of an element of a container with a bound.
func (g *gathered) bound(container *scan.Step, element uint64, b *scan.Block) {
	c := g.bounded[container.Addr]
	if c == nil {
		c = &bounded{container.Length, container.Most, isState(container), map[uint64]uint64{}, map[[2]uint64]bool{}}
		g.bounded[container.Addr] = c
	}
	if g.elements[container.Addr] == nil {
		g.elements[container.Addr] = map[uint64]bool{}
	}
	g.elements[container.Addr][element] = true
	if k := [2]uint64{element, b.Addr}; !c.blocks[k] {
		c.blocks[k] = true
		c.elements[element] += b.Size
	}
}

// The elements of a container are alike if at least 1/fewElements of them hold blocks, and none holds more than muchElement times
// the mean.
const (
	fewElements = 2
	muchElement = 4
)

// isState reports whether a container with a bound is the state of an optimizer (torch/optim/optimizer.py).
func isState(s *scan.Step) bool { return s.Name == "state" && s.Type == "defaultdict" }

// grows reports whether memory in the container grows by its elements: all are alike, and none of them grows by itself. held is how
// many hold blocks, whatever these are called. Parameters differ in size, but the state of each is a few blocks; one with more is a list.
func (c *bounded) grows(held uint64) bool {
	if c.state {
		each := map[uint64]int{}
		for k := range c.blocks {
			if each[k[0]]++; each[k[0]] > stateBlocks {
				return false
			}
		}
		return true
	}
	var sum, most uint64
	for _, bytes := range c.elements {
		sum, most = sum+bytes, max(most, bytes)
	}
	n := uint64(len(c.elements))
	return held > 1 && fewElements*held >= c.length && most*n <= muchElement*sum
}

// outsideShare: containers with a bound tell nothing of a name if 1/outsideShare of its memory is in others.
const outsideShare = 8

// writeNode is the node of autograd that a write to a part of a tensor makes (torch/csrc/autograd/functions/tensor.h).
const writeNode = "CopySlices"

// formerTensor is the index of the step to what the tensor was before. The others lead to what was written, or to its function.
const formerTensor = 0

// stateBlocks is the most blocks that an optimizer of PyTorch keeps of a parameter on a device: exp_avg, exp_avg_sq, max_exp_avg_sq and step.
const stateBlocks = 4

// bounds sums up the containers with a bound. One of which the elements are not alike leaves none.
func (g *gathered) bounds() {
	if g.outside*outsideShare > g.bytes {
		g.Full = false
		return
	}
	var length, most, bytes, elements uint64
	for at, c := range g.bounded {
		if !c.grows(uint64(len(g.elements[at]))) {
			return
		}
		length, most, elements = length+c.length, most+c.most, elements+uint64(len(c.elements))
		g.State = g.State || c.state
		for _, b := range c.elements {
			bytes += b
		}
	}
	if len(g.bounded) > 1 {
		g.Containers = len(g.bounded)
	}
	if g.Length, g.Most = length, most; elements > 0 {
		g.Each = bytes / elements
	}
}

// leastNodes is how many nodes of autograd in a row are worth a word.
const leastNodes = 2

// finish sums up.
func (g *gathered) finish() {
	if g.Chain < leastNodes {
		g.Chain = 0
	}
	if strings.HasSuffix(g.Link, "[]") {
		g.Link = ""
	}
	g.Slice, g.Full = g.slices > 0, g.Full && !g.open
	g.bounds()
	if g.Threads = len(g.threads); g.Threads == 1 {
		g.Threads = 0
	}
	for _, numbers := range g.hooks {
		g.Hooks = max(g.Hooks, len(numbers))
	}
	most := uint64(0)
	for name, bytes := range g.categories {
		if bytes > most || bytes == most && name < g.Category {
			most, g.Category = bytes, name
		}
	}
}
