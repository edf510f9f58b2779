// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
)

// autogradOf returns the state of autograd in the record of an allocation.
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

// maxClasses is the number of node classes that are kept; PyTorch has about 700.
const maxClasses = 4096

// classOf returns the class name of a node, by the address of its vtable; empty when it cannot be read.
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
