// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"errors"
	"fmt"
	"math"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/internal/words"
)

// Limits on the content of a snapshot.
const (
	maxDevices = math.MaxInt8 + 1 // event.Device.Index
	maxBytes   = 1 << 57          // an x86-64 process has at most 57 address bits
	// workPerValue limits how often each value may be read, because many places can refer to one list.
	workPerValue = 64
)

// action is the kind of an entry of the history.
type action uint8

const (
	actionOther action = iota // no change of memory, or not known
	actionAlloc
	actionFreeRequested
	actionFreeCompleted
	actionSegmentAlloc
	actionSegmentFree
	actionSegmentMap
	actionSegmentUnmap
	actionOOM
)

// actions are the names in torch/csrc/cuda/memory_snapshot.cpp.
var actions = map[string]action{
	"alloc": actionAlloc, "free_requested": actionFreeRequested, "free_completed": actionFreeCompleted,
	"segment_alloc": actionSegmentAlloc, "segment_free": actionSegmentFree, "segment_map": actionSegmentMap,
	"segment_unmap": actionSegmentUnmap, "oom": actionOOM, "snapshot": actionOther, "annotate": actionOther,
	"user_defined": actionOther,
}

// entry is one entry of a device's history.
type entry struct {
	time   uint64 // nanoseconds since 1970; 0: not in the snapshot
	addr   uint64
	size   uint64 // bytes: the requested size for a block; a segment's own size
	block  uint64 // bytes of the block, which gputrace's own snapshots contain; 0: not known
	stream uint64
	stack  uint32 // number + 1; 0: none
	device uint8
	action action
}

// block is a block of a segment at the end of the history.
type block struct {
	addr, size uint64
	requested  uint64 // event.Unknown
	stack      uint32 // as in entry
	allocated  bool   // the program holds it
	active     bool   // allocated, or waiting for another stream's work
}

// segment is a segment at the end of the history, or a contiguously mapped part of an expandable one.
type segment struct {
	addr, size, stream uint64
	stack              uint32
	device             uint8
	expandable         bool
	blocks             []block
}

// settings are the allocator settings that determine the size of blocks. The zero value is PyTorch's default.
type settings struct {
	known      bool
	expandable bool
	maxSplit   uint64     // 0: no limit
	divisions  [16]uint64 // roundup_power2_divisions, by size from 1 MiB on; 0 and 1: none
}

// contents is a decoded snapshot.
type contents struct {
	segments  []segment
	allocator allocator.Allocator // whose memory it is
	host      int                 // from this number on, devices stand for host memory; 0: none does, and the memory is PyTorch's
	entries   [][]entry           // by device
	settings  settings
	unknown   map[string]int // number of entries by unknown action
	timed     bool           // entries have a time
	stacks    *stacks
}

// decoder converts a pickle to contents.
type decoder struct {
	*pickle
	out    *contents
	work   int // work left before the limit
	keys   map[string]uint64
	action map[uint64]action // by index of the text
	listed map[uint64]uint32 // stacks by index of their list
	sized  bool              // the entries contain the sizes of blocks that differ from the requested ones
}

// errShape is wrapped by every error about an unexpected value.
var errShape = errors.New("unexpected content")

func shape(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errShape, fmt.Sprintf(format, args...))
}

func decode(p *pickle) (*contents, error) {
	d := &decoder{
		pickle: p, out: &contents{unknown: map[string]int{}, stacks: newStacks()}, work: workPerValue * (p.values + 1000),
		keys: map[string]uint64{}, action: map[uint64]action{}, listed: map[uint64]uint32{},
	}
	for i, s := range p.texts {
		d.keys[s] = uint64(i)
		if a, ok := actions[s]; ok {
			d.action[uint64(i)] = a
		}
	}
	if err := d.snapshot(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return d.out, nil
}

func (d *decoder) snapshot() error {
	segments, traces := d.root, value{}
	if d.root.kind == kindDict { // torch.cuda.memory_snapshot() returns a bare list
		var err error
		if segments, err = d.field(d.root, "segments"); err != nil {
			return err
		}
		traces, _ = d.get(d.root, "device_traces")
		if s, ok := d.get(d.root, "allocator_settings"); ok {
			d.settings(s)
		}
		d.sized = d.flag(d.root, "block_sizes")
		d.allocator()
	}
	err := d.each(segments, "segments", d.segment)
	if err != nil || traces.kind == kindNone {
		return err
	}
	return d.each(traces, "device_traces", func(device int, list value) error {
		if device >= maxDevices {
			return shape("device %d, want below %d", device, maxDevices)
		}
		d.out.entries = append(d.out.entries, nil)
		return d.each(list, "entry", func(_ int, v value) error { return d.entry(device, v) })
	})
}

// allocator reads whose memory it is, which gputrace's own snapshots of TensorFlow and JAX contain: the name "BFC", and the number of the
// first device that stands for host memory.
func (d *decoder) allocator() {
	if a, ok := d.get(d.root, "allocator"); !ok || d.text(a) != allocator.BFC.String() {
		return
	}
	d.out.allocator, d.out.host = allocator.BFC, maxDevices
	if n := d.optional(d.root, "host_devices_from", maxDevices); n != event.Unknown {
		d.out.host = int(n)
	}
}

// spend counts work.
func (d *decoder) spend(n int) error {
	if d.work -= n; d.work < 0 {
		return shape("it refers to the same values again and again")
	}
	return nil
}

// each calls do for each element of a list or tuple.
func (d *decoder) each(v value, what string, do func(i int, v value) error) error {
	if v.kind != kindList && v.kind != kindTuple {
		return shape("%s: %s, want a list", what, kindNames[v.kind])
	}
	list := d.containers[v.bits]
	if err := d.spend(len(list)); err != nil {
		return err
	}
	for i := range list {
		if err := do(i, list[i]); err != nil {
			return fmt.Errorf("%s %d: %w", what, i, err)
		}
	}
	return nil
}

// get returns the value of a dict's key; not ok if the key is missing or v is not a dict.
func (d *decoder) get(v value, key string) (value, bool) {
	at, ok := d.keys[key]
	if v.kind != kindDict || !ok {
		return value{}, false
	}
	list := d.containers[v.bits]
	for i := 0; i+1 < len(list); i += 2 {
		d.work--
		if k := list[i]; k.kind == kindText && k.bits == at {
			return list[i+1], true
		}
	}
	return value{}, false
}

// field returns the value of a required key.
func (d *decoder) field(v value, key string) (value, error) {
	if v.kind != kindDict {
		return value{}, shape("%s, want a dict", kindNames[v.kind])
	}
	out, ok := d.get(v, key)
	if !ok {
		return value{}, shape("no %q", key)
	}
	return out, d.spend(0)
}

// number returns a required integer from 0 to below limit.
func (d *decoder) number(v value, key string, limit uint64) (uint64, error) {
	n, err := d.field(v, key)
	switch {
	case err != nil:
		return 0, err
	case n.kind != kindInt:
		return 0, shape("%q: %s, want a number", key, kindNames[n.kind])
	case int64(n.bits) < 0 || n.bits >= limit:
		return 0, shape("%q: %d, want 0 to %d", key, int64(n.bits), limit-1)
	}
	return n.bits, nil
}

// optional returns an optional integer, or event.Unknown.
func (d *decoder) optional(v value, key string, limit uint64) uint64 {
	n, ok := d.get(v, key)
	if !ok || n.kind != kindInt || n.bits >= limit {
		return event.Unknown
	}
	return n.bits
}

// handle returns a stream: an address, or 0 for the default one.
func (d *decoder) handle(v value) uint64 {
	n, ok := d.get(v, "stream")
	if !ok || n.kind != kindInt && n.kind != kindUint {
		return event.Unknown
	}
	return n.bits
}

func (d *decoder) flag(v value, key string) bool {
	b, ok := d.get(v, key)
	return ok && b.kind == kindBool && b.bits != 0
}

func (d *decoder) text(v value) string {
	if v.kind != kindText {
		return ""
	}
	return d.texts[v.bits]
}

// settings reads the allocator's configuration, which PyTorch 2.1 and later write.
func (d *decoder) settings(v value) {
	s := &d.out.settings
	s.known = v.kind == kindDict
	s.expandable = d.flag(v, "expandable_segments")
	if n := d.optional(v, "max_split_size", maxBytes); n != event.Unknown { // -1: no limit
		s.maxSplit = n
	}
	divisions, _ := d.get(v, "roundup_power2_divisions")
	for i := range s.divisions { // by MiB: "1", "2", "4" ...
		if n := d.optional(divisions, fmt.Sprint(1<<i), maxBytes); n != event.Unknown {
			s.divisions[i] = n
		}
	}
}

func (d *decoder) segment(_ int, v value) error {
	device, err := d.number(v, "device", maxDevices)
	if err != nil {
		return err
	}
	s := segment{device: uint8(device), stream: d.handle(v), expandable: d.flag(v, "is_expandable")}
	if s.addr, err = d.number(v, "address", 1<<62); err != nil {
		return err
	}
	if s.addr == 0 {
		return shape("a segment at address 0")
	}
	if s.size, err = d.number(v, "total_size", maxBytes); err != nil {
		return err
	}
	if d.out.allocator != allocator.Torch {
		s.stack = 0 // its frames are the allocator's name
	} else if s.stack, err = d.frames(v); err != nil {
		return err
	}
	blocks, err := d.field(v, "blocks")
	if err != nil {
		return err
	}
	at := s.addr // PyTorch before 2.1 does not write the address of a block
	err = d.each(blocks, "block", func(_ int, v value) error {
		b, err := d.block(v, at)
		at = b.addr + b.size
		s.blocks = append(s.blocks, b)
		return err
	})
	if err != nil {
		return err
	}
	if at != s.addr+s.size {
		return shape("its blocks end at %#x, want %#x", at, s.addr+s.size)
	}
	d.out.segments = append(d.out.segments, s)
	return nil
}

// block reads the block that must be at an address.
func (d *decoder) block(v value, at uint64) (block, error) {
	size, err := d.number(v, "size", maxBytes)
	if err != nil {
		return block{}, err
	}
	if addr := d.optional(v, "address", 1<<63); addr != event.Unknown && addr != at {
		return block{}, shape("a block at %#x, want %#x", addr, at)
	}
	state, err := d.field(v, "state")
	if err != nil {
		return block{}, err
	}
	if size == 0 {
		return block{}, shape("a block of 0 bytes")
	}
	b := block{addr: at, size: size, requested: d.optional(v, "requested_size", maxBytes)}
	switch s := d.text(state); s {
	case "active_allocated":
		b.allocated, b.active = true, true
	case "active_pending_free", "active_awaiting_free": // PyTorch's spelling, and the documented one
		b.active = true
	case "inactive":
		return b, nil
	default:
		return block{}, shape("state %q of a block", s)
	}
	if b.stack, err = d.frames(v); err == nil && b.stack == 0 {
		err = d.history(v, &b)
	}
	return b, err
}

// history reads what PyTorch 2.0 writes about the allocation of a block.
func (d *decoder) history(v value, b *block) error {
	list, ok := d.get(v, "history")
	if !ok || list.kind != kindList || len(d.containers[list.bits]) == 0 {
		return nil
	}
	last := d.containers[list.bits][0]
	if b.requested == event.Unknown {
		b.requested = d.optional(last, "real_size", maxBytes)
	}
	var err error
	b.stack, err = d.frames(last)
	return err
}

func (d *decoder) entry(device int, v value) error {
	name, err := d.field(v, "action")
	if err != nil {
		return err
	}
	a, ok := d.action[name.bits]
	if name.kind != kindText || !ok {
		d.out.unknown[d.text(name)]++
		return nil
	}
	if a == actionOther {
		return nil
	}
	e := entry{action: a, device: uint8(device), stream: d.handle(v)}
	if a == actionOOM { // a request can have any size
		e.size = d.optional(v, "size", math.MaxInt64)
	} else if e.size, err = d.number(v, "size", maxBytes); err != nil {
		return err
	}
	if a != actionOOM {
		if e.addr, err = d.number(v, "addr", 1<<62); err != nil {
			return err
		}
	}
	if n := d.optional(v, "block_size", maxBytes); d.sized && n != event.Unknown {
		e.block = n
	} else if d.sized {
		e.block = e.size
	}
	if us := d.optional(v, "time_us", math.MaxInt64/1000); us != event.Unknown {
		e.time = us * 1000
		d.out.timed = true
	}
	if e.stack, err = d.frames(v); err != nil {
		return err
	}
	d.out.entries[device] = append(d.out.entries[device], e)
	return nil
}

// frames returns the number of a stack, plus one; 0: none.
func (d *decoder) frames(v value) (uint32, error) {
	list, ok := d.get(v, "frames")
	if !ok || list.kind == kindNone {
		return 0, nil
	}
	if list.kind != kindList {
		return 0, shape("\"frames\": %s, want a list", kindNames[list.kind])
	}
	if n, ok := d.listed[list.bits]; ok {
		return n, nil
	}
	frames := make([]uint32, 0, len(d.containers[list.bits]))
	err := d.each(list, "frame", func(_ int, f value) error {
		n, err := d.frame(f)
		frames = append(frames, n)
		return err
	})
	if err != nil {
		return 0, err
	}
	n := d.out.stacks.add(frames)
	d.listed[list.bits] = n
	return n, nil
}

// frame returns the number of a frame.
func (d *decoder) frame(v value) (uint32, error) {
	name, err := d.field(v, "name")
	if err != nil {
		return 0, err
	}
	file, err := d.field(v, "filename")
	if err != nil {
		return 0, err
	}
	line := d.optional(v, "line", math.MaxInt32)
	if line == event.Unknown {
		line = 0
	}
	return d.out.stacks.frame(frameKey{words.Valid(d.text(name)), words.Valid(d.text(file)), line}), nil
}
