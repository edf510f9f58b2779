// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// heapKey names a heap: the memory of one layer on one device.
type heapKey struct {
	pid    uint32
	layer  event.Layer
	device event.Device
}

// dump is the heap profiles of one heap. Perfetto remembers what a stack had before by its process alone, not by its heap:
// each heap has a sequence of its own.
type dump struct {
	*sequence
	index  uint64
	stacks map[uint64]*usage
}

// usage is what one stack has. What a profile says of it never becomes less: what was allocated, and of that what was freed.
type usage struct {
	allocated, freed uint64 // bytes
	allocs, frees    uint64

	now, before sample
}

// sample is a stack's figures at one moment.
type sample struct {
	allocated, live int64 // bytes; live of lost events can be negative
	allocs, blocks  int64
}

// moment writes the live set as a heap profile of each heap.
func (t *trace) moment(time uint64, v *view.View) {
	for _, d := range t.dumps {
		for _, u := range d.stacks {
			u.before, u.now = u.now, sample{}
		}
	}
	for p := range v.Samples(view.Allocated, nil) {
		u := t.usage(&p)
		u.now.allocated += p.Bytes
		u.now.allocs += int64(p.Objects)
	}
	for p := range v.Samples(view.InUse, nil) {
		u := t.usage(&p)
		u.now.live += p.Bytes
		u.now.blocks += int64(p.Objects)
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.dumps), compareHeap) {
		t.dump(time, key)
	}
}

// usage is what the stack of a portion has.
func (t *trace) usage(p *view.Sample) *usage {
	key := heapKey{p.PID, p.Layer, p.Device}
	d := t.dumps[key]
	if d == nil {
		d = &dump{sequence: t.sequence(0), stacks: map[uint64]*usage{}}
		t.dumps[key] = d
	}
	from := labelKey{name: p.Name}
	if p.Site != nil {
		from = labelKey{stack: p.Site.Site.Stack, origin: p.Site.Origin}
	}
	stack := d.callstack(from, p.Labels)
	u := d.stacks[stack]
	if u == nil {
		u = &usage{}
		d.stacks[stack] = u
	}
	return u
}

func (t *trace) dump(time uint64, key heapKey) {
	d := t.dumps[key]
	t.process(key.pid)
	m := t.begin(d.sequence, time)
	profile := m.open(packetProfile)
	m.number(profileIndex, d.index)
	d.index++
	process := m.open(profileDump)
	m.number(dumpPID, uint64(key.pid))
	m.number(dumpTimestamp, time)
	m.text(dumpHeapName, heapName(key.layer, key.device))
	m.number(dumpInterval, 1)
	m.number(dumpOrigInterval, 1)
	for _, stack := range slices.Sorted(maps.Keys(d.stacks)) {
		u := d.stacks[stack]
		u.advance()
		at := m.open(dumpSample)
		m.number(sampleCallstack, stack)
		m.number(sampleAllocated, u.allocated)
		m.number(sampleFreed, u.freed)
		m.number(sampleAllocCount, u.allocs)
		m.number(sampleFreeCount, u.frees)
		m.close(at)
	}
	m.close(process)
	m.close(profile)
	t.end(d.sequence)
}

// advance adds what happened since the profile before. What became live without having been allocated, as blocks of
// the allocator state, counts as allocated.
func (u *usage) advance() {
	grown := u.now.live - u.before.live
	made := max(0, grown, u.now.allocated-u.before.allocated)
	u.allocated += uint64(made)
	u.freed += uint64(made - grown)
	grown = u.now.blocks - u.before.blocks
	made = max(0, grown, u.now.allocs-u.before.allocs)
	u.allocs += uint64(made)
	u.frees += uint64(made - grown)
}

func compareHeap(x, y heapKey) int {
	return cmp.Or(cmp.Compare(x.pid, y.pid), cmp.Compare(x.layer, y.layer), cmp.Compare(x.device.Type, y.device.Type),
		cmp.Compare(x.device.Index, y.device.Index))
}
