// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package decode turns the kernel side's records into events and stacks. It accesses no kernel and no process: it
// queries a process's code through an interface.
package decode

import (
	"cmp"
	"math"
	"time"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// DefaultStacks is the default number of different stacks that are kept. A training job has some thousands; a stack of
// 50 frames takes 10 kB.
const DefaultStacks = 1 << 16

// maxHooks is the number of rows of the kernel's table of hooks.
const maxHooks = len(bpf.TraceHookTable{}.Row)

// Options may be nil.
type Options struct {
	// MaxStacks limits the number of different stacks kept for a process. Events with further ones get
	// event.StackOverLimit. 0 means DefaultStacks.
	MaxStacks int
	// Row returns the function of a row of the kernel's table, or nil when it is not known. Row may be nil.
	Row func(row int) *hook.Row
	// Warn is called when something traced is missing. It may be nil.
	Warn func(error)
}

// Decoder is the state that the decoding of all processes shares.
type Decoder struct {
	// Suspended is how long the machine was suspended since boot, nanoseconds: the difference of the events' clock from
	// the kernel side's.
	Suspended uint64

	options   Options
	names     map[codeKey][]codeName      // of all processes
	stacks    map[event.StackID]*rawStack // of all processes; the seeds of the ids are unique for a process and those with its memory map
	raw       *rawTable
	stackless stackless
	received  [maxHooks]uint64
}

// New returns a decoder without state.
func New(o *Options) *Decoder {
	if o == nil {
		o = &Options{}
	}
	return &Decoder{options: *o, names: map[codeKey][]codeName{}, stacks: map[event.StackID]*rawStack{}, raw: newRawTable()}
}

// Received returns the number of decoded events of a row of the kernel's table.
func (d *Decoder) Received(row uint32) uint64 { return d.received[row] }

// RawStacks counts, by outcome and for all processes, the stacks that the kernel could not unwind, without the counts
// that the kernel keeps itself.
func (d *Decoder) RawStacks() figures.RawStacks { return d.raw.counts }

// Page stores a piece of a raw stack. It reports whether the record was valid.
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
	// Memory returns the process's memory.
	Memory() process.Memory
	// Python returns the process's interpreter; nil: not known.
	Python() *cpython.Runtime
	// FileName returns the name that people use for the file of a code object that was just read: In[14] for a notebook's cell.
	FileName(file string) string
	// KnownAt returns the mapping of a pc in a stack that was just read, even if it no longer exists; nil: not known.
	KnownAt(pc uint64) *mapped.Region
	// MappedAt returns the current mapping of a pc in such a stack; nil: none, or it is newer than the stack.
	MappedAt(pc uint64) *mapped.Region
	// Unknown is called when a stack contains unknown code.
	Unknown()
	// Refresh reads the mappings for a pc in no known mapping. It reports whether the pc is in one now.
	Refresh(pc uint64) bool
	// Reused returns how often code has replaced other code.
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

	leftOut     uint64 // allocations whose stack was left out
	allocations uint64
	allocates   bool                    // PyTorch has allocated
	objects     map[uint64]event.Device // devices of allocators other than PyTorch's, by object
	classes     map[uint64]string       // class names of autograd nodes, by the addresses of their vtables
}

// NewProcess returns the decoder of a process's records. code may be nil: then stacks consist of addresses only.
func (d *Decoder) NewProcess(code Code) *Process {
	if code == nil {
		code = noCode{}
	}
	p := &Process{shared: d, code: code, stacks: newStackTable(cmp.Or(d.options.MaxStacks, DefaultStacks))}
	p.stacks.byID, p.stacks.names, p.stacks.fileName = d.stacks, d.names, code.FileName
	return p
}

// Inherit copies the known Python code of a process whose memory map this one has: the kernel sends only what has changed since.
func (p *Process) Inherit(from *Process) { p.stacks.codes = from.stacks.codes }

// Stack returns a stack of the process's events; nil when it is not known.
func (p *Process) Stack(id event.StackID) *event.Stack { return p.stacks.stack(id) }

// StacksOverLimit returns the number of events whose stack was not kept, because there were already Options.MaxStacks stacks.
func (p *Process) StacksOverLimit() uint64 { return p.stacks.over }

// RawStacks counts the raw stacks of this process, by outcome.
func (p *Process) RawStacks() figures.RawStacks {
	c := p.counts
	c.Sent = c.Unwound + c.Guessed + c.Partial
	return c
}

// LookedUp records that memory was used for names or unwind tables.
func (p *Process) LookedUp() { p.stacks.lookedUp = time.Now() }

// Quiet reports, once each time, that nothing was looked up for the given time, so that the memory can be freed.
func (p *Process) Quiet(long time.Duration) bool {
	if p.stacks.lookedUp.IsZero() || time.Since(p.stacks.lookedUp) < long {
		return false
	}
	p.stacks.lookedUp = time.Time{}
	return true
}

// Decode decodes a record of the process (bpf/records.h) and appends its event, if it has one, to buf. It does not keep
// the record. ok is false when the record is invalid.
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
		Stack: p.stacks.within(p.shared.raw.stack(event.StackID(r.Stack))), Object: event.Object(r.Object), Handle: event.Unknown,
		Context: event.Unknown,
	}
	switch {
	case e.Kind == event.KindMark:
		e.Device = event.Device{Index: -1}
	case (e.Kind == event.KindAlloc || e.Kind == event.KindOutOfMemory) && r.Type == uint8(bpf.TraceRecordTypeRECORD_EVENT):
		e.Autograd = p.autogradOf(r)
	}
	p.shared.received[int(r.Hook)%maxHooks]++
	p.countLeftOut(&e, bpf.TraceStackStatus(r.StackStatus))
	p.shared.watchStacks(&e, event.StackStatus(r.StackStatus))
	if row := p.shared.row(r.Call); row != nil {
		e.Call = row.Name()
	}
	return e
}

// countLeftOut names a stack that was left out, and counts it if it is an allocation's.
func (p *Process) countLeftOut(e *event.Event, status bpf.TraceStackStatus) {
	if e.Stack == 0 && status == bpf.TraceStackStatusSTACK_LEFT_OUT {
		e.Stack = event.StackLeftOut
	}
	if e.Kind == event.KindAlloc {
		p.allocations++
		if e.Stack == event.StackLeftOut {
			p.leftOut++
		}
	}
}

// LeftOut returns the number of allocations whose stack was left out because of the CPU budget, and the number of all.
func (p *Process) LeftOut() (leftOut, allocations uint64) { return p.leftOut, p.allocations }

// free returns the event of a freed block.
func (p *Process) free(r *bpf.TraceRecordFree) event.Event {
	e := event.Event{
		Time: r.Time + p.shared.Suspended, PID: r.Pid, TID: r.Tid, Kind: event.KindFree, Layer: event.LayerAllocator,
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

// call returns the event of a call, or of a report with operands.
func (p *Process) call(r *bpf.TraceRecordCall) event.Event {
	e := p.event(&r.Event)
	e.Handle, e.Context = r.Value[bpf.TraceOperandNameVALUE_HANDLE], r.Context
	if row := p.shared.row(r.Event.Meaning); row != nil {
		describeCall(&e, row, &r.Value)
		if row.Allocator != allocator.Torch {
			p.ofAllocator(&e, row.Allocator)
		}
	}
	return e
}

// maxValues is the maximum number of values of a call.
const maxValues = len(bpf.TraceRecordCall{}.Value)

// describeCall sets the fields that the values of a call determine.
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
		if n, ok := row.EventRequested(dims); ok {
			e.Requested = n
		}
	case event.KindFree:
		if e.Layer == event.LayerAllocator {
			e.Size = row.EventSize(dims)
		}
	case event.KindMap, event.KindUnmap, event.KindTrim, event.KindMemoryInfo:
		e.Size = row.EventSize(dims)
	}
}

// forgetResults removes the results of a refused call: it returned nothing, and the memory for its results has old values.
func forgetResults(row *hook.Row, dims []uint64) {
	for i := range row.Dims {
		if row.Dims[i].From == hook.FromOut {
			dims[i] = event.Unknown
		}
	}
}

// ordinal returns a device's number if it is plausible; otherwise -1.
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

// nothing is unreadable memory.
type nothing struct{}

func (nothing) ReadAt([]byte, uint64) (int, error) { return 0, process.ErrNotExist }
