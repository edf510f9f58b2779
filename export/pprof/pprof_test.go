// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

var (
	cuda0 = event.Device{Type: event.DeviceCUDA, Index: 0}
	cuda1 = event.Device{Type: event.DeviceCUDA, Index: 1}

	python = &event.Module{Path: "/opt/py/bin/python3.11", BuildID: "aa", Start: 0x400000, Limit: 0x800000, Offset: 0x1000}
	torch  = &event.Module{Path: "/opt/torch/lib/libtorch_cpu.so", BuildID: "bb", Start: 0x7f0000000000, Limit: 0x7f0010000000}
	moved  = &event.Module{Path: torch.Path, BuildID: "bb", Start: 0x7e0000000000, Limit: 0x7e0010000000}
	c10    = &event.Module{Path: "/opt/torch/lib/libc10_cuda.so", Start: 0x7f1000000000, Limit: 0x7f1000100000}
	driver = &event.Module{Path: "/usr/lib/libcuda.so.580.65", Start: 0x7f2000000000, Limit: 0x7f2000100000}
	nccl   = &event.Module{Path: "/opt/lib/libnccl.so.2", Start: 0x7f3000000000, Limit: 0x7f3000100000}

	empty  = native(torch, 0x10, "at::detail::empty_generic", "_ZN2at6detail13empty_genericEv")
	emptyB = native(moved, 0x10, "at::detail::empty_generic", "_ZN2at6detail13empty_genericEv")
	block  = native(c10, 0x20, "", "")
	report = native(c10, 0x30, "c10::reportMemoryUsageToProfiler", "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE")
	loop   = event.Frame{Kind: event.FrameNative, Func: "_PyEval_EvalFrameDefault", Linkage: "_PyEval_EvalFrameDefault", Module: python,
		Addr: 0x400010, Eval: true}
	start   = native(python, 0x99, "main", "main")
	linear  = line("/opt/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "Linear.forward")
	forward = line("/home/a/gpt.py", 38, "Block.forward")
	lambda  = line("/home/a/gpt.py", 12, "<lambda>")
	module  = line("/home/a/train.py", 90, "<module>")
	bad     = line("/home/a/b\xffd.py", 1, "f\xfe")
)

func native(m *event.Module, offset uint64, function, linkage string) event.Frame {
	return event.Frame{Kind: event.FrameNative, Func: function, Linkage: linkage, Module: m, Addr: m.Start + offset, Offset: offset}
}

func line(file string, n int, function string) event.Frame {
	return event.Frame{Kind: event.FramePython, File: file, Line: n, StartLine: n, Func: function}
}

var knownStacks = map[event.StackID]*event.Stack{
	1: {ID: 1, Frames: []event.Frame{report, block, block, empty, linear, forward, module, loop, start}},
	2: {ID: 2, Frames: []event.Frame{report, block, empty, lambda, module, loop, start}},
	3: {ID: 3, Frames: []event.Frame{report, block, empty, native(torch, 0x500, "", "")}, Status: event.StatusNoRow},
	4: {ID: 4, Frames: []event.Frame{native(driver, 0, "cuMemCreate", "cuMemCreate"),
		native(nccl, 0x40, "ncclCommInitRank", "ncclCommInitRank"), module}},
	5: {ID: 5, Frames: []event.Frame{report, block, empty, linear, forward, module, loop,
		native(python, 0x98, "main", "main")}}, // shown as 1 is
	6: {ID: 6, Frames: []event.Frame{report, emptyB, {Kind: event.FrameNative, Addr: 0x1234}, bad}},
	7: {ID: 7, Status: event.StatusLost},
}

func resolve(id event.StackID) *event.Stack { return knownStacks[id] }

// recorder feeds a heap and keeps the allocator's totals.
type recorder struct {
	h     *heap.Heap
	total map[event.Device]uint64
	next  uint64
}

func (r *recorder) torch(pid uint32, d event.Device, stack event.StackID, size uint64) uint64 {
	r.next += 1 << 20
	r.total[d] += size
	r.apply(event.Event{PID: pid, Kind: event.KindAlloc, Layer: event.LayerAllocator, Device: d, Addr: r.next, Size: size,
		Requested: event.Unknown, Allocated: r.total[d], Reserved: 64 << 20, Stack: stack})
	return r.next
}

func (r *recorder) free(pid uint32, d event.Device, addr, size uint64) {
	r.total[d] -= size
	r.apply(event.Event{PID: pid, Kind: event.KindFree, Layer: event.LayerAllocator, Device: d, Addr: addr, Size: size,
		Requested: event.Unknown, Allocated: r.total[d], Reserved: 64 << 20})
}

func (r *recorder) device(stack event.StackID, layer event.Layer, size uint64) uint64 {
	r.next += 1 << 30
	r.apply(event.Event{PID: 7, Kind: event.KindAlloc, Layer: layer, Device: cuda0, Addr: r.next, Size: size, Requested: event.Unknown,
		Allocated: event.Unknown, Reserved: event.Unknown, Call: "cuMemCreate", Stack: stack})
	return r.next
}

func (r *recorder) apply(e event.Event) {
	e.Time = r.h.Totals().Time + 1
	r.h.Apply(&e)
}

// recording is a run with all that a profile can hold. The allocators' totals at its end are returned.
func recording() (*view.View, map[event.Device]uint64) {
	r := &recorder{heap.New(), map[event.Device]uint64{cuda0: 5 << 20, cuda1: 0}, 1 << 40}
	r.next = r.device(4, event.LayerDevice, 2<<20) - 1<<20 // a segment: the next block lies in it
	r.torch(7, cuda0, 1, 512<<10)
	r.device(4, event.LayerDevice, 3<<20)
	r.device(4, event.LayerHost, 9<<20)
	freed := r.torch(7, cuda0, 2, 4096)
	r.torch(7, cuda0, 2, 8192)
	r.torch(7, cuda0, 3, 100<<10)
	r.torch(7, cuda0, 5, 1024)
	r.torch(7, cuda0, 0, 512)
	r.torch(7, cuda0, 7, 512)
	r.torch(7, cuda0, 99, 512)
	r.free(7, cuda0, freed, 4096)
	r.free(7, cuda0, 1<<50, 1<<20) // allocated before
	r.total[cuda0] += 1536         // an allocation that is not seen
	r.torch(7, cuda0, 1, 512)
	r.torch(8, cuda1, 6, 2048)
	return view.New(r.h.Snapshot(), resolve, nil), r.total
}

func write(t *testing.T, change func(*Input)) (string, *profile.Profile) {
	view, _ := recording()
	in := Input{View: view, Binary: python.Path, Comments: []string{"a comment"}, Time: time.Unix(1700000000, 5), Duration: 48 * time.Second}
	change(&in)
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, in))
	file := filepath.Join(t.TempDir(), "inuse.pb.gz")
	require.NoError(t, os.WriteFile(file, buf.Bytes(), 0o600))
	p, err := profile.Parse(&buf)
	require.NoError(t, err)
	require.NoError(t, p.CheckValid())
	return file, p
}

func inUse(*Input) {}

func alloc(in *Input) { in.Kind = Alloc }

// sum adds up one value of the samples that have a label.
func sum(p *profile.Profile, value int, key, label string) int64 {
	var n int64
	for _, s := range p.Sample {
		if label == "" || s.HasLabel(key, label) {
			n += s.Value[value]
		}
	}
	return n
}

func TestHeader(t *testing.T) {
	_, p := write(t, inUse)
	var types []string
	for _, st := range p.SampleType {
		types = append(types, st.Type+"/"+st.Unit)
	}
	require.Equal(t, []string{"alloc_objects/count", "alloc_space/bytes", "inuse_objects/count", "inuse_space/bytes"}, types)
	require.Equal(t, "inuse_space", p.DefaultSampleType)
	require.Equal(t, profile.ValueType{Type: "space", Unit: "bytes"}, *p.PeriodType)
	require.EqualValues(t, 1, p.Period)
	require.Zero(t, p.DurationNanos)
	require.EqualValues(t, 1700000000*1e9+5, p.TimeNanos)
	require.Empty(t, p.DocURL+p.DropFrames+p.KeepFrames)
	require.Equal(t, []string{"a comment", kinds[InUse].others}, p.Comments)
	require.Equal(t, python.Path, p.Mapping[0].File)

	_, p = write(t, func(in *Input) { in.Detail = DetailFull })
	main := p.Mapping[0] // completed by the frames in it
	require.Equal(t, []any{python.Path, "aa", python.Start}, []any{main.File, main.BuildID, main.Start})

	_, p = write(t, alloc)
	require.Equal(t, "alloc_space", p.DefaultSampleType)
	require.EqualValues(t, 48e9, p.DurationNanos)
}

func TestUnknownKind(t *testing.T) {
	require.EqualError(t, Write(io.Discard, Input{Kind: 9}), "write profile: no kind 9")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestWriteError(t *testing.T) {
	view, _ := recording()
	require.ErrorIs(t, Write(fullDisk{}, Input{View: view}), errFull)
}

func TestTorchSamplesAreTheAllocatorsTotal(t *testing.T) {
	_, totals := recording()
	_, p := write(t, inUse)
	var torch int64
	for _, device := range []event.Device{cuda0, cuda1} {
		var n int64
		for _, s := range p.Sample {
			if s.HasLabel("layer", "torch") && s.HasLabel("device", device.String()) {
				n += s.Value[inuseSpace]
			}
		}
		require.EqualValues(t, totals[device], n)
		torch += n
	}
	require.EqualValues(t, 3<<20, sum(p, inuseSpace, "layer", "device"), "the segment and host memory are not in it")
	require.EqualValues(t, torch+3<<20, sum(p, inuseSpace, "", ""))
	require.EqualValues(t, 4<<20, sum(p, inuseSpace, "site", BeforeAttach))
	require.EqualValues(t, 1536, sum(p, inuseSpace, "site", LostEvents))
}

func TestAllocProfile(t *testing.T) {
	_, p := write(t, alloc)
	seen := int64(512<<10 + 4096 + 8192 + 100<<10 + 1024 + 512 + 512 + 512 + 512 + 2048)
	require.Equal(t, seen, sum(p, allocSpace, "layer", "torch"))
	require.EqualValues(t, 10, sum(p, allocObjects, "layer", "torch"))
	require.EqualValues(t, 3<<20, sum(p, allocSpace, "layer", "device"))
	require.Zero(t, sum(p, allocSpace, "site", BeforeAttach))
	for _, s := range p.Sample {
		require.Positive(t, s.Value[allocObjects])
	}
}

func TestEverySampleHasEveryLabel(t *testing.T) {
	_, p := write(t, inUse)
	for _, s := range p.Sample {
		require.Len(t, s.Label, 7)
		require.Empty(t, s.NumLabel)
		for _, key := range []string{"layer", "device", "pid", "site", "call", "stack"} {
			require.Len(t, s.Label[key], 1, key)
			require.NotEmpty(t, s.Label[key][0], key)
		}
	}
	for want, n := range map[[2]string]int64{
		{"pid", "pid 8"}: 2048, {"device", "cuda:1"}: 2048, {"call", "cuMemCreate"}: 3 << 20, {"stack", "no unwind row"}: 100 << 10,
		{"stack", "lost"}: 512, {"stack", "unknown stack"}: 512, {"stack", "no stack"}: 512 + 4<<20 + 1536,
		{"site", "gpt.py:38 Block.forward"}: 512<<10 + 1024 + 512, {"site", "gpt.py:12 <lambda>"}: 8192,
	} {
		require.Equal(t, n, sum(p, inuseSpace, want[0], want[1]), want)
	}
}

// leafFirst is the names of a sample's frames.
func leafFirst(s *profile.Sample) string {
	var out []string
	for _, l := range s.Location {
		out = append(out, l.Line[0].Function.Name)
	}
	return strings.Join(out, " < ")
}

func stackOf(p *profile.Profile, site string) (out []string) {
	for _, s := range p.Sample {
		if s.HasLabel("site", site) {
			out = append(out, leafFirst(s))
		}
	}
	return out
}

func TestStacks(t *testing.T) {
	_, p := write(t, inUse)
	// Two stacks that differ only in what is not shown make one sample.
	require.Equal(t, []string{"gpt.py:38 Block.forward < at::detail::empty_generic < Linear.forward < Block.forward < <module>"},
		stackOf(p, "gpt.py:38 Block.forward"))
	require.Equal(t, []string{"at::detail::empty_generic < libtorch_cpu.so+0x500"}, stackOf(p, "at::detail::empty_generic"))
	require.Equal(t, []string{BeforeAttach}, stackOf(p, BeforeAttach))
	require.Equal(t, []string{LostEvents}, stackOf(p, LostEvents))
	require.Equal(t, []string{stacks.NoStack}, stackOf(p, stacks.NoStack))
	require.Equal(t, []string{stacks.UnknownStack, stacks.UnknownStack}, stackOf(p, stacks.UnknownStack)) // lost, and never seen

	_, p = write(t, func(in *Input) { in.Detail = DetailFull })
	require.Equal(t, []string{
		"c10::reportMemoryUsageToProfiler < libc10_cuda.so+0x20 < libc10_cuda.so+0x20 < at::detail::empty_generic < Linear.forward < " +
			"Block.forward < <module> < _PyEval_EvalFrameDefault < main",
		"c10::reportMemoryUsageToProfiler < libc10_cuda.so+0x20 < at::detail::empty_generic < Linear.forward < Block.forward < <module> < " +
			"_PyEval_EvalFrameDefault < main",
	}, stackOf(p, "gpt.py:38 Block.forward"))

	_, p = write(t, func(in *Input) { in.Detail = DetailVisible })
	require.Equal(t, []string{"at::detail::empty_generic < Linear.forward < Block.forward < <module>"}, stackOf(p, "gpt.py:38 Block.forward"))
	require.Equal(t, []string{"at::detail::empty_generic < libtorch_cpu.so+0x500"}, stackOf(p, "at::detail::empty_generic"))
}

func TestFramesInTheFile(t *testing.T) {
	_, p := write(t, inUse)
	names := map[string]int{}
	for _, f := range p.Function {
		require.NotEmpty(t, f.Name)
		names[f.Name]++
		if strings.HasSuffix(f.Filename, ".py") {
			require.Empty(t, f.SystemName)
			require.Positive(t, f.StartLine)
		}
	}
	require.Equal(t, 1, names["at::detail::empty_generic"]) // one function, in two processes
	require.Equal(t, 1, names["f\uFFFD"])
	mapped := map[string]int{}
	for _, m := range p.Mapping {
		mapped[m.File]++
		require.True(t, m.HasFunctions)
		require.False(t, m.HasInlineFrames)
	}
	require.Equal(t, 2, mapped[torch.Path]) // at its address in each process
	require.Equal(t, 1, mapped["[python]"])
	for _, l := range p.Location {
		if m := l.Mapping; m.Limit > 0 {
			require.True(t, l.Address >= m.Start && l.Address < m.Limit)
		}
	}
}

// pprof runs the tool that users run. It must have nothing to say on stderr.
func pprof(t *testing.T, args ...string) string {
	cmd := exec.Command("go", append([]string{"tool", "pprof", "-nodefraction=0"}, args...)...)
	cmd.Env = append(os.Environ(), "PPROF_BINARY_PATH="+t.TempDir(), "PPROF_TMPDIR="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), stderr.String())
	require.Empty(t, stderr.String())
	return stdout.String()
}

var totalLine = regexp.MustCompile(`of (\d+)B total`)

// total is the total of a table that was printed with -unit=B.
func total(t *testing.T, out string) int {
	m := totalLine.FindStringSubmatch(out)
	require.NotNil(t, m, out)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

func TestPprofTop(t *testing.T) {
	file, _ := write(t, inUse)
	_, totals := recording()
	torch := int(totals[cuda0] + totals[cuda1])

	out := pprof(t, "-top", "-unit=B", file)
	require.Contains(t, out, "File: python3.11\n")
	require.Contains(t, out, "Type: inuse_space\n")
	require.Contains(t, out, "a comment\n")
	require.Equal(t, torch+3<<20, total(t, out))
	require.Contains(t, out, BeforeAttach)
	require.Contains(t, out, LostEvents)

	out = pprof(t, "-top", "-unit=B", "-tagfocus=layer=torch", file)
	require.Contains(t, out, "Showing nodes accounting for "+strconv.Itoa(torch)+"B, ")

	out = pprof(t, "-top", "-unit=B", "-tagfocus=layer=device", file)
	require.Contains(t, out, "Showing nodes accounting for "+strconv.Itoa(3<<20)+"B, ")
	require.Contains(t, out, "cuMemCreate")

	out = pprof(t, "-top", "-sample_index=inuse_objects", file)
	require.Contains(t, out, "of 10 total")
}

func TestPprofLines(t *testing.T) {
	file, _ := write(t, inUse)
	out := pprof(t, "-top", "-lines", "-cum", "-unit=B", file)
	own := int(512<<10 + 1024 + 512)
	require.Regexp(t, strconv.Itoa(own)+`B +[\d.]+% +Block\.forward /home/a/gpt\.py:38\n`, out)
	require.Contains(t, out, "<module> /home/a/train.py:90\n", "the name must survive pprof's demangler")
	require.Contains(t, out, "<lambda> /home/a/gpt.py:12\n")

	out = pprof(t, "-top", "-lines", "-unit=B", "-tagfocus=layer=torch", "-tagignore=stack=no stack", file)
	rows := strings.Split(out[strings.Index(out, "cum%\n")+5:], "\n")
	require.Contains(t, rows[0], "gpt.py:38 Block.forward", "the program's own line leads, without -cum")
}

func TestPprofTagsAndTraces(t *testing.T) {
	file, p := write(t, inUse)
	out := pprof(t, "-tags", "-unit=B", file)
	for _, key := range []string{"layer", "device", "pid", "site", "call", "stack"} {
		require.Contains(t, out, " "+key+": Total ")
	}
	out = pprof(t, "-traces", file)
	require.Equal(t, len(p.Sample)+1, strings.Count(out, "-----------+-"))
	require.Contains(t, out, "libtorch_cpu.so+0x500")

	out = pprof(t, "-traces", "-tagroot=device,pid", file)
	require.Contains(t, out, "pid 8")
}

func TestPprofAlloc(t *testing.T) {
	file, _ := write(t, alloc)
	out := pprof(t, "-top", "-unit=B", file)
	require.Contains(t, out, "Type: alloc_space\n")
	require.Contains(t, out, "Duration: 48s")
	require.NotContains(t, out, BeforeAttach)
}

// Two profiles of one run subtract: equal samples disappear.
func TestPprofDiff(t *testing.T) {
	file, _ := write(t, inUse)
	out := pprof(t, "-top", "-diff_base="+file, "-unit=B", file)
	require.Contains(t, out, "Showing nodes accounting for 0, ")
}

func TestEmpty(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, Input{View: view.New(heap.New().Snapshot(), resolve, nil)}))
	p, err := profile.Parse(&buf)
	require.NoError(t, err)
	require.Empty(t, p.Sample)
	require.Equal(t, "[python]", p.Mapping[0].File)
}

// With the allocator state, what was allocated before is known block by block, and what was lost is found. Neither was seen to be
// allocated.
func TestBlocksOfTheAllocatorState(t *testing.T) {
	r := &recorder{heap.New(), map[event.Device]uint64{cuda0: 3072}, 1 << 40}
	seen := r.torch(7, cuda0, 1, 512)
	for _, blocks := range [][]uint64{{0x1000, 0x2000}, {0x1000, 0x2000, 0x5000}} {
		r.h.Watch(7)
		o := event.Observation{PID: 7, Device: cuda0, From: r.h.Totals().Time + 1, To: r.h.Totals().Time + 2, Reserved: event.Unknown}
		for _, addr := range blocks {
			o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: addr, Size: 1536, Requested: 1500})
		}
		o.Blocks = append(o.Blocks, event.ObservedBlock{Addr: seen, Size: 512, Requested: 500})
		o.Allocated = 512 + 1536*uint64(len(blocks))
		_, err := r.h.Reconcile(o)
		require.NoError(t, err)
	}
	view := view.New(r.h.Snapshot(), resolve, nil)
	_, p := write(t, func(in *Input) { in.View = view })
	for name, want := range map[string][2]int64{BeforeAttach: {2, 3072}, LostEvents: {1, 1536}} {
		require.Equal(t, want, [2]int64{sum(p, inuseObjects, "site", name), sum(p, inuseSpace, "site", name)}, name)
	}
	require.EqualValues(t, 512+3*1536, sum(p, inuseSpace, "", ""))
	_, p = write(t, func(in *Input) { in.View, in.Kind = view, Alloc })
	require.EqualValues(t, 512, sum(p, allocSpace, "", ""))
}
