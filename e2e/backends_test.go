// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// backend is a way in which PyTorch gets device memory: a job of testdata/workloads/backends.py and its setting.
type backend struct {
	name string
	job  string
	args []string
	env  []string
	// native: PyTorch's own caching allocator, which reports blocks. Without it there are driver calls only.
	native bool
	// counted: the function whose live memory PyTorch counts as allocated although it has no blocks; empty: it counts nothing.
	counted string
	// segments are the functions that give the native allocator its segments; those of cuMemCreate grow piece by piece.
	segments []string
	refused  bool // the device becomes full
	pending  bool // blocks wait for another stream
}

// Settings of PyTorch and of the stand-in device.
const (
	expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	asyncOnly  = "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"
	// The same under its other name, and settings that change sizes, splits and where pinned memory comes from.
	expandableToo = "PYTORCH_ALLOC_CONF=expandable_segments:True"
	tuned         = "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:30,garbage_collection_threshold:0.5,roundup_power2_divisions:4,pinned_use_cuda_host_register:True"
	uncached      = "PYTORCH_NO_CUDA_MEMORY_CACHING=1"
	twoDevices    = "STANDIN_GPUS=2"
	smallDevice   = "STANDIN_GPU_MEM=2GiB"
	slowEvents    = "STANDIN_EVENT_US=20000" // longer than a step
)

var (
	plainSegments  = []string{"cudaMalloc"}
	mappedSegments = []string{"cuMemCreate"}
)

var backends = []backend{
	{name: "native", job: "plain", native: true, segments: plainSegments},
	{name: "native, tuned", job: "plain", env: []string{tuned}, native: true, segments: plainSegments},
	{name: "native, devices", job: "devices", env: []string{twoDevices}, native: true, segments: plainSegments},
	{name: "native, streams", job: "streams", native: true, segments: plainSegments},
	{name: "native, threads", job: "threads", env: []string{twoDevices}, native: true, segments: plainSegments},
	{name: "native, record_stream", job: "record_stream", env: []string{slowEvents}, native: true, segments: plainSegments, pending: true},
	{name: "native, graphs", job: "graphs", native: true, segments: plainSegments},
	{name: "native, pools", job: "pools", native: true, segments: plainSegments},
	{name: "native, full", job: "full", env: []string{smallDevice}, native: true, segments: plainSegments, refused: true},
	{name: "pools, plain", job: "pools", args: []string{"--pool-allocator", "plain"}, native: true, segments: plainSegments},
	{name: "pools, async", job: "pools", args: []string{"--pool-allocator", "async"}, native: true,
		segments: []string{"cudaMalloc", "cudaMallocAsync"}},
	{name: "pools, pool", job: "pools", args: []string{"--pool-allocator", "pool"}, native: true,
		segments: []string{"cudaMalloc", "cudaMallocFromPoolAsync"}},

	{name: "expandable", job: "plain", env: []string{expandable}, native: true, segments: mappedSegments},
	{name: "expandable, devices", job: "devices", env: []string{expandableToo, twoDevices}, native: true, segments: mappedSegments},
	{name: "expandable, threads", job: "threads", env: []string{expandable, twoDevices}, native: true, segments: mappedSegments},
	{name: "expandable, record_stream", job: "record_stream", env: []string{expandable, slowEvents}, native: true, segments: mappedSegments,
		pending: true},
	{name: "expandable, graphs", job: "graphs", env: []string{expandable}, native: true, segments: mappedSegments},
	{name: "expandable, pools", job: "pools", env: []string{expandable}, native: true, segments: mappedSegments},
	{name: "expandable, full", job: "full", env: []string{expandable, smallDevice}, native: true, segments: mappedSegments, refused: true},

	{name: "expandable at times", job: "switch", native: true, segments: []string{"cudaMalloc", "cuMemCreate"}},
	{name: "async", job: "plain", env: []string{asyncOnly}, counted: "cudaMallocAsync"},
	{name: "async, threads", job: "threads", env: []string{asyncOnly, twoDevices}, counted: "cudaMallocAsync"},
	{name: "async, graphs", job: "graphs", env: []string{asyncOnly}, counted: "cudaMallocAsync"},
	{name: "async, full", job: "full", env: []string{asyncOnly, smallDevice}, counted: "cudaMallocAsync", refused: true},
	{name: "uncached", job: "plain", env: []string{uncached}},
	{name: "uncached, threads", job: "threads", env: []string{uncached, twoDevices}},
	{name: "pluggable, plain", job: "plain", args: []string{"--allocator", "plain"}},
	{name: "pluggable, async", job: "threads", args: []string{"--allocator", "async"}, env: []string{twoDevices}},
	{name: "pluggable, pool", job: "plain", args: []string{"--allocator", "pool"}},
}

// torchState are PyTorch's own figures at a step: a line of the sidecar's output (testdata/workloads/sidecar.py).
type torchState struct {
	Step      int
	Boottime  uint64    `json:"boottime_ns"`
	Allocated []*uint64 // by device; nil: the backend does not say
	Reserved  []*uint64
	Segments  []torchSegment // none: the backend has none, or does not say
	Tensors   [][2]uint64    // address and bytes of some of the tensors that live
}

type torchSegment struct {
	Device        int
	Address, Size uint64
	Stream        uint64
	Expandable    bool
	Blocks        []torchBlock
}

type torchBlock struct {
	address, size, requested, stream uint64
	state                            string
}

func (b *torchBlock) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&b.address, &b.size, &b.requested, &b.state})
}

func readStates(t *testing.T, p *target) []torchState {
	t.Helper()
	var out []torchState
	eachLine(t, filepath.Join(p.dir, "books"), func(line []byte) {
		var b torchState
		require.NoError(t, json.Unmarshal(line, &b), "%s", line)
		out = append(out, b)
	})
	return out
}

const backendSteps = 15

// TestBackends runs PyTorch on each of its backends from its first byte on. At every step, what gputrace's events say is
// compared with the driver's ledger, with PyTorch's own figures, and with the addresses of tensors.
func TestBackends(t *testing.T) {
	for i := range backends {
		b := &backends[i]
		t.Run(b.name, func(t *testing.T) { b.check(t) })
	}
}

func (b *backend) check(t *testing.T) {
	t.Helper()
	ledger := filepath.Join(t.TempDir(), "ledger")
	require.NoError(t, os.WriteFile(ledger, nil, 0o644))
	args := append([]string{"--cold", "--books", "DIR/books", "--job", b.job, "--steps", itoa(backendSteps)}, b.args...)
	p := startTrainingIn(t, append([]string{"STANDIN_LEDGER=" + ledger, "STANDIN_LEDGER_SYNC=1"}, b.env...), "backends.py", args...).ready(t)
	require.Empty(t, readCalls(t, ledger), "memory before the attach")
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	steps := readStates(t, p)
	require.Len(t, steps, backendSteps)
	r := &replay{backend: b, heap: heap.New(), account: newAccount(), events: tr.events, calls: readCalls(t, ledger)}
	r.heap.FromStart(uint32(p.pid))
	for i := range steps {
		r.step(t, &steps[i])
	}
	r.requireUse(t)
}

// replay goes through a run on both sides at once.
type replay struct {
	*backend
	heap    *heap.Heap
	account *account
	seen    []event.Event // of the step
	events  []event.Event // of the steps to come
	calls   ledgerCalls

	acts, blocks, fixed, growing, tensors, reserved, refusals, pendings int // compared
}

func (r *replay) step(t *testing.T, state *torchState) {
	t.Helper()
	var calls ledgerCalls
	r.seen, r.events = eventsUntil(r.events, state.Boottime)
	calls, r.calls = r.calls.until(state.Boottime)
	want := calls.acts()
	requireActs(t, want, actsOf(r.seen))
	for _, a := range want {
		r.acts += len(a)
	}
	for i := range r.seen {
		e := &r.seen[i]
		r.heap.Apply(e)
		switch {
		case e.Kind == event.KindOutOfMemory:
			r.refusals++
		case e.Kind == event.KindAlloc && e.Layer == event.LayerDevice:
			require.GreaterOrEqual(t, e.Device.Index, int8(0), "every thread was seen to choose its device: %+v", e)
		}
	}
	r.account.apply(t, calls)
	requireHoldings(t, r.account.live(), holdingsOf(r.heap), "step "+itoa(state.Step))
	r.checkTensors(t, state)
	if r.native {
		r.checkTotals(t, state)
		r.checkBlocks(t, state)
		r.checkSegments(t, state)
	} else {
		r.checkCounted(t, state)
	}
}

// eventsUntil returns the events before a moment, and the others. The job must stand still then.
func eventsUntil(events []event.Event, time uint64) (before, after []event.Event) {
	for i := range events {
		if events[i].Time >= time {
			return events[:i], events[i:]
		}
	}
	return events, nil
}

// checkTensors looks for tensors in the live set: each lies in a torch block or, without a caching allocator, is device memory.
func (r *replay) checkTensors(t *testing.T, state *torchState) {
	t.Helper()
	lowest := event.LayerAllocator
	if !r.native {
		lowest = event.LayerDevice
	}
	sizes := map[uint64]uint64{}
	for b := range r.heap.Blocks() {
		if b.Layer == lowest {
			sizes[b.Addr] = b.Size
		}
	}
	for _, tensor := range state.Tensors {
		if tensor[1] == 0 {
			continue
		}
		r.tensors++
		if r.native {
			require.GreaterOrEqual(t, sizes[tensor[0]], tensor[1], "step %d: tensor at %#x", state.Step, tensor[0])
		} else {
			require.Equal(t, tensor[1], sizes[tensor[0]], "step %d: tensor at %#x", state.Step, tensor[0])
		}
	}
}

// checkTotals compares the totals of every device.
func (r *replay) checkTotals(t *testing.T, state *torchState) {
	t.Helper()
	all := r.heap.Totals()
	accounts := map[int8]heap.Account{}
	for _, a := range all.Accounts {
		require.Zero(t, a.Lost)
		require.Zero(t, a.Gaps)
		require.Zero(t, a.Before)
		require.Zero(t, a.UnknownFrees)
		accounts[a.Device.Index] = a
	}
	for device := range state.Allocated {
		a := accounts[int8(device)] // a device that was not used has none
		require.Equal(t, *state.Allocated[device], a.Allocated, "step %d: device %d", state.Step, device)
		require.Equal(t, *state.Reserved[device], a.Reserved, "step %d: device %d", state.Step, device)
		require.Equal(t, *state.Reserved[device], a.SegmentBytes, "step %d: device %d: segments", state.Step, device)
		r.reserved++
	}
}

// checkBlocks compares the torch layer with the blocks of torch.cuda.memory_snapshot().
func (r *replay) checkBlocks(t *testing.T, state *torchState) {
	t.Helper()
	want := map[uint64]torchBlock{}
	for _, s := range state.Segments {
		for _, b := range s.Blocks {
			switch b.state {
			case "active_allocated":
				b.stream = s.Stream
				want[b.address] = b
			case "active_pending_free":
				r.pendings++
			}
		}
	}
	found := 0
	for b := range r.heap.Blocks() {
		if b.Layer != event.LayerAllocator {
			continue
		}
		found++
		w, ok := want[b.Addr]
		require.True(t, ok, "step %d: a block too much: %+v", state.Step, b)
		require.Equal(t, w.size, b.Size, "step %d: block at %#x", state.Step, b.Addr)
		require.Equal(t, w.requested, b.Requested, "step %d: block at %#x: requested", state.Step, b.Addr)
		require.Equal(t, w.stream, b.Stream, "step %d: block at %#x: stream", state.Step, b.Addr)
	}
	require.Len(t, want, found, "step %d: blocks are missing", state.Step)
	r.blocks += found
}

// checkSegments compares what the heap takes for memory of the caching allocator with the segments of memory_snapshot(): by
// address and size and, where they grow piece by piece, by the mappings that must fill them.
func (r *replay) checkSegments(t *testing.T, state *torchState) {
	t.Helper()
	fixed, growing, reserved := holdings{}, holdings{}, uint64(0)
	for _, s := range state.Segments {
		h := holding{event.LayerDevice, event.ObjectMemory, s.Address}
		if s.Expandable {
			growing[h] = s.Size
		} else {
			fixed[h] = s.Size
		}
		reserved += s.Size
	}
	total := uint64(0)
	for _, n := range state.Reserved {
		total += *n
	}
	require.Equal(t, total, reserved, "step %d: PyTorch disagrees with itself", state.Step)
	got, sum := holdings{}, uint64(0)
	for b := range r.heap.Blocks() {
		if b.Layer != event.LayerDevice {
			continue
		}
		require.Equal(t, slices.Contains(r.segments, b.Call), b.Segment, "step %d: %+v", state.Step, b)
		if !b.Segment {
			continue
		}
		sum += b.Size
		if b.Object == event.ObjectMemory {
			got[holding{b.Layer, b.Object, b.Addr}] = b.Size
		}
	}
	require.Equal(t, reserved, sum, "step %d: bytes of segments", state.Step)
	requireHoldings(t, fixed, got, "step "+itoa(state.Step)+": segments")
	requireHoldings(t, growing, r.account.mapped(growing), "step "+itoa(state.Step)+": expandable segments")
	r.fixed += len(fixed)
	r.growing += len(growing)
}

// mapped returns, for each of some ranges, how much of it is mapped from its beginning on without a gap.
func (a *account) mapped(ranges holdings) holdings {
	out := holdings{}
	for h := range ranges {
		at := h.addr
		for at < h.addr+ranges[h] && a.mappings[at].size > 0 {
			at += a.mappings[at].size
		}
		out[h] = at - h.addr
	}
	return out
}

// poolGrain is what the stand-in's pools round sizes up to. What PyTorch says is allocated is what the pool says is used.
const poolGrain = 512

// checkCounted compares with PyTorch's only figure where it has no blocks: bytes allocated.
func (r *replay) checkCounted(t *testing.T, state *torchState) {
	t.Helper()
	require.Empty(t, r.heap.Totals().Accounts, "blocks were reported after all")
	require.Empty(t, state.Segments)
	if r.counted == "" {
		return
	}
	want, got := uint64(0), uint64(0)
	for _, n := range state.Allocated {
		want += *n
	}
	for b := range r.heap.Blocks() {
		if b.Call == r.counted {
			got += (b.Size + poolGrain - 1) / poolGrain * poolGrain
		}
	}
	require.Equal(t, want, got, "step %d: bytes of %s", state.Step, r.counted)
}

// requireUse checks that the run had in it what it was made for.
func (r *replay) requireUse(t *testing.T) {
	t.Helper()
	t.Logf("%d steps, %d calls, %d tensors, %d blocks, %d segments and %d that grow, to the byte", backendSteps, r.acts, r.tensors, r.blocks,
		r.fixed, r.growing)
	require.Greater(t, r.acts, 3*backendSteps)
	require.Greater(t, r.tensors, backendSteps)
	require.Equal(t, r.native, r.blocks > 0)
	require.Equal(t, r.native, r.reserved > 0)
	require.Equal(t, slices.Contains(r.segments, "cuMemCreate"), r.growing > 0)
	require.Equal(t, slices.ContainsFunc(r.segments, func(f string) bool { return f != "cuMemCreate" }), r.fixed > 0)
	require.Equal(t, r.refused, r.refusals > 0)
	require.Equal(t, r.pending, r.pendings > 0)
	frees := 0
	for _, d := range r.heap.Totals().Drivers {
		frees += int(d.Frees)
		require.Zero(t, d.LostFrees)
		require.Zero(t, d.UnknownFrees)
	}
	require.NotZero(t, frees, "nothing was given back to the driver")
}
