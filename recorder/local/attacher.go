// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// attacher has the tracer's methods that the source uses, with the same meaning. The tracer needs root and a kernel;
// tests of finding and starting processes have their own attacher.
type attacher interface {
	// Processes: traced ones and new ones.
	Ready() error
	Add(p *process.Process) (traced, error)
	Expect(p *process.Process) error
	Await()
	HookFile(path string) error
	Knows(pid int) bool
	Waiting() int
	Arrived() []traced
	ChildrenLost() uint64

	// Events.
	Read(buf []event.Event) ([]event.Event, error)
	Emptied() bool
	Lost() uint64
	Hits() ([]figures.Hits, error)
	Ended() bool
	Stop()
	Close() error

	// Texts, and the rights of an attach.
	Memory() directmap.Use
	Notices() []string
	Warnings() []error
	DropRights(also uint64) error
}

// traced has the methods of tracer.Target that the source uses.
type traced interface {
	PID() uint32
	Process() *process.Process
	About() *process.About
	Began() bool
	End() tracer.End
	Found() *tracer.Found
	Stack(id event.StackID) *event.Stack
	Lost() uint64
	StacksOverLimit() uint64
	StackRecordsLost() uint64
	Cost() figures.Cost
	RawStacks() figures.RawStacks
	CellText(name string) (text string, ok bool)
}

// kernel is the attacher that uses this machine's kernel.
type kernel struct{ *tracer.Tracer }

// Add implements attacher. Without a target it returns a nil traced.
func (k kernel) Add(p *process.Process) (traced, error) {
	t, err := k.Tracer.Add(p)
	if t == nil {
		return nil, err
	}
	return t, err
}

// Arrived implements attacher.
func (k kernel) Arrived() []traced {
	var out []traced
	for _, t := range k.Tracer.Arrived() {
		out = append(out, t)
	}
	return out
}
