package heap

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
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
		for _, i := range a.live {
			bytes += h.blocks.blocks[i].size
		}
		if bytes != a.Live.Bytes || uint64(len(a.live)) != a.Live.Objects {
			t.Fatalf("live is %d bytes in %d blocks, booked %+v", bytes, len(a.live), a.Live)
		}
		if a.based && a.Live.Bytes+a.Before+uint64(a.Lost) != a.Allocated {
			t.Fatalf("live %d + before %d + lost %d is not allocated %d", a.Live.Bytes, a.Before, a.Lost, a.Allocated)
		}
		if a.based && a.Before > a.Baseline {
			t.Fatalf("before grew from %d to %d", a.Baseline, a.Before)
		}
	}
}

// Without losses the live set is the allocator's, block by block; what lived before is told apart.
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
		a := h.Books().Accounts[0]
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
			require.Equal(t, e.Allocated, h.Books().Accounts[0].Allocated)
		}
		var gaps int64
		for _, g := range h.Books().Gaps {
			gaps += g.Bytes
		}
		require.Less(t, h.Books().GapCount, uint64(keptGaps))
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
	blocks, sites, books := map[key]uint64{}, map[key]uint64{}, map[key]uint64{}
	for b := range h.Blocks() {
		blocks[key{b.Layer, b.PID, b.Device, b.Segment}] += b.Size
	}
	s := h.Snapshot()
	for _, site := range s.Sites {
		sites[key{site.Layer, site.PID, site.Device, site.Segment}] += site.Inuse.Bytes
		if site.Alloc.Bytes < site.Inuse.Bytes || site.Alloc.Objects < site.Inuse.Objects {
			t.Fatalf("more in use than allocated: %+v", site)
		}
	}
	for _, a := range s.Accounts {
		books[key{event.LayerTorch, a.PID, a.Device, false}] = a.Live.Bytes
	}
	for _, d := range s.Drivers {
		books[key{d.Layer, d.PID, d.Device, true}] = d.Segments.Bytes
		books[key{d.Layer, d.PID, d.Device, false}] = d.Live.Bytes - d.Segments.Bytes
	}
	for _, m := range []map[key]uint64{sites, books} {
		for k, v := range m {
			if v != blocks[k] {
				t.Fatalf("%+v: %d bytes booked, %d live", k, v, blocks[k])
			}
		}
	}
}

// eventSize is how many bytes of fuzz input make one event.
const eventSize = 16

// decodeEvent makes events that are often about the same few addresses, processes and sizes.
func decodeEvent(b []byte) *event.Event {
	e := &event.Event{
		Time: uint64(b[0]), PID: uint32(b[1] & 1), TID: uint32(b[1] >> 7), Kind: event.Kind(b[2] % 6), Layer: event.Layer(b[3] % 5),
		Device: event.Device{Type: event.DeviceCUDA, Index: int8(b[4]&3) - 1}, Addr: uint64(b[5]) << 8, Size: uint64(b[6]) << 6,
		Requested: uint64(b[7]), Allocated: uint64(binary.LittleEndian.Uint16(b[8:])) << 4, Reserved: uint64(b[10]),
		Stack: event.StackID(b[11] & 7), Call: string(rune('a' + b[12]&3)),
	}
	for i, v := range []*uint64{&e.Size, &e.Requested, &e.Allocated, &e.Reserved, &e.Addr} {
		switch {
		case b[13]>>i&1 == 0:
		case b[14]>>i&1 == 0:
			*v = event.Unknown
		default:
			*v = maxBytes - 1 + uint64(b[15]&1)
		}
	}
	return e
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
			h.Apply(decodeEvent(b))
			b = b[eventSize:]
			checkAccounts(t, h)
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
	require.Zero(t, h.Books().GapCount)
}
