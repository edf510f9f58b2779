// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// device is the one GPU of a Mac, as PyTorch numbers it: MPS in torch/headeronly/core/DeviceType.h.
var device = event.Device{Type: 13}

// object is a heap or a resource of Metal that is live.
type object struct {
	*place          // its own range; nil: it is in a heap
	addr     uint64 // its first address
	size     uint64
	heap     *object // nil: it is a heap, or has memory of its own
	isHeap   bool
	segment  bool   // of what has memory of its own: PyTorch has had blocks in it
	used     uint64 // bytes of the blocks in it
	imported bool   // its memory is counted elsewhere
	freed    bool   // the memory was given back before the object is freed
}

// block is a block of PyTorch's allocator.
type block struct {
	addr, size, requested uint64
	object                *object // nil: its buffer was made before anything was traced
}

// decoder turns the records of one process's ring into events. Its memory is bounded by what is live in the process, and by maxStacks.
type decoder struct {
	pid       uint32
	maxStacks int
	late      bool // the process had allocated before anything was traced
	// before is what is left of that in PyTorch's blocks, by the allocator's own totals; event.Unknown: there were none, and so what the
	// sums lack is not known. It does not grow.
	before uint64
	*stackTable
	addresses

	objects  map[uint64]*object  // by the address of the Objective-C object
	blocks   map[uint64]block    // by the buffer's
	known    uint64              // bytes of all heaps and of resources outside of them
	reserved uint64              // bytes of heaps that have had blocks
	idle     uint64              // of reserved, heaps without a block now
	torch    figures.TorchMemory // of now, as blocks and heaps say it

	words    map[string]string
	counters ring.Counters // the last; Time 0: none
	// torchThen is torch at the time of counters, and knownThen is known.
	torchThen figures.TorchMemory
	knownThen uint64
	// untracked is what the device counted beyond known when it was last read; event.Unknown: never read.
	untracked uint64

	happened bool       // there was an event
	received [16]uint64 // records by hook
	over     uint64     // events whose stack was one too many
	strange  uint64     // records that could not be read
}

func newDecoder(pid uint32, maxStacks int) *decoder {
	return &decoder{
		pid: pid, maxStacks: cmp.Or(maxStacks, defaultStacks), stackTable: newStackTable(), objects: map[uint64]*object{},
		blocks: map[uint64]block{}, words: map[string]string{}, untracked: event.Unknown, before: event.Unknown,
	}
}

// take decodes a record. What is new in the live set is appended to out.
func (d *decoder) take(r *ring.Record, out []event.Event) []event.Event {
	var err error
	switch r.Type {
	case ring.TypeEvent:
		var e ring.Event
		if e, err = r.Event(); err == nil {
			err = plausible(&e)
		}
		if err == nil {
			out = d.event(&e, out)
		}
	case ring.TypeStack:
		err = d.addStack(r, d.maxStacks)
	case ring.TypeCode:
		err = d.addCode(r)
	case ring.TypeSymbol:
		err = d.addSymbol(r)
	case ring.TypeCounter:
		err = d.count(r)
	case ring.TypeWords:
		var w ring.Words
		if w, err = r.Words(); err == nil && len(d.words) < maxWords {
			d.words[w.Key] += separator(d.words[w.Key]) + w.Value
		}
	default:
		err = fmt.Errorf("ring: a record of type %d, which is not known", r.Type)
	}
	if err != nil {
		d.strange++
	}
	return out
}

// maxBytes is more than any Mac has, and so little that sums of sizes are none too large for a word.
const maxBytes = 1 << 44

// plausible refuses sizes that no object has: sums of them would be wrong without a sign of it.
func plausible(e *ring.Event) error {
	for _, n := range []uint64{e.Size, e.Requested} {
		if n != event.Unknown && n > maxBytes && e.Flags&ring.FlagFailed == 0 {
			return fmt.Errorf("ring: an object of %d bytes", n)
		}
	}
	return nil
}

// maxWords bounds what the shim says.
const maxWords = 64

func separator(before string) string {
	if before == "" {
		return ""
	}
	return ", "
}

func (d *decoder) count(r *ring.Record) error {
	c, err := r.Counters()
	if err != nil {
		return err
	}
	d.received[ring.HookCounters]++
	d.counters, d.torchThen, d.knownThen = c, d.torchNow(), d.known
	if c.Allocated != event.Unknown {
		d.untracked = c.Allocated - min(c.Allocated, d.known)
	}
	return nil
}

// sameMoment is PyTorch's memory of the moment of which counters are. That is now, unless heaps or resources came or went since: blocks
// within heaps are nothing to the device.
func (d *decoder) sameMoment() figures.TorchMemory {
	if d.known == d.knownThen {
		return d.torchNow()
	}
	return d.torchThen
}

// torchNow is PyTorch's memory. Of one that was traced late only what is in blocks is known.
func (d *decoder) torchNow() figures.TorchMemory {
	t := d.torch
	if !d.late {
		return t
	}
	t.Requested, t.Reserved, t.Free, t.InactiveSplit, t.Pending = figures.Unknown, figures.Unknown, figures.Unknown, figures.Unknown,
		figures.Unknown
	if d.before == event.Unknown {
		t.Allocated = figures.Unknown
	} else {
		t.Allocated += figures.Bytes(d.before)
	}
	return t
}

// event turns one into those of the model.
func (d *decoder) event(e *ring.Event, out []event.Event) []event.Event {
	d.happened = true
	d.received[e.Hook]++
	base := event.Event{
		Time: e.Time, PID: d.pid, TID: uint32(e.Thread), Device: device, Size: event.Unknown, Handle: event.Unknown, Context: event.Unknown,
		Requested: event.Unknown, Stream: event.Unknown, Allocated: event.Unknown, Reserved: event.Unknown, Stack: d.stackOf(e.Stack),
	}
	switch {
	case e.Flags&ring.FlagFailed != 0:
		return d.failed(e, base, out)
	case e.Hook == ring.HookAllocate:
		return d.allocate(e, base, out)
	case e.Hook == ring.HookRelease:
		return d.release(e, base, out)
	case e.Hook == ring.HookHeap, e.Hook == ring.HookResource:
		return d.make(e, base, out)
	case e.Hook == ring.HookDealloc:
		out = d.giveBack(e, base, out)
		d.forget(e.Object)
		return out
	case e.Hook == ring.HookPurge:
		return d.giveBack(e, base, out)
	}
	return out
}

// stackOf is the stack of an event, unless too many were kept.
func (d *decoder) stackOf(id uint64) event.StackID {
	if id != 0 && d.full && d.Stack(event.StackID(id)) == nil {
		d.over++
		return event.StackOverLimit
	}
	return event.StackID(id)
}

// failed is a request that was refused: of a tensor, or of Metal.
func (d *decoder) failed(e *ring.Event, base event.Event, out []event.Event) []event.Event {
	base.Kind, base.Layer, base.Size, base.Requested = event.KindOutOfMemory, event.LayerDevice, e.Requested, e.Requested
	if e.Hook == ring.HookAllocate {
		base.Layer = event.LayerAllocator
		d.setTotals(&base)
	} else {
		base.Call, base.Requested = e.Hook.String(), event.Unknown
	}
	return append(out, base)
}

// allocate is a block of PyTorch: what was asked for, and the buffer that it got, which can be larger.
func (d *decoder) allocate(e *ring.Event, base event.Event, out []event.Event) []event.Event {
	if _, ok := d.blocks[e.Object]; ok { // its end was lost
		out = d.freed(e.Object, base, out)
	}
	o := d.objects[e.Object]
	b := block{size: e.Size, requested: e.Requested, object: o}
	switch {
	case b.size != event.Unknown:
	case o != nil:
		b.size = o.size
	default:
		b.size = e.Requested
	}
	if o != nil {
		b.addr = o.addr
		d.enter(o.root(), b.size)
	} else {
		b.addr = d.addresses.take(b.size).base
	}
	d.blocks[e.Object] = b
	d.sum(int64(b.size), int64(b.requested))
	out = d.leftBefore(e, base, b.size, out)
	base.Kind, base.Layer, base.Addr, base.Size, base.Requested = event.KindAlloc, event.LayerAllocator, b.addr, b.size, b.requested
	d.setTotals(&base)
	base.Stream = 0
	return append(out, base)
}

// setTotals sets the totals behind an event of PyTorch. PyTorch's allocator for MPS reports none: they are the sums of what was seen,
// which is all where the trace began with the process.
func (d *decoder) setTotals(e *event.Event) {
	switch {
	case !d.late:
		e.Reserved, e.Allocated = d.reserved, uint64(d.torch.Allocated)
	case d.before != event.Unknown:
		e.Allocated = d.before + uint64(d.torch.Allocated)
	}
}

// leftBefore looks at the allocator's own total, which an event of a process has that was traced late. What it has beyond the blocks that
// are known was allocated before; where that is less than it was, blocks of it were freed, by a function that nothing is
// replaced of. The total can be more than that, by what other threads are about to report. coming is what the event itself adds.
func (d *decoder) leftBefore(e *ring.Event, base event.Event, coming uint64, out []event.Event) []event.Event {
	known := uint64(d.torch.Allocated)
	if e.Allocated == event.Unknown || !d.late {
		return out
	}
	left := e.Allocated - min(e.Allocated, known)
	if d.before == event.Unknown || left >= d.before {
		d.before = min(d.before, left)
		return out
	}
	freed := d.before - left
	d.before = left
	base.Kind, base.Layer, base.Addr, base.Size = event.KindFree, event.LayerAllocator, d.addresses.take(freed).base, freed
	base.Allocated, base.Stack = left+known-coming, 0
	return append(out, base)
}

// root is what has the memory of an object: its heap, or itself.
func (o *object) root() *object {
	if o.heap != nil {
		return o.heap
	}
	return o
}

// enter counts a block in what has its memory, which is PyTorch's from then on.
func (d *decoder) enter(o *object, size uint64) {
	if o.imported {
		return
	}
	switch {
	case !o.segment:
		o.segment = true
		d.reserved += o.size
	case o.used == 0:
		d.idle -= o.size
	}
	o.used += size
}

// leave is the end of a block.
func (d *decoder) leave(o *object, size uint64) {
	if o.imported || o.freed {
		return
	}
	o.used -= min(size, o.used)
	if o.used == 0 {
		d.idle += o.size
	}
}

// sum brings the figures of PyTorch's allocator up to date.
func (d *decoder) sum(blocks, requested int64) {
	t := &d.torch
	t.Allocated, t.Requested = t.Allocated+figures.Bytes(blocks), t.Requested+figures.Bytes(requested)
	t.Reserved, t.Free, t.Pending = figures.Bytes(d.reserved), figures.Bytes(d.idle), figures.Unknown
	t.InactiveSplit = figures.Unknown // a block lies elsewhere than in the heaps that are known
	if t.Allocated <= t.Reserved-t.Free {
		t.InactiveSplit = t.Reserved - t.Free - t.Allocated
	}
}

// release is the end of a block. One that was allocated before anything was traced is none of ours.
func (d *decoder) release(e *ring.Event, base event.Event, out []event.Event) []event.Event {
	out = d.leftBefore(e, base, 0, out)
	if _, ok := d.blocks[e.Object]; !ok {
		return out
	}
	return d.freed(e.Object, base, out)
}

// freed ends a block that is known.
func (d *decoder) freed(object uint64, base event.Event, out []event.Event) []event.Event {
	b := d.blocks[object]
	delete(d.blocks, object)
	d.end(b)
	base.Kind, base.Layer, base.Addr, base.Size, base.Requested = event.KindFree, event.LayerAllocator, b.addr, b.size, b.requested
	d.setTotals(&base)
	base.Stack, base.Stream = 0, 0
	return append(out, base)
}

// end takes a block out of the figures.
func (d *decoder) end(b block) {
	if b.object != nil {
		d.leave(b.object.root(), b.size)
	}
	d.sum(-int64(b.size), -int64(b.requested))
}

// make is a heap or a resource. One in a heap has no memory of its own: the heap's is counted.
func (d *decoder) make(e *ring.Event, base event.Event, out []event.Event) []event.Event {
	if d.objects[e.Object] != nil { // its end was lost
		end := *e
		end.Hook = ring.HookDealloc
		out = d.giveBack(&end, base, out)
		d.forget(e.Object)
	}
	o := &object{size: e.Size, isHeap: e.Hook == ring.HookHeap, imported: e.Flags&ring.FlagImported != 0}
	if o.size == event.Unknown {
		o.size = e.Requested
	}
	if o.size == event.Unknown {
		o.size = 0
	}
	d.objects[e.Object] = o
	if heap := d.objects[e.Heap]; e.Heap != 0 && heap != nil && heap.isHeap && heap.place != nil {
		if addr, ok := heap.put(e.Offset, o.size); ok {
			o.heap, o.addr = heap, addr
			return out
		}
	}
	o.place = d.addresses.take(o.size)
	o.addr = o.place.base
	if e.Heap != 0 { // of a heap that is not known, or without room: counted by nobody
		o.imported = true
		return out
	}
	base.Kind, base.Layer, base.Addr, base.Size, base.Call = event.KindAlloc, event.LayerDevice, o.addr, o.size, e.Hook.String()
	if o.imported {
		base.Layer = event.LayerShared
	} else {
		d.known += o.size
	}
	return append(out, base)
}

// made reports whether an object is known as it is, and has its memory: what dtrace prints of one twice.
func (d *decoder) made(e *ring.Event) bool {
	o := d.objects[e.Object]
	return o != nil && !o.freed && o.size == e.Size && o.isHeap == (e.Hook == ring.HookHeap)
}

// giveBack is the end of an object's memory.
func (d *decoder) giveBack(e *ring.Event, base event.Event, out []event.Event) []event.Event {
	o := d.objects[e.Object]
	if o == nil || o.freed || o.heap != nil {
		return out
	}
	o.freed = true
	if o.imported && o.isHeap {
		return out
	}
	if !o.imported {
		d.known -= o.size
	}
	if o.segment {
		d.reserved -= o.size
		if o.used == 0 {
			d.idle -= o.size
		}
		d.sum(0, 0)
	}
	base.Kind, base.Layer, base.Addr, base.Call, base.Stack = event.KindFree, event.LayerDevice, o.addr, e.Hook.String(), 0
	if o.imported {
		base.Layer = event.LayerShared
	}
	return append(out, base)
}

// forget ends an object.
func (d *decoder) forget(address uint64) {
	o := d.objects[address]
	if o == nil {
		return
	}
	if o.heap != nil {
		o.heap.remove(o.addr)
	}
	delete(d.objects, address)
}

// found is what the shim said of a subject; empty: nothing.
func (d *decoder) found(key string) string { return strings.TrimSpace(d.words[key]) }
