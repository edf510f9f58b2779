// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"math/rand/v2"
	"unsafe"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer/decode"
)

// Contents of the records of a feed.
const (
	feedPID     = 4242
	feedThreads = 16
	feedStacks  = 300 // a training script has about so many
	feedFrames  = 50  // native ones of a stack
	feedStep    = 1000
	feedBase    = 0x7f0000000000 // of the blocks' addresses
	feedPlace   = 4 << 20        // of a block, bytes
)

// feed is ring records of a program that allocates and frees at random, as the kernel writes them, made beforehand. Its cycle
// ends where it began: each block that it frees and each that it allocates is there again as before, so that it can be read
// through again and again.
type feed struct {
	stacks [][]byte // record_stack
	fill   [][]byte // record_event: the blocks that live at the beginning of the cycle
	cycle  [][]byte // record_event

	decoder *decode.Process
	events  []event.Event // the cycle, decoded

	rng       *rand.Rand
	allocated uint64 // bytes
	now       uint64
	live      []uint64 // numbers of the places of a live block
	unused    []uint64 // and of the others, as a queue
}

// newFeed makes a feed with some blocks live all the time and about some events in its cycle.
func newFeed(live, events int) *feed {
	f := &feed{rng: rand.New(rand.NewPCG(1, 2)), now: 1e15}
	for id := range feedStacks {
		f.stacks = append(f.stacks, stackRecord(feedStack(id), feedFrames))
	}
	for place := range uint64(live) {
		f.live = append(f.live, place)
		f.fill = append(f.fill, f.record(event.KindAlloc, place))
	}
	for place := range uint64(live/8 + 1) {
		f.unused = append(f.unused, uint64(live)+place)
	}
	type step struct{ freed, taken uint64 }
	var steps []step
	for range events / 4 {
		s := f.unused[0]
		f.unused = f.unused[1:]
		i := f.rng.IntN(len(f.live))
		steps = append(steps, step{f.live[i], s})
		f.swap(f.live[i], s)
		f.unused, f.live[i] = append(f.unused, f.live[i]), s
	}
	for i := len(steps) - 1; i >= 0; i-- {
		f.swap(steps[i].taken, steps[i].freed)
	}
	f.decode()
	return f
}

func (f *feed) decode() {
	f.decoder = decode.New(nil).NewProcess(nil)
	for _, r := range f.stacks {
		f.decoder.Decode(nil, r)
	}
	f.events = make([]event.Event, 0, len(f.cycle))
	for _, r := range f.cycle {
		f.events, _ = f.decoder.Decode(f.events, r)
	}
}

// each calls f with the events with which the live set of the cycle's beginning is made.
func (f *feed) each(take func(*event.Event)) {
	buf := make([]event.Event, 0, 1)
	for _, r := range f.fill {
		buf, _ = f.decoder.Decode(buf[:0], r)
		take(&buf[0])
	}
}

// feedStack is the id of a stack, spread as hashes are.
func feedStack(n int) uint64 { return uint64(n+1) * 0x9e3779b97f4a7c15 }

// placeSize is how large the block at a place is, bytes: always the same, so that the cycle can be repeated.
func placeSize(place uint64) uint64 { return 512 * (1 + place*0x9e3779b97f4a7c15>>52) }

// swap is a free and an allocation.
func (f *feed) swap(freed, taken uint64) {
	f.cycle = append(f.cycle, f.record(event.KindFree, freed), f.record(event.KindAlloc, taken))
}

// record makes the event of one block.
func (f *feed) record(kind event.Kind, place uint64) []byte {
	f.now += feedStep
	r := bpf.TraceRecordEvent{
		Type: uint8(bpf.TraceRecordTypeRECORD_EVENT), Kind: uint8(kind), Layer: uint8(event.LayerAllocator), DeviceType: uint8(event.DeviceCUDA),
		Pid: feedPID, Tid: feedPID + f.rng.Uint32N(feedThreads), Time: f.now, Addr: feedBase + place*feedPlace, Size: placeSize(place),
		Requested: event.Unknown, Stream: event.Unknown, Reserved: 1 << 40,
	}
	if kind == event.KindAlloc {
		r.Requested, r.Stream, r.Stack = r.Size-place%512, 0, feedStack(f.rng.IntN(feedStacks))
		f.allocated += r.Size
	} else {
		f.allocated -= r.Size
	}
	r.Allocated = f.allocated
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&r)), unsafe.Sizeof(r))...)
}

// stackRecord makes a stack of native frames; stacks share their outer half.
func stackRecord(id uint64, frames int) []byte {
	r := bpf.TraceRecordStack{Type: uint8(bpf.TraceRecordTypeRECORD_STACK), Nwords: uint16(frames), Pid: feedPID, Hash: id}
	for i := range frames {
		r.Words[i] = 0x555500000000 + uint64(i)*16
		if i < frames/2 {
			r.Words[i] += id >> 40 << 4
		}
	}
	n := unsafe.Offsetof(r.Words) + uintptr(frames)*8
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&r)), n)...)
}
