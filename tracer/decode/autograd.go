// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package decode

import (
	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// autogradOf is what the record of an allocation says of autograd.
func (p *Process) autogradOf(r *bpf.TraceRecordEvent) event.Autograd {
	if !p.allocates {
		p.allocates = true
		p.code.Allocates()
	}
	if r.NextNode == event.Unknown {
		return event.Autograd{}
	}
	return event.Autograd{
		Next: r.NextNode, Node: r.Node, Thread: r.Thread, NodeThread: r.NodeThread, Running: r.Running != 0, Class: p.classOf(r.NodeClass),
	}
}

// maxClasses is how many classes of nodes are known at a time; PyTorch has some 700.
const maxClasses = 4096

// classOf is the name of the class of a node, by the address of its table of functions; empty: it cannot be read.
func (p *Process) classOf(vtable uint64) string {
	name, ok := p.classes[vtable]
	if ok || vtable == 0 {
		return name
	}
	if p.classes == nil || len(p.classes) >= maxClasses {
		p.classes = map[uint64]string{}
	}
	name = inspect.NodeClass(p.code.Memory(), vtable)
	p.classes[vtable] = name
	return name
}
