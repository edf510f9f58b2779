// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// counted is what PyTorch counted beside a snapshot (testdata/workloads/history.py).
type counted struct {
	Steps [][2]uint64
	Stats map[string]int64
}

// made runs a workload on the stand-in that writes its own snapshot.
func made(t *testing.T, config string, args ...string) (path string, c counted) {
	t.Helper()
	if testing.Short() {
		t.Skip("another program is run once, not under the race detector again")
	}
	dir := t.TempDir()
	path = filepath.Join(dir, "snapshot.pickle")
	counters := filepath.Join(dir, "counters.json")
	args = append([]string{"../../testdata/workloads/history.py", "--snapshot", path, "--counters", counters}, args...)
	cmd := exec.Command("../../testdata/run", args...)
	cmd.Env = append(os.Environ(), "PYTORCH_CUDA_ALLOC_CONF="+config)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	b, err := os.ReadFile(counters)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &c))
	return path, c
}

// replay follows a snapshot, and gives the totals after each event of the allocator.
func replay(t *testing.T, s *Source) (*heap.Heap, [][2]uint64) {
	t.Helper()
	h := heap.New()
	var totals [][2]uint64
	require.NoError(t, h.Walk(s, heap.Walker{After: func(e *event.Event) {
		if e.Layer == event.LayerAllocator {
			totals = append(totals, [2]uint64{e.Allocated, e.Reserved})
		}
	}}))
	return h, totals
}

// TestEqualsPyTorch: the totals are the allocator's own, at the end, at the peak and after each step of the program. The
// snapshots differ in what decides how large a block is, and in what of the trace they have.
func TestEqualsPyTorch(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		args         []string
		late         bool // blocks from before the history were freed in it, and their sizes are not known
		forgotten    bool // the history is of the last steps only
		plain        bool // it has none
	}{
		{name: "from the start", args: []string{"--steps", "3000"}},
		{name: "late", args: []string{"--before", "500"}, late: true},
		{name: "expandable", config: "expandable_segments:True", args: []string{"--before", "300", "--steps", "3000"}},
		{name: "power of two", config: "roundup_power2_divisions:[4:2,16:8,>:4]", args: []string{"--seed", "3"}},
		{name: "split limit", config: "max_split_size_mb:25", args: []string{"--seed", "4"}},
		{name: "last entries", args: []string{"--steps", "2000", "--entries", "500"}, late: true, forgotten: true},
		{name: "last entries, expandable", config: "expandable_segments:True", args: []string{"--steps", "2000", "--entries", "500"},
			forgotten: true},
		{name: "segments only", args: []string{"--steps", "200", "--plain"}, forgotten: true, plain: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path, want := made(t, tt.config, tt.args...)
			s, err := Open(path)
			require.NoError(t, err)
			h, totals := replay(t, s)
			sums := h.Totals()
			require.Len(t, sums.Accounts, 1)
			a := sums.Accounts[0]
			require.Equal(t, uint64(want.Stats["allocated_bytes.all.current"]), a.Allocated)
			require.Equal(t, uint64(want.Stats["reserved_bytes.all.current"]), a.Reserved)
			require.Equal(t, a.Allocated, a.Live.Bytes+a.BeforeBlocks.Bytes, "in known blocks")
			require.Equal(t, a.Reserved, a.SegmentBytes)
			require.Zero(t, a.Gaps+a.LostFrees+a.UnknownFrees+sums.Ignored)
			known := tt.config == "" || tt.plain || s.contents.settings.known // PyTorch 2.1 does not tell its settings
			if !known && !s.contents.mapped() {
				require.ErrorContains(t, notes(s), "settings that the snapshot does not tell")
			} else if !tt.forgotten {
				require.Equal(t, uint64(want.Stats["allocated_bytes.all.peak"]), a.Peak)
				requireInOrder(t, want.Steps, totals, tt.late)
			}
			if tt.late {
				require.ErrorContains(t, notes(s), "from before the history were given back in it")
			} else if !tt.plain && known && s.contents.timed {
				require.Empty(t, s.Notes())
			}
			require.Equal(t, linesByPython(t, path), linesOf(t, s))
		})
	}
}

func notes(s *Source) error { return fmt.Errorf("%s", strings.Join(s.Notes(), "; ")) }

// requireInOrder: the totals that PyTorch counted after each step come in this order, with others of one step in between. Where
// the sizes of some blocks are not known, that holds once these are freed.
func requireInOrder(t *testing.T, want, got [][2]uint64, late bool) {
	t.Helper()
	if late {
		half := slices.Index(got, want[len(want)/2])
		require.GreaterOrEqual(t, half, 0)
		want, got = want[len(want)/2:], got[half:]
	}
	for i, w := range want {
		// What changes no block comes with the next event: a segment that is returned.
		at := slices.IndexFunc(got, func(g [2]uint64) bool { return g == w })
		if at < 0 {
			at = slices.IndexFunc(got, func(g [2]uint64) bool { return g[0] == w[0] })
		}
		require.GreaterOrEqual(t, at, 0, "step %d: %d", i, w)
		got = got[at:]
	}
}

// linesByPython adds up what is allocated at the end by the innermost line of the program, in CPython.
func linesByPython(t *testing.T, path string) map[string]uint64 {
	t.Helper()
	program := `
import collections, json, pickle, sys
snapshot = pickle.load(open(sys.argv[1], "rb"))
lines = collections.Counter()
for segment in snapshot["segments"] if isinstance(snapshot, dict) else snapshot:
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            own = [f for f in block["frames"] if f["filename"].endswith(".py") and "/lib/python3" not in f["filename"]]
            lines["%s:%d" % (own[0]["filename"], own[0]["line"]) if own else ""] += block["size"]
print(json.dumps(lines))`
	out, err := exec.Command("python3", "-c", program, path).Output()
	require.NoError(t, err)
	lines := map[string]uint64{}
	require.NoError(t, json.Unmarshal(out, &lines))
	delete(lines, "") // has no stack
	return lines
}

// linesOf is the same as the tables have it.
func linesOf(t *testing.T, s *Source) map[string]uint64 {
	t.Helper()
	require.NoError(t, s.Rewind())
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	require.NoError(t, trace.Damage)
	lines := map[string]uint64{}
	for _, r := range trace.End().ByPython(0).Rows {
		lines[fmt.Sprintf("%s:%d", r.File, r.Line)] += uint64(r.Bytes)
	}
	return lines
}

// TestKept reads the snapshots that are kept, of which the totals were printed by PyTorch when they were made.
func TestKept(t *testing.T) {
	for name, b := range snapshots(t) {
		t.Run(name, func(t *testing.T) {
			require.True(t, IsSnapshot(b))
			s, err := New(bytes.NewReader(b))
			require.NoError(t, err)
			h, _ := replay(t, s)
			a := h.Totals().Accounts[0]
			unseen := uint64(0)
			if name == "torch-2.0.1.pickle" { // does not tell that a block from before the history was given back
				unseen = 3 << 20
			}
			require.Equal(t, []uint64{22022144, 27265024 - unseen, 44040192}, []uint64{a.Allocated, a.Peak, a.Reserved})
			require.Equal(t, 18875392-unseen, a.Baseline, "lived before the history")
			require.EqualValues(t, 1, a.OOMs)
			st := s.Stack(1)
			require.Equal(t, event.Frame{Kind: event.FramePython, Func: "keep", File: "/home/anna/train.py", Line: 3}, st.Frames[0])
			require.Nil(t, s.Stack(0))
			require.Nil(t, s.Stack(1<<40))
		})
	}
}

// TestRewind: the second time is as the first, whatever the size of the reads.
func TestRewind(t *testing.T) {
	for name, b := range snapshots(t) {
		s, err := New(bytes.NewReader(b))
		require.NoError(t, err)
		read := func(size int) (events []event.Event, annotations []event.Annotation) {
			for {
				got, err := s.Read(make([]event.Event, 0, size))
				events, annotations = append(events, got...), append(annotations, s.Annotations()...)
				if err != nil {
					require.ErrorIs(t, err, io.EOF)
					return events, annotations
				}
			}
		}
		events, annotations := read(1000)
		require.NoError(t, s.Rewind())
		again, annotationsAgain := read(1)
		require.Equal(t, events, again, name)
		require.Equal(t, annotations, annotationsAgain, name)
		require.NotEmpty(t, events)
	}
}

func TestFrames(t *testing.T) {
	s := newStacks()
	for _, tt := range []struct {
		in   frameKey
		want event.Frame
	}{
		{frameKey{"step", "/home/anna/train.py", 7}, event.Frame{Kind: event.FramePython, Func: "step", File: "/home/anna/train.py", Line: 7}},
		{frameKey{"<module>", "<string>", 1}, event.Frame{Kind: event.FramePython, Func: "<module>", File: "<string>", Line: 1}},
		{frameKey{"at::native::empty_cuda(c10::ArrayRef<long>, std::optional<bool>)", "??", 0},
			event.Frame{Kind: event.FrameNative, Func: "at::native::empty_cuda"}},
		{frameKey{"f(int (*)(void)) const", "a/b.cpp", 9}, event.Frame{Kind: event.FrameNative, Func: "f", File: "a/b.cpp", Line: 9}},
		{frameKey{"(anonymous namespace)::g()", "b.cu", 1}, event.Frame{Kind: event.FrameNative, Func: "(anonymous namespace)::g", File: "b.cu",
			Line: 1}},
		{frameKey{"S::operator()(int)", "??", 0}, event.Frame{Kind: event.FrameNative, Func: "S::operator()"}},
		{frameKey{"S::operator()", "??", 0}, event.Frame{Kind: event.FrameNative, Func: "S::operator()"}},
		{frameKey{"??", "/lib/libc.so.6", 160329}, event.Frame{Kind: event.FrameNative, Module: &event.Module{Path: "/lib/libc.so.6"},
			Offset: 160329}},
		{frameKey{"_start", "/usr/bin/python3.11", 4224}, event.Frame{Kind: event.FrameNative, Func: "_start",
			Module: &event.Module{Path: "/usr/bin/python3.11"}, Offset: 4224}},
		{frameKey{"weights [5] uint8", "holder", 0}, event.Frame{Kind: event.FrameNative, Func: "weights [5] uint8", File: "holder"}},
		{frameKey{"??", "??", 0}, event.Frame{Kind: event.FrameNative}},
	} {
		require.Equal(t, tt.want, s.newFrame(tt.in))
	}
}

// TestDecodeRefuses: what is a pickle, but no snapshot.
func TestDecodeRefuses(t *testing.T) {
	for _, tt := range []struct{ python, want string }{
		{`{}`, `no "segments"`},
		{`1`, `a number, want a list`},
		{`{"segments": 1}`, "segments: a number, want a list"},
		{`[1]`, "segments 0: unexpected content: a number, want a dict"},
		{`{"segments": [{}]}`, `segments 0: unexpected content: no "device"`},
		{`[dict(device=-1)]`, `"device": -1, want 0 to 127`},
		{`[dict(device=0, address=4096, total_size=512, blocks=[])]`, "its blocks end at 0x1000, want 0x1200"},
		{`[dict(device=0, address=4096, total_size=512, blocks=[dict(size=512, state="lost")])]`, `state "lost" of a block`},
		{`[dict(device=0, address=4096, total_size=512, blocks=[dict(size=512, address=1, state="inactive")])]`, "a block at 0x1, want 0x1000"},
		{`[dict(device=0, address=4096, total_size=512, blocks=[dict(size=512, state="inactive")])] * 2`, "two segments at 0x1000"},
		{`{"segments": [], "device_traces": [[{}]]}`, `device_traces 0: entry 0: unexpected content: no "action"`},
		{`{"segments": [], "device_traces": [[dict(action="alloc", addr=1)]]}`, `no "size"`},
		{`{"segments": [], "device_traces": [[dict(action="alloc", addr=1, size=2**60)]]}`, `"size": 1152921504606846976`},
		{`{"segments": [], "device_traces": [[]] * 200}`, "device 128, want below 128"},
	} {
		var out bytes.Buffer
		cmd := exec.Command("python3", "-c", "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(eval(sys.argv[1])))", tt.python)
		cmd.Stdout = &out
		require.NoError(t, cmd.Run())
		_, err := New(&out)
		require.ErrorIs(t, err, ErrFormat, tt.python)
		require.ErrorContains(t, err, tt.want, tt.python)
	}
}

// FuzzNew: whatever the bytes are, what is read of them can be replayed, and ends with the blocks that the snapshot has.
func FuzzNew(f *testing.F) {
	for _, b := range snapshots(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := New(bytes.NewReader(b))
		if err != nil {
			return
		}
		h := heap.New()
		if err := h.Replay(s); err != nil {
			t.Fatal(err)
		}
		want := map[event.Device]uint64{}
		for _, g := range s.contents.segments {
			for _, b := range g.blocks {
				if b.allocated {
					want[s.cuda(int(g.device))] += b.size
				}
			}
		}
		for _, a := range h.Totals().Accounts {
			if a.Allocated != want[a.Device] {
				t.Fatalf("%s: %d bytes, want %d", a.Device, a.Allocated, want[a.Device])
			}
		}
	})
}

// TestRecorderFrames: the frames of PyTorch's recorder itself are left out, and nothing else.
func TestRecorderFrames(t *testing.T) {
	native := func(name string) event.Frame { return event.Frame{Kind: event.FrameNative, Func: name} }
	unwind, gather := native("torch::unwind::unwind"), native("torch::CapturedTraceback::gather")
	empty, forward := native("at::detail::empty_cuda"), event.Frame{Kind: event.FramePython, Func: "forward"}
	for _, c := range []struct {
		frames []event.Frame
		want   int
	}{
		{nil, 0},
		{[]event.Frame{empty, forward}, 0},
		{[]event.Frame{native(""), empty}, 0},
		{[]event.Frame{unwind, gather, native(""), native(""), empty}, 3},
		{[]event.Frame{unwind, gather, native("torch::cuda::(anonymous namespace)::gather_with_cpp"), empty}, 3},
		{[]event.Frame{gather, forward}, 1},
		{[]event.Frame{unwind, gather, empty}, 2},
		{[]event.Frame{unwind}, 1},
	} {
		require.Equal(t, c.want, recorderDepth(c.frames), c.frames)
	}
}
