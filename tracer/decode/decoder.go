// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

// Package decode makes events and stacks of the records that the kernel side sends. It knows no kernel and no process: what is known of the
// code of one is asked by an interface.
package decode

import (
	"cmp"
	"math"
	"time"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// DefaultStacks is how many different stacks are kept when nothing else is said. A training job has some thousands; a stack of 50
// frames takes 10 kB.
const DefaultStacks = 1 << 16

// maxHooks is how many rows the kernel's table of hooks has.
const maxHooks = len(bpf.TraceHookTable{}.Row)

// Options may be nil.
type Options struct {
	// MaxStacks is how many different stacks are kept of a process. What comes beyond is counted on one stack, event.StackOverLimit. 0
	// means DefaultStacks.
	MaxStacks int
	// Row is the function that a row of the kernel's table is about; nil, or a nil result: it is not known.
	Row func(row int) *hook.Row
	// Warn is called when something is missing of what was traced; nil: nobody asks.
	Warn func(error)
}

// Decoder is what the decoding of all processes shares.
type Decoder struct {
	// Suspended is how long the machine was suspended since it was booted, nanoseconds: what the clock of the events is ahead of the
	// kernel side's.
	Suspended uint64

	options   Options
	names     map[codeKey][]codeName      // of all processes
	stacks    map[event.StackID]*rawStack // likewise: the seeds of their ids are of a process, and of those that have its memory map
	raw       *rawTable
	stackless stackless
	received  [maxHooks]uint64
}

// New makes a decoder that has seen nothing.
func New(o *Options) *Decoder {
	if o == nil {
		o = &Options{}
	}
	return &Decoder{options: *o, names: map[codeKey][]codeName{}, stacks: map[event.StackID]*rawStack{}, raw: newRawTable()}
}

// Received is how many events of a row of the kernel's table were decoded.
func (d *Decoder) Received(row uint32) uint64 { return d.received[row] }

// RawStacks counts how the stacks of all processes fared that the kernel could not unwind, but for what it counts itself.
func (d *Decoder) RawStacks() figures.RawStacks { return d.raw.counts }

// Page takes a piece of a stack that is sent raw. It reports whether the record is one that can be read.
func (d *Decoder) Page(raw []byte) bool {
	return len(raw) >= rawPageHeader && raw[0] == uint8(bpf.TraceRecordTypeRECORD_RAW_PAGE) && d.raw.addPage(raw)
}

func (d *Decoder) row(n uint16) *hook.Row {
	if d.options.Row == nil {
		return nil
	}
	return d.options.Row(int(n) % maxHooks)
}

func (d *Decoder) warn(err error) {
	if d.options.Warn != nil {
		d.options.Warn(err)
	}
}

// Code is what is known of the code of a process.
type Code interface {
	// Memory is that of the process.
	Memory() process.Memory
	// Python is its interpreter; nil: none is known.
	Python() *cpython.Runtime
	// FileName is how a person knows the file of a code object that was read just now: In[14] of a notebook's cell.
	FileName(file string) string
	// KnownAt finds the mapping of a pc in a stack that was read just now, also one that is not there any more; nil: none is known.
	KnownAt(pc uint64) *mapped.Region
	// MappedAt finds the mapping that a pc in such a stack has now; nil: none, or it is newer than the stack.
	MappedAt(pc uint64) *mapped.Region
	// Unknown is called when a stack met code that is not known.
	Unknown()
	// Refresh reads the mappings for a pc that is in none. It reports whether it is in one now.
	Refresh(pc uint64) bool
	// Reused is how often code has taken the place of other code.
	Reused() uint64
	// Allocates is called at the first allocation of PyTorch.
	Allocates()
}

// Process decodes the records of one process.
type Process struct {
	shared *Decoder
	code   Code
	stacks *stackTable
	counts figures.RawStacks

	allocates bool                    // PyTorch does
	objects   map[uint64]event.Device // of allocators other than PyTorch's, which they serve
	classes   map[uint64]string       // names of the classes of nodes of autograd, by the addresses of their tables of functions
}

// NewProcess begins with a process. code may be nil: then stacks have no more than addresses.
func (d *Decoder) NewProcess(code Code) *Process {
	if code == nil {
		code = noCode{}
	}
	p := &Process{shared: d, code: code, stacks: newStackTable(cmp.Or(d.options.MaxStacks, DefaultStacks))}
	p.stacks.byID, p.stacks.names, p.stacks.fileName = d.stacks, d.names, code.FileName
	return p
}

// Inherit begins with the Python code of a process whose memory map this one has: the kernel sends what has changed since.
func (p *Process) Inherit(from *Process) { p.stacks.codes = from.stacks.codes }

// Stack returns a stack of the process's events; nil: it is not known.
func (p *Process) Stack(id event.StackID) *event.Stack { return p.stacks.stack(id) }

// StacksOverLimit counts the events whose stack was not kept, because there were Options.MaxStacks others.
func (p *Process) StacksOverLimit() uint64 { return p.stacks.over }

// RawStacks is what became of the stacks of this process that were sent raw.
func (p *Process) RawStacks() figures.RawStacks {
	c := p.counts
	c.Sent = c.Unwound + c.Guessed + c.Partial
	return c
}

// LookedUp notes that memory was taken for names or unwind tables.
func (p *Process) LookedUp() { p.stacks.lookedUp = time.Now() }

// Quiet reports, once each time, that nothing was looked up for so long: the memory that it takes can be given back.
func (p *Process) Quiet(long time.Duration) bool {
	if p.stacks.lookedUp.IsZero() || time.Since(p.stacks.lookedUp) < long {
		return false
	}
	p.stacks.lookedUp = time.Time{}
	return true
}

// Decode takes a record of the process, as bpf/records.h lays it out, and appends its event to buf, if it is one. The record is not kept. ok false: it cannot be read.
func (p *Process) Decode(buf []event.Event, raw []byte) (out []event.Event, ok bool) {
	switch {
	case len(raw) >= eventBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_EVENT):
		return append(buf, p.event(decodeEvent(raw))), true
	case len(raw) >= callBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_CALL):
		return append(buf, p.call(decodeCall(raw))), true
	case len(raw) >= freeBytes && raw[0] == uint8(bpf.TraceRecordTypeRECORD_FREE):
		return append(buf, p.free(decodeFree(raw))), true
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_CODE):
		r, err := decodeCode(raw)
		if err == nil {
			p.stacks.addCode(r, p.code.Memory(), p.code.Python())
		}
		return buf, err == nil
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_STACK):
		r, err := decodeStack(raw)
		if err == nil {
			p.stack(r)
		}
		return buf, err == nil
	case raw[0] == uint8(bpf.TraceRecordTypeRECORD_RAW):
		r, err := decodeStack(raw)
		return buf, err == nil && p.unwindRaw(r) == nil
	}
	return buf, false
}

func (p *Process) stack(r stackRecord) {
	if s := event.StackStatus(r.status); s == event.StatusNoMapping || s == event.StatusNoRow {
		p.code.Unknown() // before the addresses are looked up
	}
	p.stacks.add(r, p.code.KnownAt, p.code.Memory(), p.code.Python())
}

func (p *Process) event(r *bpf.TraceRecordEvent) event.Event {
	e := event.Event{
		Time: r.Time + p.shared.Suspended, PID: r.Pid, TID: r.Tid, Kind: event.Kind(r.Kind), Layer: event.Layer(r.Layer),
		Device: event.Device{Type: event.DeviceType(r.DeviceType), Index: r.DeviceIndex},
		Addr:   r.Addr, Size: r.Size, Requested: r.Requested, Stream: r.Stream, Allocated: r.Allocated, Reserved: r.Reserved,
		Stack: p.stacks.within(p.shared.raw.stack(event.StackID(r.Stack))), Object: event.Object(r.Object), Handle: event.Unknown, Context: event.Unknown,
	}
	switch {
	case e.Kind == event.KindMark:
		e.Device = event.Device{Index: -1}
	case (e.Kind == event.KindAlloc || e.Kind == event.KindOutOfMemory) && r.Type == uint8(bpf.TraceRecordTypeRECORD_EVENT):
		e.Autograd = p.autogradOf(r)
	}
	p.shared.received[int(r.Hook)%maxHooks]++
	p.shared.watchStacks(&e, event.StackStatus(r.StackStatus))
	if row := p.shared.row(r.Call); row != nil {
		e.Call = row.Name()
	}
	return e
}

// free makes the event of a block that is taken back.
func (p *Process) free(r *bpf.TraceRecordFree) event.Event {
	e := event.Event{
		Time: r.Time + p.shared.Suspended, PID: r.Pid, TID: r.Tid, Kind: event.KindFree, Layer: event.LayerTorch,
		Device: event.Device{Type: event.DeviceType(r.DeviceType), Index: r.DeviceIndex},
		Addr:   r.Addr, Size: r.Size, Requested: event.Unknown, Stream: event.Unknown, Allocated: r.Allocated, Reserved: r.Reserved,
		Handle: event.Unknown, Context: event.Unknown,
	}
	p.shared.received[int(r.Hook)%maxHooks]++
	if row := p.shared.row(r.Hook); row != nil {
		e.Call = row.Name()
	}
	return e
}

// call makes the event of a call, or of a report with operands.
func (p *Process) call(r *bpf.TraceRecordCall) event.Event {
	e := p.event(&r.Event)
	e.Handle, e.Context = r.Value[bpf.TraceOperandNameVALUE_HANDLE], r.Context
	if row := p.shared.row(r.Event.Meaning); row != nil {
		describeCall(&e, row, &r.Value)
		if row.Allocator != event.AllocatorTorch {
			p.ofAllocator(&e, row.Allocator)
		}
	}
	return e
}

// maxValues is how many values a call has at most.
const maxValues = len(bpf.TraceRecordCall{}.Value)

// describeCall fills in what the values of a call mean.
func describeCall(e *event.Event, row *hook.Row, values *[maxValues]uint64) {
	if row.Addr.From == hook.FromNone {
		e.Addr = 0
	}
	if row.InContext {
		e.Context, e.Handle = e.Handle, event.Unknown
	}
	if row.Ordinal.From != hook.FromNone {
		e.Device.Index = ordinal(values[bpf.TraceOperandNameVALUE_DEVICE])
	}
	dims := values[bpf.TraceOperandNameVALUE_DIMS:]
	if e.Kind == event.KindOutOfMemory {
		forgetResults(row, dims)
	}
	switch e.Kind {
	case event.KindAlloc, event.KindOutOfMemory:
		e.Size, e.Layer = row.EventSize(dims), row.EventLayer(dims)
		if row.Requested > 0 {
			e.Requested = dims[row.Requested]
		}
	case event.KindFree:
		if e.Layer == event.LayerTorch {
			e.Size = row.EventSize(dims)
		}
	case event.KindMap, event.KindUnmap, event.KindTrim:
		e.Size = row.EventSize(dims)
	}
}

// forgetResults takes out what a call that was refused would have given back: it gave nothing, and what is there is where
// it would have been.
func forgetResults(row *hook.Row, dims []uint64) {
	for i := range row.Dims {
		if row.Dims[i].From == hook.FromOut {
			dims[i] = event.Unknown
		}
	}
}

// ordinal is a device's number as far as it can be one; -1: it cannot.
func ordinal(v uint64) int8 {
	if v > math.MaxInt8 {
		return -1
	}
	return int8(v)
}

// noCode is the Code of an unknown process.
type noCode struct{}

func (noCode) Memory() process.Memory         { return nothing{} }
func (noCode) Python() *cpython.Runtime       { return nil }
func (noCode) FileName(file string) string    { return file }
func (noCode) KnownAt(uint64) *mapped.Region  { return nil }
func (noCode) MappedAt(uint64) *mapped.Region { return nil }
func (noCode) Unknown()                       {}
func (noCode) Refresh(uint64) bool            { return false }
func (noCode) Reused() uint64                 { return 0 }
func (noCode) Allocates()                     {}

// nothing is memory that cannot be read.
type nothing struct{}

func (nothing) ReadAt([]byte, uint64) (int, error) { return 0, process.ErrNotExist }
