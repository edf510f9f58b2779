// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package local

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// attacher is what the source asks of the tracer, as which its methods are documented. The tracer needs root and a kernel; the tests
// of finding and starting processes make their own.
type attacher interface {
	// Processes: which are traced, and which are to be.
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

	// Texts, and the rights that an attach has.
	Memory() directmap.Use
	Notices() []string
	Warnings() []error
	DropRights(also uint64) error
}

// traced is what the source asks of a tracer.Target.
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
	RawStacks() figures.RawStacks
	CellText(name string) (text string, ok bool)
}

// kernel is the attacher of this machine.
type kernel struct{ *tracer.Tracer }

// Add implements attacher: without a target, traced is nil.
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
