// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// fake is a Mac for tests: dyld, Objective-C, Metal and libtorch_cpu, which run the shim that ships on Linux.
type fake struct {
	dyld, torch string // libraries
	dir         string // of the rings
	ledger      string // what was allocated and freed, by the fake
	asked       string // what the program asked for, by itself
}

// buildFake makes one. Options are the compiler's, for libtorch_cpu.
func buildFake(t *testing.T, options ...string) *fake {
	t.Helper()
	dir := t.TempDir()
	f := &fake{filepath.Join(dir, "libmac.so"), filepath.Join(dir, "libtorch_cpu.dylib"), t.TempDir(), filepath.Join(dir, "ledger"),
		filepath.Join(dir, "asked")}
	flags := []string{"-g", "-O1", "-fno-omit-frame-pointer", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type",
		"-pthread"}
	build := func(compiler, out string, args ...string) {
		cmd := exec.Command(compiler, append(append([]string{"-o", out}, flags...), args...)...)
		cmd.Dir = "testdata/mac"
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	build("gcc", f.dyld, "-std=gnu11", "dyld.c", "macho.c", "malloc.c", "metal.c", "objc.c", "unwind.c", "-ldl", "-lgcc_s")
	build("g++", f.torch, append(options, "-std=c++17", "torch.cc", "tensor.cc", f.dyld)...)
	return f
}

// python is an interpreter of pyenv, not its wrapper: each program of a shell would load the shim.
func python(t *testing.T, version string) string {
	t.Helper()
	root := os.Getenv("PYENV_ROOT")
	if root == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		root = filepath.Join(home, ".pyenv")
	}
	found, err := filepath.Glob(filepath.Join(root, "versions", version+".*", "bin", "python"+version))
	require.NoError(t, err)
	require.NotEmpty(t, found, "CPython %s by pyenv", version)
	return found[0]
}

// environ are the variables of a program that runs on the fake.
func (f *fake) environ(t *testing.T) []string {
	t.Helper()
	shim, err := filepath.Abs("shim/" + ShimName)
	require.NoError(t, err)
	return append(os.Environ(), "LD_PRELOAD="+f.dyld, "DYLD_INSERT_LIBRARIES="+shim, "GPUTRACE_DIR="+f.dir,
		"GPUTRACE_FAKE_LEDGER="+f.ledger, "GPUTRACE_FAKE_TORCH="+f.torch, "GPUTRACE_RING_BYTES=67108864", "LD_LIBRARY_PATH=")
}

// train runs the program. It may be killed by itself.
func (f *fake) train(t *testing.T, interpreter string, args ...string) *ring.Reader {
	t.Helper()
	cmd := exec.Command(interpreter, append([]string{"testdata/mac/train.py", f.asked}, args...)...)
	cmd.Env = f.environ(t)
	out, err := cmd.CombinedOutput()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		require.NoError(t, err, "%s", out)
	}
	r, err := ring.Open(filepath.Join(f.dir, fmt.Sprint(cmd.Process.Pid)+".ring"))
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() { r.Close() })
	return r
}

// entry is a line of the ledger.
type entry struct {
	what         string
	object       uint64
	first, bytes uint64 // requested or bytes; bytes
	heap         uint64
}

func (f *fake) entries(t *testing.T) []entry {
	t.Helper()
	var out []entry
	for _, line := range lines(t, f.ledger) {
		var e entry
		_, err := fmt.Sscanf(line, "%s %x %d %d %x", &e.what, &e.object, &e.first, &e.bytes, &e.heap)
		require.NoError(t, err, line)
		out = append(out, e)
	}
	require.NotEmpty(t, out)
	return out
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	var out []string
	for s.Scan() {
		out = append(out, s.Text())
	}
	require.NoError(t, s.Err())
	return out
}

// request is what the program asked for, and where it was.
type request struct {
	Thread uint64
	Size   uint64
	Frames [][3]any
}

func (f *fake) requests(t *testing.T) []request {
	t.Helper()
	var out []request
	for _, line := range lines(t, f.asked) {
		var r request
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		out = append(out, r)
	}
	return out
}

// raw are the records of a ring, and the events that are made of them.
type raw struct {
	decoder *decoder
	events  []ring.Event
	out     []event.Event
}

func readAll(t *testing.T, r *ring.Reader) *raw {
	t.Helper()
	got := &raw{decoder: newDecoder(uint32(r.PID), 0)}
	for more := true; more; {
		var err error
		more, err = r.Read(func(record *ring.Record) error {
			if record.Type == ring.TypeEvent {
				e, err := record.Event()
				require.NoError(t, err)
				got.events = append(got.events, e)
			}
			got.out = got.decoder.take(record, got.out)
			return nil
		})
		require.NoError(t, err)
	}
	require.Zero(t, got.decoder.strange, "records that were not understood")
	return got
}

// TestShim: the library that ships, as it is, sees what the fake's ledger has, to the byte, with the interpreter's own stacks.
func TestShim(t *testing.T) {
	for _, version := range []string{"3.9", "3.10", "3.11", "3.12", "3.13"} {
		t.Run(version, func(t *testing.T) {
			f := buildFake(t)
			r := f.train(t, python(t, version), "20")
			got := readAll(t, r)
			require.Equal(t, "blocks are traced", got.decoder.words["torch"])
			checkLedger(t, f.entries(t), got.events)
			checkHeap(t, f.entries(t), got.out)
			checkStacks(t, f.requests(t), got)
			checkHits(t, r, got.decoder)
			checkCounters(t, got.decoder)
			checkTorch(t, got)
		})
	}
}

// TestRingOverflow: nobody reads a small ring. What had no room is counted, by hook; what was written is whole.
func TestRingOverflow(t *testing.T) {
	f := buildFake(t)
	cmd := exec.Command(python(t, "3.11"), "testdata/mac/train.py", f.asked, "20")
	cmd.Env = append(f.environ(t), "GPUTRACE_RING_BYTES=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	r, err := ring.Open(filepath.Join(f.dir, fmt.Sprint(cmd.Process.Pid)+".ring"))
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	got := readAll(t, r)
	hits, err := r.Hits()
	require.NoError(t, err)
	lost := uint64(0)
	for i := range hits {
		h := &hits[i]
		quiet := h.Quiet["within another"] + h.Quiet["nothing changed"] + h.Quiet["foreign memory"]
		require.Equal(t, h.Hits, h.Emitted+quiet+h.Lost(), h.Probe)
		require.Equal(t, h.Emitted, got.decoder.received[i], h.Probe)
		lost += h.Lost()
	}
	require.Greater(t, lost, uint64(1000))
	require.Less(t, len(got.events), 65536/88)
	ends := 0
	for _, e := range f.entries(t) {
		if e.what == "torch-" {
			ends++
		}
	}
	require.EqualValues(t, ends, hits[ring.HookRelease].Hits, "each end of a block was noticed")
}

// TestKilled: what a program that is killed had written is read, to its last request.
func TestKilled(t *testing.T) {
	f := buildFake(t)
	r := f.train(t, python(t, "3.11"), "5", "recursion", "kill")
	got := readAll(t, r)
	checkLedger(t, f.entries(t), got.events)
	checkHits(t, r, got.decoder)
	last := &got.events[len(got.events)-1]
	st := got.decoder.Stack(event.StackID(last.Stack))
	require.Equal(t, event.StatusTooDeep, st.Status, "600 frames of Python")
	frames := 0
	for i := range st.Frames {
		if st.Frames[i].Kind == event.FramePython {
			require.NotZero(t, st.Frames[i].Line)
			frames++
		}
	}
	require.Equal(t, 256, frames)
}

// ledgerOf is the ledger's entry of an event of the shim; empty: of one that is in no ledger.
func ledgerOf(e *ring.Event) string {
	switch {
	case e.Hook == ring.HookAllocate && e.Flags&ring.FlagFailed != 0:
		return fmt.Sprintf("torch! %d", e.Requested)
	case e.Hook == ring.HookResource && e.Flags&ring.FlagFailed != 0:
		return fmt.Sprintf("buffer! %d", e.Requested)
	case e.Hook == ring.HookAllocate:
		return fmt.Sprintf("torch %x %d %d", e.Object, e.Requested, e.Size)
	case e.Hook == ring.HookRelease:
		return fmt.Sprintf("torch- %x", e.Object)
	case e.Hook == ring.HookHeap:
		return fmt.Sprintf("heap %x %d", e.Object, e.Size)
	case e.Hook == ring.HookResource && e.Flags&ring.FlagImported != 0:
		return fmt.Sprintf("imported %x %d", e.Object, e.Requested)
	case e.Hook == ring.HookResource && e.Requested == event.Unknown:
		return fmt.Sprintf("texture %x %d in %x", e.Object, e.Size, e.Heap)
	case e.Hook == ring.HookResource:
		return fmt.Sprintf("buffer %x %d %d in %x", e.Object, e.Requested, e.Size, e.Heap)
	}
	return ""
}

func (e *entry) String() string {
	switch e.what {
	case "torch!", "buffer!":
		return fmt.Sprintf("%s %d", e.what, e.first)
	case "torch":
		return fmt.Sprintf("torch %x %d %d", e.object, e.first, e.bytes)
	case "torch-":
		return fmt.Sprintf("torch- %x", e.object)
	case "heap":
		return fmt.Sprintf("heap %x %d", e.object, e.bytes)
	case "imported":
		return fmt.Sprintf("imported %x %d", e.object, e.first)
	case "buffer", "placed":
		if e.first == 123_456 { // of a texture the bytes are in a descriptor
			return fmt.Sprintf("texture %x %d in %x", e.object, e.bytes, e.heap)
		}
		return fmt.Sprintf("buffer %x %d %d in %x", e.object, e.first, e.bytes, e.heap)
	}
	return ""
}

// checkLedger compares what happened to each object, in order. Between objects the order of the two is their own. Of the one request
// that was in progress when the allocator was found there is nothing, by design.
func checkLedger(t *testing.T, entries []entry, events []ring.Event) {
	t.Helper()
	want, have := map[uint64][]string{}, map[uint64][]string{}
	first := true
	for i := range entries {
		e := &entries[i]
		if e.what == "torch" && first {
			first = false
			continue
		}
		if s := e.String(); s != "" {
			want[e.object] = append(want[e.object], s)
		}
	}
	for i := range events {
		if s := ledgerOf(&events[i]); s != "" {
			have[events[i].Object] = append(have[events[i].Object], s)
		}
	}
	require.Greater(t, len(want), 20)
	for object, list := range want {
		sameLists(t, list, have[object])
	}
	require.Len(t, have, len(want), "objects")
}

// sameLists compares two long lists, and shows where they begin to differ.
func sameLists(t *testing.T, want, have []string) {
	t.Helper()
	for i := range min(len(want), len(have)) {
		require.Equal(t, want[i], have[i], "%d of %d", i, len(want))
	}
	require.Len(t, have, len(want), "first %s", want[0])
}

// checkHeap replays the events, and compares what is live, to the byte.
func checkHeap(t *testing.T, entries []entry, events []event.Event) {
	t.Helper()
	var blocks, requested, bytes uint64
	type live struct{ requested, size uint64 }
	torch, heaps := map[uint64]live{}, map[uint64]uint64{}
	for i, first := 0, true; i < len(entries); i++ {
		switch e := &entries[i]; e.what {
		case "torch":
			if !first {
				torch[e.object] = live{e.first, e.bytes}
			}
			first = false
		case "torch-":
			delete(torch, e.object)
		case "heap", "buffer":
			heaps[e.object] = e.bytes
		case "heap-", "buffer-":
			delete(heaps, e.object)
		}
	}
	for _, b := range torch {
		blocks, requested = blocks+b.size, requested+b.requested
	}
	for _, b := range heaps {
		bytes += b
	}
	h := heap.New()
	h.ApplyAll(events)
	totals := h.Totals()
	require.Len(t, totals.Accounts, 1)
	a := &totals.Accounts[0]
	require.Equal(t, "mps:0", a.Device.String())
	require.Equal(t, blocks, a.Live.Bytes)
	require.Equal(t, requested, a.Live.Requested)
	require.Zero(t, a.UnknownFrees+a.LostFrees)
	require.EqualValues(t, 1, a.OOMs)
	require.Zero(t, totals.Ignored)
	var device uint64
	for i := range totals.Drivers {
		if d := &totals.Drivers[i]; d.Layer == event.LayerDevice {
			device += d.Live.Bytes
			require.Equal(t, a.Reserved, d.Segments.Bytes, "heaps with blocks are segments")
		}
	}
	require.Equal(t, bytes, device)
}

// checkStacks compares each request of a thread with its event, in order: size, and Python's frames by the interpreter.
func checkStacks(t *testing.T, requests []request, got *raw) {
	t.Helper()
	want := map[uint64][]string{}
	for i := range requests {
		r := &requests[i]
		want[r.Thread] = append(want[r.Thread], fmt.Sprint(r.Size)+describe(r.Frames))
	}
	have := map[uint64][]string{}
	for i := range got.events {
		e := &got.events[i]
		if e.Hook != ring.HookAllocate && (e.Hook != ring.HookResource || e.Heap != 0 || e.Requested == event.Unknown) {
			continue
		}
		st := got.decoder.Stack(event.StackID(e.Stack))
		require.NotNil(t, st)
		var frames [][3]any
		for k := range st.Frames {
			if f := &st.Frames[k]; f.Kind == event.FramePython {
				frames = append(frames, [3]any{f.File, float64(f.Line), f.Func})
			}
		}
		have[e.Thread] = append(have[e.Thread], fmt.Sprint(e.Requested)+describe(frames))
	}
	n := 0
	for thread, list := range want {
		if thread == uint64(requests[0].Thread) {
			list = withoutUnseen(list) // the first request, and the child's
		}
		n += len(list)
		sameLists(t, list, have[thread])
	}
	require.Greater(t, n, 1000)
}

// withoutUnseen leaves out the request that was in progress when the allocator was found, of 100 bytes.
func withoutUnseen(list []string) []string {
	return list[1:]
}

func describe(frames [][3]any) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "\n%v:%v %v", f[0], f[1], f[2])
	}
	return b.String()
}

// checkHits: each run of a hook is accounted for, and what was emitted was received.
func checkHits(t *testing.T, r *ring.Reader, d *decoder) {
	t.Helper()
	hits, err := r.Hits()
	require.NoError(t, err)
	for i := range hits {
		h := &hits[i]
		quiet := uint64(0)
		for _, n := range h.Quiet {
			quiet += n
		}
		require.Equal(t, h.Hits, h.Emitted+quiet+h.Lost(), h.Probe)
		require.Zero(t, h.Lost(), h.Probe)
		require.Equal(t, h.Emitted, d.received[i], h.Probe)
		require.NotZero(t, h.Hits, h.Probe)
	}
	pending, err := r.Pending()
	require.NoError(t, err)
	require.Empty(t, pending)
}

// checkCounters: what the device counts beyond what is known is the driver's own.
func checkCounters(t *testing.T, d *decoder) {
	t.Helper()
	require.EqualValues(t, 1<<30, d.counters.Recommended)
	require.NotZero(t, d.counters.Time)
	require.EqualValues(t, 3<<20, d.untracked)
}

// checkTorch: what the decoder counts of PyTorch's allocator is what the heap has of the same events.
func checkTorch(t *testing.T, got *raw) {
	t.Helper()
	h := heap.New()
	h.ApplyAll(got.out)
	totals := h.Totals()
	a, torch := &totals.Accounts[0], &got.decoder.torch
	require.EqualValues(t, a.Live.Bytes, torch.Allocated)
	require.EqualValues(t, a.Live.Requested, torch.Requested)
	require.EqualValues(t, a.Reserved, torch.Reserved)
	require.Equal(t, torch.Reserved, torch.Allocated+torch.InactiveSplit+torch.Free)
	require.NotZero(t, torch.InactiveSplit)
}
