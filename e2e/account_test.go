// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/tracer/hook"
)

// effect is what a function does to memory, as the events tell it. It is written down here once more, beside the hook table,
// so that a row which says something else about its function is found.
type effect struct {
	kind   event.Kind
	layer  event.Layer
	object event.Object
}

// Effects that several functions share.
var (
	deviceAlloc   = effect{event.KindAlloc, event.LayerDevice, event.ObjectMemory}
	deviceFree    = effect{event.KindFree, event.LayerDevice, event.ObjectMemory}
	hostAlloc     = effect{event.KindAlloc, event.LayerHost, event.ObjectMemory}
	hostFree      = effect{event.KindFree, event.LayerHost, event.ObjectMemory}
	arrayAlloc    = effect{event.KindAlloc, event.LayerDevice, event.ObjectArray}
	arrayFree     = effect{event.KindFree, event.LayerDevice, event.ObjectArray}
	virtualAlloc  = effect{event.KindAlloc, event.LayerVirtual, event.ObjectMemory}
	virtualFree   = effect{event.KindFree, event.LayerVirtual, event.ObjectMemory}
	physicalAlloc = effect{event.KindAlloc, event.LayerDevice, event.ObjectPhysical}
	physicalFree  = effect{event.KindFree, event.LayerDevice, event.ObjectPhysical}
	sharedAlloc   = effect{event.KindAlloc, event.LayerShared, event.ObjectMemory}
	sharedFree    = effect{event.KindFree, event.LayerShared, event.ObjectMemory}
	imported      = effect{event.KindAlloc, event.LayerShared, event.ObjectPhysical}
	poolAlloc     = effect{event.KindAlloc, event.LayerHolder, event.ObjectPool}
	poolFree      = effect{event.KindFree, event.LayerHolder, event.ObjectPool}
	poolTrim      = effect{event.KindTrim, event.LayerHolder, event.ObjectPool}
	memoryInfo    = effect{event.KindMemoryInfo, event.LayerDevice, event.ObjectMemory}
	contextAlloc  = effect{event.KindAlloc, event.LayerHolder, event.ObjectContext}
	contextFree   = effect{event.KindFree, event.LayerHolder, event.ObjectContext}
	contextReset  = effect{event.KindReset, event.LayerHolder, event.ObjectContext}
	externalAlloc = effect{event.KindAlloc, event.LayerHolder, event.ObjectExternal}
	externalFree  = effect{event.KindFree, event.LayerHolder, event.ObjectExternal}
	mapping       = effect{event.KindMap, event.LayerDevice, event.ObjectPhysical}
	unmapping     = effect{event.KindUnmap, event.LayerDevice, event.ObjectPhysical}
	retaining     = effect{event.KindRetain, event.LayerDevice, event.ObjectPhysical}
)

// effects are those of the functions that write into the stand-in's ledger. The runtime's calls appear there as those of the
// driver.
var effects = map[string]effect{
	"cuMemAlloc_v2": deviceAlloc, "cuMemAllocPitch_v2": deviceAlloc, "cuMemAllocManaged": deviceAlloc,
	"cuMemAllocAsync": deviceAlloc, "cuMemAllocAsync_ptsz": deviceAlloc,
	"cuMemAllocFromPoolAsync": deviceAlloc, "cuMemAllocFromPoolAsync_ptsz": deviceAlloc,
	"cuMemFree_v2": deviceFree, "cuMemFreeAsync": deviceFree, "cuMemFreeAsync_ptsz": deviceFree,
	"cuArrayCreate_v2": arrayAlloc, "cuArray3DCreate_v2": arrayAlloc, "cuMipmappedArrayCreate": arrayAlloc,
	"cuArrayDestroy": arrayFree, "cuMipmappedArrayDestroy": arrayFree,
	"cuMemAllocHost_v2": hostAlloc, "cuMemHostAlloc": hostAlloc, "cuMemHostRegister_v2": hostAlloc,
	"cuMemHostRegister": hostAlloc, "cuMemFreeHost": hostFree, "cuMemHostUnregister": hostFree,

	"cuMemAddressReserve": virtualAlloc, "cuMemAddressFree": virtualFree,
	"cuMemCreate": physicalAlloc, "cuMemRelease": physicalFree, "cuMemRetainAllocationHandle": retaining,
	"cuMemMap": mapping, "cuMemUnmap": unmapping,
	"cuMulticastCreate":              {event.KindAlloc, event.LayerVirtual, event.ObjectPhysical},
	"cuMemImportFromShareableHandle": imported, "cuMemPoolImportPointer": sharedAlloc,
	"cuIpcOpenMemHandle": sharedAlloc, "cuIpcOpenMemHandle_v2": sharedAlloc, "cuIpcCloseMemHandle": sharedFree,
	"cuImportExternalMemory": externalAlloc, "cuDestroyExternalMemory": externalFree,
	"cuExternalMemoryGetMappedBuffer":         sharedAlloc,
	"cuExternalMemoryGetMappedMipmappedArray": {event.KindAlloc, event.LayerShared, event.ObjectArray},

	"cuGraphAddMemAllocNode": virtualAlloc, "cuGraphAddMemFreeNode": virtualFree, "cuDeviceGraphMemTrim": poolTrim,
	"cuMemPoolCreate": poolAlloc, "cuMemPoolImportFromShareableHandle": poolAlloc, "cuMemPoolDestroy": poolFree,
	"cuMemPoolTrimTo": poolTrim, "cuMemGetInfo_v2": memoryInfo,
	"cuCtxCreate_v2": contextAlloc, "cuCtxCreate_v3": contextAlloc, "cuCtxCreate_v4": contextAlloc,
	"cuDevicePrimaryCtxRetain": contextAlloc, "cuDevicePrimaryCtxRelease_v2": contextFree,
	"cuDevicePrimaryCtxReset_v2": contextReset, "cuCtxDestroy_v2": contextReset,
	"cuCtxCreate": contextAlloc, "cuCtxDestroy": contextReset, "cuCtxAttach": contextAlloc, "cuCtxDetach": contextFree,
	"cuDevicePrimaryCtxRelease": contextFree, "cuDevicePrimaryCtxReset": contextReset,
}

// hipEffects and zeEffects are those of HIP's and Level Zero's functions, which call nothing below.
var hipEffects = map[string]effect{
	"hipMalloc": deviceAlloc, "hipExtMallocWithFlags": deviceAlloc, "hipMallocManaged": deviceAlloc,
	"hipMallocPitch": deviceAlloc, "hipMemAllocPitch": deviceAlloc, "hipMalloc3D": deviceAlloc,
	"hipMallocAsync": deviceAlloc, "hipMallocFromPoolAsync": deviceAlloc,
	"hipFree": deviceFree, "hipFreeAsync": deviceFree,
	"hipMallocArray": arrayAlloc, "hipMalloc3DArray": arrayAlloc, "hipMallocMipmappedArray": arrayAlloc,
	"hipArrayCreate": arrayAlloc, "hipArray3DCreate": arrayAlloc, "hipMipmappedArrayCreate": arrayAlloc,
	"hipFreeArray": arrayFree, "hipFreeMipmappedArray": arrayFree, "hipArrayDestroy": arrayFree, "hipMipmappedArrayDestroy": arrayFree,
	"hipHostMalloc": hostAlloc, "hipHostAlloc": hostAlloc, "hipMallocHost": hostAlloc, "hipMemAllocHost": hostAlloc,
	"hipHostRegister": hostAlloc, "hipHostUnregister": hostFree, "hipHostFree": hostFree, "hipFreeHost": hostFree,

	"hipMemAddressReserve": virtualAlloc, "hipMemAddressFree": virtualFree,
	"hipMemCreate": physicalAlloc, "hipMemRelease": physicalFree, "hipMemRetainAllocationHandle": retaining,
	"hipMemMap": mapping, "hipMemUnmap": unmapping,
	"hipMemImportFromShareableHandle": imported, "hipMemPoolImportPointer": sharedAlloc,
	"hipIpcOpenMemHandle": sharedAlloc, "hipIpcCloseMemHandle": sharedFree,
	"hipImportExternalMemory": externalAlloc, "hipDestroyExternalMemory": externalFree,
	"hipExternalMemoryGetMappedBuffer":         sharedAlloc,
	"hipExternalMemoryGetMappedMipmappedArray": {event.KindAlloc, event.LayerShared, event.ObjectArray},

	"hipGraphAddMemAllocNode": virtualAlloc, "hipGraphAddMemFreeNode": virtualFree, "hipDrvGraphAddMemFreeNode": virtualFree,
	"hipMemPoolCreate": poolAlloc, "hipMemPoolImportFromShareableHandle": poolAlloc, "hipMemPoolDestroy": poolFree,
	"hipMemPoolTrimTo": poolTrim, "hipDeviceGraphMemTrim": poolTrim, "hipMemGetInfo": memoryInfo,
	"hipCtxCreate": contextAlloc, "hipCtxDestroy": contextReset, "hipDevicePrimaryCtxRetain": contextAlloc,
	"hipDevicePrimaryCtxReset": contextReset, "hipDeviceReset": contextReset,
}

var zeEffects = map[string]effect{
	"zeMemAllocDevice": deviceAlloc, "zeMemAllocShared": deviceAlloc, "zeMemAllocHost": hostAlloc,
	"zeMemFree": deviceFree, "zeMemFreeExt": deviceFree, "zeImageCreate": arrayAlloc, "zeImageDestroy": arrayFree,
	"zePhysicalMemCreate": physicalAlloc, "zePhysicalMemDestroy": physicalFree,
	"zeVirtualMemReserve": virtualAlloc, "zeVirtualMemFree": virtualFree, "zeVirtualMemMap": mapping, "zeVirtualMemUnmap": unmapping,
	"zeMemOpenIpcHandle": sharedAlloc, "zeMemCloseIpcHandle": sharedFree,
	"zeContextCreate": contextAlloc, "zeContextCreateEx": contextAlloc, "zeContextDestroy": contextReset,
}

// effectOf is the effect of a call. The general functions that add a node to a graph are in the ledger for nodes that own
// memory: with its size, or with the address of what the graph is to free.
func effectOf(function string, size uint64) (effect, bool) {
	if strings.HasPrefix(function, "cuGraphAddNode") || function == "hipGraphAddNode" {
		if size > 0 {
			return virtualAlloc, true
		}
		return virtualFree, true
	}
	for _, known := range []map[string]effect{effects, hipEffects, zeEffects} {
		if e, ok := known[function]; ok {
			return e, true
		}
	}
	return effect{}, false
}

// unsized are functions that make something without saying how large it is.
var unsized = map[string]bool{
	"cuMemImportFromShareableHandle": true, "cuMemPoolImportPointer": true, "cuIpcOpenMemHandle_v2": true,
	"cuMemPoolCreate": true, "cuMemPoolImportFromShareableHandle": true,
	"cuCtxCreate": true, "cuCtxCreate_v2": true, "cuCtxCreate_v3": true, "cuCtxCreate_v4": true, "cuCtxAttach": true,
	"cuDevicePrimaryCtxRetain": true, "cuIpcOpenMemHandle": true,
	"hipMemImportFromShareableHandle": true, "hipMemPoolImportPointer": true, "hipIpcOpenMemHandle": true,
	"hipMemPoolCreate": true, "hipMemPoolImportFromShareableHandle": true, "hipCtxCreate": true, "hipDevicePrimaryCtxRetain": true,
	"zeImageCreate": true, "zeMemOpenIpcHandle": true, "zeContextCreate": true, "zeContextCreateEx": true,
}

// pitched are functions that compute the size: when they refuse, they do not say it.
var pitched = map[string]bool{
	"cuMemAllocPitch_v2": true, "hipMallocPitch": true, "hipMemAllocPitch": true, "hipMalloc3D": true,
}

// byDevice are functions that name a device where others name what they are about. The ledger has it in the place of the size.
var byDevice = map[string]bool{
	"cuDevicePrimaryCtxRelease": true, "cuDevicePrimaryCtxReset": true,
	"cuDevicePrimaryCtxRelease_v2": true, "cuDevicePrimaryCtxReset_v2": true, "cuDeviceGraphMemTrim": true,
	"hipDevicePrimaryCtxReset": true, "hipDeviceReset": true, "hipDeviceGraphMemTrim": true,
}

// TestEffects compares the hook table with what is written down here, in both directions. What is of the Python module CuPy is compared
// with CuPy's own counters (TestCuPy).
func TestEffects(t *testing.T) {
	compared := map[string]bool{}
	for i := range hook.Rows {
		r := &hook.Rows[i]
		if r.Program != hook.Call || r.Library == hook.Runtime || r.Library == hook.CuPy || r.Guard.From != hook.FromNone {
			continue
		}
		want, ok := effectOf(r.Symbol, 0)
		require.True(t, ok, "what does %s do?", r.Symbol)
		require.Equal(t, want, effect{r.Kind, r.Layer, r.Object}, r.Symbol)
		compared[r.Symbol] = true
	}
	for _, known := range []map[string]effect{effects, hipEffects, zeEffects} {
		for symbol := range known {
			require.Contains(t, compared, symbol, "a function without a row")
		}
	}
}

// outOfMemory reports whether a result is CUDA_ERROR_OUT_OF_MEMORY, as which hipErrorOutOfMemory has the same number, or
// ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY.
func outOfMemory(rc int) bool { return rc == 2 || rc == 0x70000003 }

// ledgerCall is one call in the stand-in's ledger (testdata/standin/README.md).
type ledgerCall struct {
	effect
	time       uint64
	tid        uint32
	function   string
	addr, size uint64
	rc         int
	context    uint64 // that was current, 0: none
	device     int8   // whose memory it is; -1: none's
	other      uint64 // the pool that memory is from, the handle that was mapped
}

type ledgerCalls []ledgerCall

// traced reports whether there is a row for a function.
func traced(function string) bool {
	for i := range hook.Rows {
		if hook.Rows[i].Symbol == function {
			return true
		}
	}
	return false
}

// readCalls returns the calls of functions that are traced.
func readCalls(t *testing.T, path string) ledgerCalls {
	t.Helper()
	var out ledgerCalls
	known := map[string]bool{}
	eachLine(t, path, func(line []byte) {
		f := strings.Fields(string(line))
		require.Len(t, f, 11, "%s", line)
		function := f[4]
		if _, ok := known[function]; !ok {
			known[function] = traced(function)
		}
		if !known[function] {
			return
		}
		size := number(t, f[6])
		e, ok := effectOf(function, size)
		require.True(t, ok, "what does %s do?", function)
		out = append(out, ledgerCall{
			effect: e, function: function, time: number(t, f[1]), tid: uint32(number(t, f[3])),
			addr: number(t, f[5]), size: size, rc: int(number(t, f[7])),
			context: number(t, f[8]), device: int8(signed(t, f[9])), other: number(t, f[10]),
		})
	})
	return out
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 0, 64)
	require.NoError(t, err)
	return n
}

func signed(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 0, 64)
	require.NoError(t, err)
	return n
}

// until returns the calls before a moment, and the others. The job must stand still then.
func (l ledgerCalls) until(time uint64) (before, after ledgerCalls) {
	for i := range l {
		if l[i].time >= time {
			return l[:i], l[i:]
		}
	}
	return l, nil
}

// act is what one thread did to memory, as both sides can tell it.
type act struct {
	effect
	addr uint64
	size uint64 // 0 where the kind has none
	from source // not compared by ==; see source.agrees
}

// source is where something is from, as far as it is known.
type source struct {
	device  int8   // -1: not known
	context uint64 // event.Unknown: not known
	other   uint64 // likewise
}

// same compares acts but for their sources.
func (a act) same(b act) bool {
	a.from, b.from = source{}, source{}
	return a == b
}

// agrees reports whether what we know of a source is what the ledger says.
func (s source) agrees(ledger source) bool {
	device := s.device < 0 || ledger.device < 0 || s.device == ledger.device
	context := s.context == event.Unknown || s.context == ledger.context
	other := s.other == event.Unknown || s.other == ledger.other
	return device && context && other
}

// tellsSource reports whether the call says, by itself or by what its thread chose, whose memory it is about. Others are about
// what was made before, perhaps elsewhere.
func (a act) tellsSource() bool {
	return a.kind == event.KindAlloc || a.kind == event.KindOutOfMemory || a.kind == event.KindMap || a.addr == 0
}

// acts returns what each thread did, in its order. A failed free is a free that is undone.
func (l ledgerCalls) acts() map[uint32][]act {
	out := map[uint32][]act{}
	for i := range l {
		if d := l[i].acts(); len(d) > 0 {
			out[l[i].tid] = append(out[l[i].tid], d...)
		}
	}
	return out
}

func (c *ledgerCall) acts() []act {
	a := act{c.effect, c.addr, c.size, source{c.device, c.context, c.other}}
	if byDevice[c.function] {
		a.addr, a.size, a.from.device = 0, 0, int8(c.size)
	}
	switch {
	case c.kind == event.KindFree && c.addr == 0:
		return nil
	case retires(c.kind):
		if c.kind == event.KindFree {
			a.size = 0
		}
		if c.rc != 0 {
			return []act{a, {effect{event.KindFreeFailed, c.layer, c.object}, a.addr, 0, a.from}}
		}
	case outOfMemory(c.rc) && c.kind == event.KindAlloc && (c.layer == event.LayerDevice || c.layer == event.LayerHost):
		size := c.size
		if pitched[c.function] || unsized[c.function] {
			size = event.Unknown
		}
		return []act{{effect{event.KindOutOfMemory, c.layer, c.object}, 0, size, a.from}}
	case c.rc != 0:
		return nil
	case unsized[c.function]:
		a.size = event.Unknown
	}
	return []act{a}
}

func retires(k event.Kind) bool {
	return k == event.KindFree || k == event.KindUnmap || k == event.KindReset
}

// actsOf returns the same of events.
func actsOf(events []event.Event) map[uint32][]act {
	out := map[uint32][]act{}
	for i := range events {
		e := &events[i]
		if e.Layer == event.LayerAllocator {
			continue
		}
		a := act{effect{e.Kind, e.Layer, e.Object}, e.Addr, e.Size, source{e.Device.Index, e.Context, e.Handle}}
		switch e.Kind {
		case event.KindMap:
			a.from.device, a.from.context = -1, event.Unknown // those of the handle
		case event.KindFree, event.KindFreeFailed, event.KindRetain, event.KindReset:
			a.size = 0
		case event.KindTrim:
			if e.Addr == 0 {
				a.size = 0
			}
		case event.KindOutOfMemory:
			a.addr, a.from.context, a.from.other = 0, event.Unknown, event.Unknown // the ledger does not have them
		}
		if e.Object == event.ObjectContext {
			a.from.context = event.Unknown // the one before, or the one that is made
		}
		out[e.TID] = append(out[e.TID], a)
	}
	return out
}

// requireActs compares them thread by thread, so that a failure shows the first difference and not all of them.
func requireActs(t *testing.T, want, ours map[uint32][]act) {
	t.Helper()
	for tid, w := range want {
		o := ours[tid]
		for i := range min(len(w), len(o)) {
			require.True(t, w[i].same(o[i]), "thread %d: call %d of %d:\nledger %+v\nours   %+v", tid, i, len(w), w[i], o[i])
			if w[i].tellsSource() {
				require.True(t, o[i].from.agrees(w[i].from), "thread %d: call %d of %d:\nledger %+v\nours   %+v", tid, i, len(w), w[i], o[i])
			}
		}
		both := min(len(w), len(o))
		require.Len(t, o, len(w), "thread %d: only in the ledger: %+v\nonly ours: %+v", tid, w[both:], o[both:])
	}
	for tid, o := range ours {
		require.Contains(t, want, tid, "the ledger has no calls of this thread: %+v", o)
	}
}

// holding names something that is live.
type holding struct {
	layer  event.Layer
	object event.Object
	addr   uint64
}

// holdings is what is live: bytes, by name.
type holdings map[holding]uint64

// item is something in the account. It is live while it has a reference or is mapped.
type item struct {
	size       uint64
	refs, maps int
	context    uint64 // that it goes with; 0: none
	device     int8
	ordered    bool // memory of a pool, which goes with its device's primary context
}

// mapped is physical memory at an address.
type mapped struct {
	size uint64
	of   *item
}

// account is the ledger's live set.
type account struct {
	items    map[holding]*item
	orphans  map[*item]holding // mapped, without a reference
	mappings map[uint64]mapped
}

func newAccount() *account {
	return &account{items: map[holding]*item{}, orphans: map[*item]holding{}, mappings: map[uint64]mapped{}}
}

// apply applies calls to the account.
func (a *account) apply(t *testing.T, calls ledgerCalls) {
	t.Helper()
	for i := range calls {
		c := &calls[i]
		if c.rc == 0 {
			a.applyOne(t, c)
		}
	}
}

func (a *account) applyOne(t *testing.T, c *ledgerCall) {
	t.Helper()
	switch c.kind {
	case event.KindAlloc:
		a.take(c)
	case event.KindFree:
		if c.addr != 0 {
			a.release(t, c)
		}
	case event.KindRetain:
		a.retain(t, c.addr)
	case event.KindMap:
		o := a.find(physicalFree, c.other)
		require.NotNil(t, o, "the ledger maps what it did not hand out: %+v", c)
		o.maps++
		a.mappings[c.addr] = mapped{c.size, o}
	case event.KindUnmap:
		a.unmap(t, c)
	case event.KindReset:
		a.reset(c)
	case event.KindTrim, event.KindMemoryInfo:
	default:
		require.FailNow(t, "no way to count "+c.function)
	}
}

func (a *account) take(c *ledgerCall) {
	h := holding{c.layer, c.object, c.addr}
	if o := a.items[h]; o != nil {
		o.refs++
		return
	}
	size := c.size
	if unsized[c.function] {
		size = event.Unknown
	}
	o := &item{size: size, refs: 1, context: c.context, device: c.device}
	o.ordered = strings.Contains(c.function, "Async")
	if o.ordered || c.object == event.ObjectPhysical || c.layer > event.LayerHost {
		o.context = 0
	}
	a.items[h] = o
}

// spaces are where a free looks for what it gives back, in this order: cuMemFree also takes addresses of graphs and of
// imported buffers, cuMemRelease also handles that were imported.
func (e effect) spaces() []event.Layer {
	if e.layer == event.LayerDevice {
		return []event.Layer{event.LayerDevice, event.LayerHost, event.LayerShared, event.LayerVirtual}
	}
	return []event.Layer{e.layer}
}

func (a *account) find(e effect, addr uint64) *item {
	for _, layer := range e.spaces() {
		if o := a.items[holding{layer, e.object, addr}]; o != nil {
			return o
		}
	}
	return nil
}

func (a *account) release(t *testing.T, c *ledgerCall) {
	t.Helper()
	for _, layer := range c.spaces() {
		h := holding{layer, c.object, c.addr}
		o := a.items[h]
		if o == nil {
			continue
		}
		if o.refs--; o.refs > 0 {
			return
		}
		if c.object == event.ObjectContext {
			a.reset(c)
		}
		delete(a.items, h)
		if o.maps > 0 {
			a.orphans[o] = h
		}
		return
	}
	require.FailNow(t, "the ledger gives back what it did not hand out", "%+v", c)
}

// retain adds a reference to a handle; the number of a handle stays while its memory is mapped.
func (a *account) retain(t *testing.T, handle uint64) {
	t.Helper()
	if o := a.find(physicalFree, handle); o != nil {
		o.refs++
		return
	}
	for o, h := range a.orphans {
		if h.addr == handle {
			o.refs++
			a.items[h] = o
			delete(a.orphans, o)
			return
		}
	}
	require.FailNow(t, "the ledger has one more reference of what it did not hand out")
}

func (a *account) unmap(t *testing.T, c *ledgerCall) {
	t.Helper()
	for at := c.addr; at < c.addr+c.size; {
		m, ok := a.mappings[at]
		require.True(t, ok, "the ledger unmaps what is not mapped: %+v", c)
		delete(a.mappings, at)
		at += m.size
		if m.of.maps--; m.of.maps == 0 {
			delete(a.orphans, m.of)
		}
	}
}

// reset takes what goes with a context; with a primary context, the memory of its device's pools goes too.
func (a *account) reset(c *ledgerCall) {
	primary := byDevice[c.function]
	for h, o := range a.items {
		if o.context == c.addr && h.layer <= event.LayerHost || primary && o.ordered && o.device == c.device {
			delete(a.items, h)
		}
	}
	if !primary {
		delete(a.items, holding{event.LayerHolder, event.ObjectContext, c.addr})
	}
}

// live returns what is live now.
func (a *account) live() holdings {
	out := holdings{}
	for h, o := range a.items {
		out[h] = o.size
	}
	for o, h := range a.orphans {
		out[h] = o.size
	}
	return out
}

// deviceMemory is what the ledger has live of device memory: bytes by name.
func deviceMemory(t *testing.T, ledger string) holdings {
	t.Helper()
	a := newAccount()
	a.apply(t, readCalls(t, ledger))
	out := a.live()
	maps.DeleteFunc(out, func(h holding, _ uint64) bool { return h.layer != event.LayerDevice })
	return out
}

func (h holdings) bytes() uint64 {
	n := uint64(0)
	for _, size := range h {
		n += size
	}
	return n
}

// holdingsOf is the same of a heap, below the torch layer.
func holdingsOf(h *heap.Heap) holdings {
	out := holdings{}
	for b := range h.Blocks() {
		if b.Layer != event.LayerAllocator {
			out[holding{b.Layer, b.Object, b.Addr}] = b.Size
		}
	}
	return out
}

// requireHoldings compares without printing all of two large sets.
func requireHoldings(t *testing.T, want, ours holdings, what string) {
	t.Helper()
	for h, size := range want {
		got, ok := ours[h]
		require.True(t, ok, "%s: %+v of %d bytes is missing", what, h, size)
		require.Equal(t, size, got, "%s: size of %+v", what, h)
	}
	for h, size := range ours {
		require.Contains(t, want, h, "%s: %+v of %d bytes is too much", what, h, size)
	}
}
