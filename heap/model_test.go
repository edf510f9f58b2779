// SPDX-License-Identifier: Apache-2.0

package heap

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// truth is a minimal model of a driver: its live objects, by sort. Its threads begin calls that free memory
// and that can fail; whether they will is decided when they begin.
type truth struct {
	rng      *rand.Rand
	memory   map[truthKey]*truthMemory
	physical []*truthPhysical // those with a reference or a mapping
	mapped   map[uint64]truthMapping
	failing  map[uint32]*event.Event // by thread, the failure to come
}

type truthKey struct {
	layer  event.Layer
	object event.Object
	addr   uint64
}

type truthMemory struct {
	size, context uint64
	refs          int
	device        int8
	ordered       bool
	segment       bool
}

type truthPhysical struct {
	handle, size uint64
	refs, maps   int
	layer        event.Layer
	segment      bool
}

type truthMapping struct {
	size   uint64
	behind *truthPhysical
}

const truthThreads = 4

func newTruth(seed uint64) *truth {
	return &truth{
		rng: rand.New(rand.NewPCG(seed, 5)), memory: map[truthKey]*truthMemory{}, mapped: map[uint64]truthMapping{},
		failing: map[uint32]*event.Event{},
	}
}

// pick returns some element of a map, the same for the same seed.
func pick[K comparable, V any](t *truth, m map[K]V, less func(x, y K) int) (k K, ok bool) {
	if len(m) == 0 {
		return k, false
	}
	keys := slices.SortedFunc(maps.Keys(m), less)
	return keys[t.rng.IntN(len(keys))], true
}

func compareKeys(x, y truthKey) int {
	return cmp.Or(cmp.Compare(x.layer, y.layer), cmp.Compare(x.object, y.object), cmp.Compare(x.addr, y.addr))
}

// driverCall is an event of a thread and device.
func (t *truth) driverCall(tid uint32, kind event.Kind, layer event.Layer, object event.Object, addr uint64) *event.Event {
	e := deviceEvent(kind, addr, event.Unknown)
	e.TID, e.Layer, e.Object, e.Handle, e.Context = tid, layer, object, event.Unknown, event.Unknown
	e.Call, e.Stack = "f", event.StackID(1+t.rng.IntN(5))
	return e
}

// fails lets a call that gives something back fail, sometimes.
func (t *truth) fails(e *event.Event) bool {
	if t.rng.IntN(3) > 0 {
		return false
	}
	failed := *e
	failed.Kind = event.KindFreeFailed
	t.failing[e.TID] = &failed
	return true
}

// step is one event; nil when what was tried is not possible now.
func (t *truth) step() *event.Event {
	tid := uint32(t.rng.IntN(truthThreads))
	if e, ok := t.failing[tid]; ok {
		delete(t.failing, tid)
		return e
	}
	switch t.rng.IntN(12) {
	case 0, 1, 2:
		return t.alloc(tid)
	case 3, 4:
		return t.free(tid)
	case 5:
		return t.create(tid)
	case 6:
		return t.retain(tid)
	case 7:
		return t.release(tid)
	case 8, 9:
		return t.mapSome(tid)
	case 10:
		return t.unmapSome(tid)
	default:
		if t.rng.IntN(4) > 0 {
			return nil
		}
		return t.reset(tid)
	}
}

// kinds of memory, each with its own addresses: what one function frees is distinguished by the address alone.
var truthSpaces = []truthKey{
	{event.LayerDevice, event.ObjectMemory, 0x1 << 32},
	{event.LayerHost, event.ObjectMemory, 0x2 << 32},
	{event.LayerDevice, event.ObjectArray, 0x1 << 32}, // handles may be equal to addresses
	{event.LayerShared, event.ObjectMemory, 0x3 << 32},
	{event.LayerVirtual, event.ObjectMemory, 0x4 << 32},
	{event.LayerHolder, event.ObjectPool, 0x1 << 32},
}

func (t *truth) alloc(tid uint32) *event.Event {
	k := truthSpaces[t.rng.IntN(len(truthSpaces))]
	k.addr += mib * (1 + t.rng.Uint64N(8))
	m := t.memory[k]
	again := m != nil && k.layer == event.LayerShared
	if m != nil && !again || again && len(t.failing) > 0 { // whether a close that will fail counts yet is not to be seen
		return nil
	}
	e := t.driverCall(tid, event.KindAlloc, k.layer, k.object, k.addr)
	e.Size = 1 + t.rng.Uint64N(mib)
	e.Device.Index = int8(t.rng.IntN(2))
	e.Context = 100*uint64(e.Device.Index+1) + t.rng.Uint64N(2)
	if k.layer == event.LayerShared {
		e.Size = event.Unknown
	}
	switch {
	case again:
		m.refs++
		return e
	case k.layer == event.LayerDevice && k.object == event.ObjectMemory && t.rng.IntN(3) == 0:
		e.Call = "cuMemAllocAsync"
	}
	t.memory[k] = &truthMemory{size: e.Size, context: e.Context, refs: 1, device: e.Device.Index, ordered: e.Call != "f"}
	return e
}

func (t *truth) free(tid uint32) *event.Event {
	k, ok := pick(t, t.memory, compareKeys)
	if !ok {
		return nil
	}
	e := t.driverCall(tid, event.KindFree, event.LayerDevice, k.object, k.addr)
	if k.layer == event.LayerHolder {
		e.Layer = k.layer
	}
	if t.fails(e) {
		return e
	}
	if m := t.memory[k]; m.refs > 1 {
		m.refs--
	} else {
		delete(t.memory, k)
	}
	return e
}

// withHandle is the physical memory that has a handle.
func (t *truth) withHandle(handle uint64) *truthPhysical {
	for _, p := range t.physical {
		if p.handle == handle && p.refs > 0 {
			return p
		}
	}
	return nil
}

func (t *truth) create(tid uint32) *event.Event {
	handle := 1 + t.rng.Uint64N(6)
	if t.withHandle(handle) != nil {
		return nil
	}
	layer := []event.Layer{event.LayerDevice, event.LayerDevice, event.LayerShared, event.LayerHost}[t.rng.IntN(4)]
	e := t.driverCall(tid, event.KindAlloc, layer, event.ObjectPhysical, handle)
	e.Size = mib * (1 + t.rng.Uint64N(4))
	t.physical = append(t.physical, &truthPhysical{handle: handle, size: e.Size, refs: 1, layer: layer})
	return e
}

// retain takes a reference of what is mapped at some address; of memory without a handle, the one that it had.
func (t *truth) retain(tid uint32) *event.Event {
	addr, ok := pick(t, t.mapped, cmp.Compare[uint64])
	if !ok {
		return nil
	}
	p, same := t.mapped[addr].behind, 0
	for _, other := range t.physical {
		if other.handle == p.handle {
			same++
		}
	}
	if same > 1 || p.refs == 0 && len(t.failing) > 0 {
		return nil // an event cannot tell which is meant
	}
	p.refs++
	return t.driverCall(tid, event.KindRetain, event.LayerDevice, event.ObjectPhysical, p.handle)
}

func (t *truth) release(tid uint32) *event.Event {
	p := t.withHandle(1 + t.rng.Uint64N(6))
	if p == nil {
		return nil
	}
	e := t.driverCall(tid, event.KindFree, event.LayerDevice, event.ObjectPhysical, p.handle)
	if !t.fails(e) {
		p.refs--
		t.forget(p)
	}
	return e
}

func (t *truth) forget(p *truthPhysical) {
	if p.refs == 0 && p.maps == 0 {
		t.physical = slices.DeleteFunc(t.physical, func(other *truthPhysical) bool { return other == p })
	}
}

const (
	mapBase = 0x5 << 32
	mapUnit = 4 * mib // no physical memory is larger
)

func (t *truth) mapSome(tid uint32) *event.Event {
	p := t.withHandle(1 + t.rng.Uint64N(6))
	addr := mapBase + mapUnit*t.rng.Uint64N(8)
	if _, taken := t.mapped[addr]; taken || p == nil {
		return nil
	}
	e := t.driverCall(tid, event.KindMap, event.LayerDevice, event.ObjectPhysical, addr)
	e.Size, e.Handle = p.size, p.handle
	p.maps++
	t.mapped[addr] = truthMapping{p.size, p}
	return e
}

func (t *truth) unmapSome(tid uint32) *event.Event {
	lo := mapBase + mapUnit*t.rng.Uint64N(8)
	hi := lo + mapUnit*(1+t.rng.Uint64N(3))
	e := t.driverCall(tid, event.KindUnmap, event.LayerDevice, event.ObjectPhysical, lo)
	e.Size = hi - lo
	if t.fails(e) {
		return e
	}
	for addr := lo; addr < hi; addr += mapUnit {
		if m, ok := t.mapped[addr]; ok {
			m.behind.maps--
			t.forget(m.behind)
			delete(t.mapped, addr)
		}
	}
	return e
}

func (t *truth) reset(tid uint32) *event.Event {
	e := t.driverCall(tid, event.KindReset, event.LayerHolder, event.ObjectContext, 0)
	e.Device.Index = int8(t.rng.IntN(2))
	if t.rng.IntN(2) == 0 {
		e.Addr = 100*uint64(1+t.rng.IntN(2)) + t.rng.Uint64N(2)
		e.Device.Index = -1
	}
	if t.fails(e) {
		return e
	}
	for k, m := range t.memory {
		inContext := e.Addr == m.context && !m.ordered || e.Addr == 0 && e.Device.Index == m.device
		if inContext && (k.layer == event.LayerDevice || k.layer == event.LayerHost) {
			delete(t.memory, k)
		}
	}
	return e
}

// torch is a block of the caching allocator, given back at once, in some memory: that makes it a segment.
func (t *truth) torch() []*event.Event {
	k, ok := pick(t, t.memory, compareKeys)
	addr, found := pick(t, t.mapped, cmp.Compare[uint64])
	switch {
	case len(t.failing) > 0:
		return nil // the heap does not count it at the moment
	case found && t.rng.IntN(2) == 0:
		behind := t.mapped[addr].behind
		behind.segment = behind.segment || behind.layer == event.LayerDevice
		addr += behind.size - 512
	case ok:
		m := t.memory[k]
		if k.object == event.ObjectMemory && k.layer == event.LayerDevice {
			m.segment = true
			m.device = 0 // that of the block
		}
		addr = k.addr
		if k.object != event.ObjectMemory {
			return nil
		}
	default:
		return nil
	}
	return []*event.Event{torchEvent(addr, 512, event.Unknown), torchEvent(addr, -512, event.Unknown)}
}

type truthLine struct {
	layer   event.Layer
	object  event.Object
	size    uint64
	segment bool
}

// list is the live objects, by address or handle: several, of physical memory.
func (t *truth) list() map[uint64][]truthLine {
	out := map[uint64][]truthLine{}
	for k, m := range t.memory {
		out[k.addr] = append(out[k.addr], truthLine{k.layer, k.object, m.size, m.segment})
	}
	for _, p := range t.physical {
		out[p.handle] = append(out[p.handle], truthLine{p.layer, event.ObjectPhysical, p.size, p.segment})
	}
	return sorted(out)
}

func listHeap(h *Heap) map[uint64][]truthLine {
	out := map[uint64][]truthLine{}
	for b := range h.Blocks() {
		out[b.Addr] = append(out[b.Addr], truthLine{b.Layer, b.Object, b.Size, b.Segment})
	}
	return sorted(out)
}

func sorted(m map[uint64][]truthLine) map[uint64][]truthLine {
	for _, lines := range m {
		slices.SortFunc(lines, func(x, y truthLine) int { return cmp.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
	}
	return m
}

// Whatever threads do at the same time, and whichever of their calls fail: when the failures are in, the heap has what the
// driver has.
func TestDriverMatchesTruth(t *testing.T) {
	for seed := range uint64(200) {
		driver, h := newTruth(seed), New()
		for range 1500 {
			if driver.rng.IntN(8) == 0 {
				apply(h, driver.torch()...)
			}
			if e := driver.step(); e != nil {
				apply(h, e)
			}
			if len(driver.failing) == 0 && driver.rng.IntN(10) == 0 {
				require.Equal(t, driver.list(), listHeap(h), "seed %d", seed)
			}
		}
		for tid := range uint32(truthThreads) {
			if e := driver.failing[tid]; e != nil {
				apply(h, e)
			}
		}
		require.Equal(t, driver.list(), listHeap(h), "seed %d", seed)
		checkSums(t, h)
		checkStructure(t, h)
		b := h.Totals()
		require.Zero(t, b.Ignored+b.Failures)
		for _, d := range b.Drivers {
			require.Zero(t, d.LostFrees+d.Doubtful.Objects+d.UnknownMaps+d.UnknownRetains, "seed %d: %+v", seed, d)
		}
	}
}
