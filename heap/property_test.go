// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap/internal/blocks"
)

// allocator is the oracle: it deals out few addresses, so that they are used again, and keeps the true total.
type allocator struct {
	rng   *rand.Rand
	live  map[uint64]uint64
	total uint64
}

func (a *allocator) step() *event.Event {
	addr := 4096 * (1 + a.rng.Uint64N(64))
	if size, ok := a.live[addr]; ok {
		delete(a.live, addr)
		a.total -= size
		return torchEvent(addr, -int64(size), a.total)
	}
	size := 512 * (1 + a.rng.Uint64N(8))
	a.live[addr] = size
	a.total += size
	return torchEvent(addr, int64(size), a.total)
}

func signed(e *event.Event) int64 {
	if e.Kind == event.KindFree {
		return -int64(e.Size)
	}
	return int64(e.Size)
}

func checkAccounts(t testing.TB, h *Heap) {
	for _, a := range h.accounts {
		var bytes uint64
		for i := range a.live.All() {
			bytes += h.blocks.At(i).Size
		}
		if bytes != a.Live.Bytes+a.BeforeBlocks.Bytes || uint64(a.live.Len()) != a.Live.Objects+a.BeforeBlocks.Objects {
			t.Fatalf("live is %d bytes in %d blocks, counted %+v and before %+v", bytes, a.live.Len(), a.Live, a.BeforeBlocks)
		}
		if a.Before < a.BeforeBlocks.Bytes {
			t.Fatalf("of %d bytes before, %d are in known blocks", a.Before, a.BeforeBlocks.Bytes)
		}
		if a.hasTotal && a.Live.Bytes+a.Before+uint64(a.Lost) != a.Allocated {
			t.Fatalf("live %d + before %d + lost %d is not allocated %d", a.Live.Bytes, a.Before, a.Lost, a.Allocated)
		}
		if a.hasTotal && a.Before > a.Baseline {
			t.Fatalf("before grew from %d to %d", a.Baseline, a.Before)
		}
	}
}

// Without losses the live set is the allocator's, block by block; blocks from before the first event are separate.
func TestExactWithoutLosses(t *testing.T) {
	for seed := range uint64(50) {
		oracle := &allocator{rand.New(rand.NewPCG(seed, 1)), map[uint64]uint64{}, 0}
		for range 100 {
			oracle.step()
		}
		h, seen := New(), map[uint64]bool{}
		peak := oracle.total
		for range 2000 {
			e := oracle.step()
			apply(h, e)
			seen[e.Addr] = true
			peak = max(peak, oracle.total)
			checkAccounts(t, h)
		}
		a := h.Totals().Accounts[0]
		require.Equal(t, []uint64{oracle.total, peak, 0, 0}, []uint64{a.Allocated, a.Peak, a.Gaps, a.LostFrees})
		require.Zero(t, a.Lost)
		want := map[uint64]uint64{}
		for addr, size := range oracle.live {
			if seen[addr] {
				want[addr] = size
			}
		}
		got := map[uint64]uint64{}
		for b := range h.Blocks() {
			got[b.Addr] = b.Size
		}
		require.Equal(t, want, got)
	}
}

// With losses every missing byte is reported: the gaps add up to the events that were withheld.
func TestConservationWithLosses(t *testing.T) {
	for seed := range uint64(50) {
		oracle := &allocator{rand.New(rand.NewPCG(seed, 2)), map[uint64]uint64{}, 0}
		for range 100 {
			oracle.step()
		}
		h := New()
		var withheld, pending int64
		apply(h, oracle.step())
		for range 2000 {
			e := oracle.step()
			if oracle.rng.IntN(10) == 0 {
				pending += signed(e)
				continue
			}
			withheld, pending = withheld+pending, 0
			apply(h, e)
			checkAccounts(t, h)
			require.Equal(t, e.Allocated, h.Totals().Accounts[0].Allocated)
		}
		var gaps int64
		for _, g := range h.Totals().Gaps {
			gaps += g.Bytes
		}
		require.Less(t, h.Totals().GapCount, uint64(maxGaps))
		require.Equal(t, withheld, gaps)
	}
}

// driverModel is the plain truth about device memory: a map, and what each thread could still get back.
type driverModel struct {
	live    map[uint64]Block
	retired map[uint32]Block
}

func (m *driverModel) step(rng *rand.Rand) *event.Event {
	tid := uint32(rng.IntN(4))
	if b, ok := m.retired[tid]; ok {
		delete(m.retired, tid)
		if _, taken := m.live[b.Addr]; !taken && rng.IntN(2) == 0 {
			m.live[b.Addr] = b
			e := deviceEvent(event.KindFreeFailed, b.Addr, event.Unknown)
			e.TID = tid
			return e
		}
	}
	addr := uint64(mib) * (1 + rng.Uint64N(32))
	if b, ok := m.live[addr]; ok {
		delete(m.live, addr)
		m.retired[tid] = b
		e := deviceEvent(event.KindFree, addr, event.Unknown)
		e.TID = tid
		return e
	}
	e := deviceEvent(event.KindAlloc, addr, 1+rng.Uint64N(mib))
	e.TID, e.Stack, e.Call = tid, event.StackID(rng.IntN(5)), fmt.Sprint("call", rng.IntN(3))
	m.live[addr] = Block{Addr: addr, Size: e.Size, Stack: e.Stack, Call: e.Call}
	return e
}

func TestDriverMatchesModel(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := &driverModel{map[uint64]Block{}, map[uint32]Block{}}
		h := New()
		segment := map[uint64]bool{} // by address of a live allocation
		total := uint64(0)
		for range 3000 {
			if rng.IntN(4) == 0 { // a torch block somewhere, freed at once
				addr := uint64(mib)*(1+rng.Uint64N(32)) + rng.Uint64N(mib)
				apply(h, torchEvent(addr, 64, total+64), torchEvent(addr, -64, total))
				markModel(m, segment, addr)
			}
			e := m.step(rng)
			if e.Kind == event.KindAlloc {
				delete(segment, e.Addr)
			}
			apply(h, e)
		}
		compareModel(t, h, m, segment)
		checkSums(t, h)
	}
}

func markModel(m *driverModel, segment map[uint64]bool, addr uint64) {
	for start, b := range m.live {
		if start < addr+64 && addr < start+b.Size {
			segment[start] = true
		}
	}
}

func compareModel(t *testing.T, h *Heap, m *driverModel, segment map[uint64]bool) {
	got := map[uint64]Block{}
	for b := range h.Blocks() {
		require.Equal(t, segment[b.Addr], b.Segment)
		got[b.Addr] = Block{Addr: b.Addr, Size: b.Size, Stack: b.Stack, Call: b.Call}
	}
	require.Equal(t, m.live, got)
}

// checkSums adds the live blocks up again and compares with every counter made from them.
func checkSums(t testing.TB, h *Heap) {
	type key struct {
		layer   event.Layer
		pid     uint32
		device  event.Device
		segment bool
	}
	type part struct {
		key
		object event.Object
	}
	blocks, sites, totals := map[key]Count{}, map[key]Count{}, map[key]Count{}
	parts, found := map[part]Count{}, map[part]Count{}
	for b := range h.Blocks() {
		k := key{b.Layer, b.PID, b.Device, b.Segment}
		count(blocks, k, b.Size)
		count(parts, part{key{b.Layer, b.PID, b.Device, false}, b.Object}, b.Size)
		if b.Origin != OriginEvent {
			count(found, part{key: key{b.Layer, b.PID, b.Device, false}}, b.Size)
		}
	}
	s := h.Snapshot()
	for _, site := range s.Sites {
		k := key{site.Layer, site.PID, site.Device, site.Segment}
		sites[k] = plus(sites[k], site.Inuse)
		if site.Origin == OriginEvent && (site.Alloc.Bytes < site.Inuse.Bytes || site.Alloc.Objects < site.Inuse.Objects) {
			t.Fatalf("more in use than allocated: %+v", site)
		}
	}
	for _, a := range s.Accounts {
		totals[key{event.LayerAllocator, a.PID, a.Device, false}] = plus(a.Live, a.BeforeBlocks)
		compareCount(t, "found", plus(a.Recovered, a.BeforeBlocks), found[part{key: key{event.LayerAllocator, a.PID, a.Device, false}}])
	}
	for _, d := range s.Drivers {
		k := key{d.Layer, d.PID, d.Device, false}
		totals[key{d.Layer, d.PID, d.Device, true}] = d.Segments
		totals[k] = minus(d.Live, d.Segments)
		compareCount(t, "found", d.Found, found[part{key: k}])
		for i := range d.ByObject {
			compareCount(t, event.Object(i).String(), d.ByObject[i], parts[part{k, event.Object(i)}])
		}
	}
	for _, m := range []map[key]Count{sites, totals} {
		for k, v := range m {
			compareCount(t, fmt.Sprint(k), v, blocks[k])
		}
		for k, v := range blocks {
			compareCount(t, fmt.Sprint(k), m[k], v)
		}
	}
}

// compareCount leaves out the requested bytes, which the driver's layers do not have.
func compareCount(t testing.TB, what string, counted, live Count) {
	if counted.Bytes != live.Bytes || counted.Objects != live.Objects || counted.Unsized != live.Unsized {
		t.Fatalf("%s: counted %+v, live %+v", what, counted, live)
	}
}

func count[K comparable](m map[K]Count, k K, size uint64) {
	c := m[k]
	c.Add(size, event.Unknown)
	m[k] = c
}

func plus(x, y Count) Count {
	return Count{Objects: x.Objects + y.Objects, Bytes: x.Bytes + y.Bytes, Unsized: x.Unsized + y.Unsized}
}

func minus(x, y Count) Count {
	return Count{Objects: x.Objects - y.Objects, Bytes: x.Bytes - y.Bytes, Unsized: x.Unsized - y.Unsized}
}

// checkStructure looks at what the lists and indexes of each process promise each other.
func checkStructure(t testing.TB, h *Heap) {
	live := 0
	for _, a := range h.accounts {
		live += a.live.Len()
	}
	if used := h.blocks.Used(); used != live {
		t.Fatalf("the table has %d blocks of %d that are live", used, live)
	}
	for _, p := range h.processes {
		mapped := map[*object]int32{}
		end := uint64(0)
		for _, m := range p.mappings {
			if m.addr < end {
				t.Fatalf("mappings overlap at %#x", m.addr)
			}
			end = m.addr + m.size
			if m.behind != nil {
				mapped[m.behind]++
			}
		}
		for o := range p.objects {
			if !o.live || o.maps != mapped[o] || o.segment != h.key(o).segment {
				t.Fatalf("%+v of %+v is mapped %d times", o, h.key(o), mapped[o])
			}
			delete(mapped, o)
		}
		if len(mapped) > 0 {
			t.Fatalf("%d mapped objects are not live", len(mapped))
		}
		for key, s := range p.spaces {
			for addr, o := range s {
				if o.addr != addr || o.refs <= 0 || h.key(o).layer != key.layer || o.sort != key.sort {
					t.Fatalf("%+v is listed as %+v %#x", o, key, addr)
				}
			}
		}
		for o := range p.orphans {
			if o.refs > 0 || o.maps <= 0 {
				t.Fatalf("%+v is no orphan", o)
			}
		}
		checkPieces(t, p)
		checkLoose(t, h, p)
	}
}

func checkPieces(t testing.TB, p *process) {
	for i, o := range p.pieces[min(1, len(p.pieces)):] {
		before := p.pieces[i]
		if end := before.addr + before.size; end > o.addr || end == o.addr && before.segmentOf == o.segmentOf {
			t.Fatalf("pieces %+v and %+v", before, o)
		}
	}
}

// checkLoose compares the list of memory in which no torch block was seen with what is live.
func checkLoose(t testing.TB, h *Heap, p *process) {
	want := map[span]int{}
	for _, o := range p.spaces[spaceKey{event.LayerDevice, event.ObjectMemory}] {
		if p.torch && !o.segment && o.size != event.Unknown {
			want[span{o.addr, o.addr + o.size, o}]++
		}
	}
	for _, m := range p.mappings {
		if p.torch && m.behind != nil && h.key(m.behind).layer == event.LayerDevice && !m.behind.segment {
			want[span{m.addr, m.addr + m.size, m.behind}]++
		}
	}
	for i, s := range p.unclaimed {
		if i > 0 && p.unclaimed[i-1].start > s.start {
			t.Fatalf("loose ranges out of order at %#x", s.start)
		}
		if want[s]--; want[s] < 0 && !s.object.segment { // another mapping of a segment stays in the list
			t.Fatalf("loose range %+v is none", s)
		}
	}
	for s, n := range want {
		if n > 0 {
			t.Fatalf("loose range %+v is not in the list", s)
		}
	}
}

// eventSize is how many bytes of fuzz input make one event.
const eventSize = 20

// decodeEvent makes events that are often about the same few addresses, processes and sizes.
func decodeEvent(b []byte) *event.Event {
	e := &event.Event{
		Time: uint64(b[0]), PID: uint32(b[1] & 1), TID: uint32(b[1] >> 6), Kind: event.Kind(b[2] % 11), Layer: event.Layer(b[3] % 8),
		Device: event.Device{Type: event.DeviceCUDA, Index: int8(b[4]&3) - 1}, Addr: uint64(b[5]) << 8, Size: uint64(b[6]) << 6,
		Requested: uint64(b[7]), Allocated: uint64(binary.LittleEndian.Uint16(b[8:])) << 4, Reserved: uint64(b[10]),
		Stack: event.StackID(b[11] & 7), Call: string(rune('a' + b[12]&3)), Object: event.Object(b[16] % 7),
		Handle: uint64(b[17]) << 8, Context: uint64(b[18] & 3), Stream: uint64(b[19] & 1),
	}
	switch {
	case b[19]>>1&3 == 0:
		e.Call = "cuMemAllocAsync"
	case b[19]>>1&3 == 1:
		e.Call = "cuCtxCreate"
	}
	for i, v := range []*uint64{&e.Size, &e.Requested, &e.Allocated, &e.Reserved, &e.Addr, &e.Handle, &e.Context, &e.Stream} {
		switch {
		case b[13]>>i&1 == 0:
		case b[14]>>i&1 == 0:
			*v = event.Unknown
		default:
			*v = blocks.MaxBytes - 1 + uint64(b[15]&1)
		}
	}
	return e
}

// decodeObservation makes an observation of the same memory out of the bytes of one event.
func decodeObservation(h *Heap, b []byte) event.Observation {
	o := event.Observation{
		PID: uint32(b[1] & 1), Device: event.Device{Type: event.DeviceCUDA, Index: int8(b[4]&3) - 1}, From: h.now + uint64(b[0]&1),
		To: h.now + 2, Allocated: uint64(b[8]) << 6, Reserved: uint64(b[10]),
	}
	for i := range int(b[6] & 3) {
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: uint64(b[5+i]) << 8, Size: uint64(b[9+i]) << 6, Requested: uint64(b[7]), Stream: 0})
	}
	for i := range int(b[11] & 3) {
		o.Segments = append(o.Segments, event.ObservedSegment{Addr: uint64(b[5+i]) << 8, Size: uint64(b[10]) / uint64(b[11]&3),
			Expandable: b[12]&1 == 0})
	}
	if a := h.accounts[accountKey{o.PID, o.Device}]; a != nil && b[13]&1 == 0 { // so that it can be right
		for i := range a.live.All() {
			blk := h.blocks.At(i)
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: blk.Addr, Size: blk.Size, Requested: blk.Requested, Stream: blk.Stream})
		}
		o.Allocated = a.Allocated
	}
	return o
}

// applyFuzz lets one piece of input happen.
func applyFuzz(h *Heap, b []byte) {
	switch b[2] {
	case 250:
		h.Watch(uint32(b[1] & 1))
	case 251:
		h.Unwatch(uint32(b[1] & 1))
	case 252, 253, 254:
		h.Watch(uint32(b[1] & 1))
		_, _ = h.Reconcile(decodeObservation(h, b))
	case 255:
		_, _ = h.Reconcile(decodeObservation(h, b))
	default:
		h.Apply(decodeEvent(b))
	}
}

func FuzzApply(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 4 {
		seed := make([]byte, 64*eventSize)
		for i := range seed {
			seed[i] = byte(rng.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := New()
		for len(b) >= eventSize {
			applyFuzz(h, b)
			b = b[eventSize:]
			checkAccounts(t, h)
			checkStructure(t, h)
		}
		checkSums(t, h)
	})
}

// trainingStream is steps of a training job: blocks of one step are allocated by some thousand stacks and freed in reverse
// order, over weights that stay.
func trainingStream(weights, blocks int) []event.Event {
	rng := rand.New(rand.NewPCG(1, 9))
	var out []event.Event
	total := uint64(0)
	add := func(addr uint64, size int64, stack int) {
		total += uint64(size)
		e := torchEvent(addr, size, total)
		e.Stack = event.StackID(uint64(stack) * 0x9e3779b97f4a7c15)
		out = append(out, *e)
	}
	for i := range weights {
		add(uint64(i+1)<<20, 1<<20, i%100)
	}
	sizes := make([]int64, blocks)
	for i := range blocks {
		sizes[i] = int64(1+rng.IntN(2000)) * 512
		add(uint64(weights+i+1)<<20, sizes[i], 100+i%3000)
	}
	for i := blocks - 1; i >= 0; i-- {
		add(uint64(weights+i+1)<<20, -sizes[i], 1)
	}
	return out
}

// BenchmarkApply is the steady state: the step of a job is replayed over and over. One operation is one event.
func BenchmarkApply(b *testing.B) {
	for _, blocks := range []int{1000, 20000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			h := New()
			apply(h, deviceEvent(event.KindAlloc, 1<<50, mib)) // somebody else's memory, so that segments are looked for
			stream := trainingStream(2000, blocks)
			for i := range stream {
				h.Apply(&stream[i])
			}
			step := stream[2000:]
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				h.Apply(&step[i%len(step)])
			}
		})
	}
}

// The steady state allocates nothing.
func TestApplyDoesNotAllocate(t *testing.T) {
	h := New()
	stream := trainingStream(100, 1000)
	for i := range stream {
		h.Apply(&stream[i])
	}
	run := func() {
		for i := range stream[100:] {
			h.Apply(&stream[100+i])
		}
	}
	run()
	require.Zero(t, testing.AllocsPerRun(20, run))
	require.Zero(t, h.Totals().GapCount)
}

// Nothing that can be fed breaks what the lists, indexes and counters promise each other.
func TestRandomInput(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 4))
		h := New()
		for range 200 {
			b := make([]byte, eventSize)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if rng.IntN(4) > 0 { // mostly few addresses, sizes and no odd values
				b[3], b[4], b[5], b[13], b[17] = byte(2+rng.IntN(5)), byte(1+rng.IntN(2)), byte(1+rng.IntN(8)), 0, byte(1+rng.IntN(8))
			}
			applyFuzz(h, b)
			checkAccounts(t, h)
			checkStructure(t, h)
			checkSums(t, h)
		}
	}
}
