// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording/pytorch"
)

func newTrace(t *testing.T, in view.Input) *view.Trace {
	t.Helper()
	trace, err := view.NewTrace(in, nil)
	require.NoError(t, err)
	require.NoError(t, trace.Damage)
	return trace
}

// kept are snapshots of PyTorch's own.
func kept(t *testing.T) map[string]*view.Trace {
	t.Helper()
	files, err := filepath.Glob("../../recording/pytorch/testdata/*.pickle")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	out := map[string]*view.Trace{}
	for _, f := range files {
		s, err := pytorch.Open(f)
		require.NoError(t, err)
		out[filepath.Base(f)] = newTrace(t, s)
	}
	return out
}

// exported writes a moment, and gives its layouts too.
func exported(t *testing.T, trace *view.Trace, o allocator.LayoutOptions) ([]byte, []allocator.Layout) {
	t.Helper()
	layouts, err := allocator.Layouts(trace, o)
	require.NoError(t, err)
	var buf bytes.Buffer
	require.NoError(t, WriteTrace(&buf, TraceInput{Layouts: layouts, Stack: trace.Stack, Boot: time.Unix(1_700_000_000, 0)}))
	return buf.Bytes(), layouts
}

// readBack is what our own reader makes of it.
func readBack(t *testing.T, b []byte) *view.Trace {
	t.Helper()
	s, err := pytorch.New(bytes.NewReader(b))
	require.NoError(t, err)
	require.Empty(t, s.Notes())
	return newTrace(t, s)
}

// lines is what is in use on the torch layer by line of the program.
func lines(v *view.View) map[string]uint64 {
	out := map[string]uint64{}
	for i := range v.Sites {
		if s := &v.Sites[i]; s.Layer == event.LayerAllocator && s.Inuse.Bytes > 0 {
			out[s.Device.String()+" "+s.Name] += s.Inuse.Bytes
		}
	}
	return out
}

// TestRoundTrip: read back, a snapshot that was exported from PyTorch's own has its totals, peaks and lines, in all views.
func TestRoundTrip(t *testing.T) {
	for name, trace := range kept(t) {
		t.Run(name, func(t *testing.T) {
			b, _ := exported(t, trace, allocator.LayoutOptions{})
			got := readBack(t, b)
			for _, pair := range [][2]*view.View{{trace.End(), got.End()}, {trace.Peak(), got.Peak()}} {
				want, got := pair[0], pair[1]
				require.Equal(t, totals(want.Snapshot), totals(got.Snapshot))
				require.Equal(t, lines(want), lines(got))
			}
		})
	}
}

// totals are the figures of the accounts that a snapshot has.
func totals(s *heap.Snapshot) [][5]uint64 {
	var out [][5]uint64
	for i := range s.Accounts {
		a := &s.Accounts[i]
		out = append(out, [5]uint64{a.Allocated, a.Reserved, a.Peak, a.Baseline, a.OOMs})
	}
	return out
}

// TestRoundTripOfMoments: read back, a snapshot of any moment of any recording has the live set of then, by line.
func TestRoundTripOfMoments(t *testing.T) {
	for seed := range uint64(5) {
		s := eventtest.Random(seed, 3000)
		trace := newTrace(t, s)
		for _, o := range []allocator.LayoutOptions{
			{}, {Entries: 100}, {Selection: view.Selection{Moment: moment.Moment{Kind: moment.Peak}}},
			{Selection: view.Selection{Moment: moment.Moment{Kind: moment.SinceStart, Time: s.Events[1000].Time}}},
			{Selection: view.Selection{From: s.Events[1000].Time, To: s.Events[2000].Time}},
		} {
			b, layouts := exported(t, trace, o)
			got := readBack(t, b).End()
			for i, a := range got.Snapshot.Accounts {
				require.Equal(t, layouts[i].Allocated, a.Allocated)
				require.Equal(t, layouts[i].Reserved, a.Reserved)
				require.Zero(t, a.Gaps+a.LostFrees)
			}
			require.Len(t, got.Snapshot.Accounts, len(layouts))
			if o.Selection.To == 0 && o.Selection.Moment.Kind != moment.Peak && o.Entries == 0 {
				want := trace.End()
				if o.Selection.Moment.IsTime() {
					var err error
					want, err = trace.At(o.Selection.Moment.Time)
					require.NoError(t, err)
				}
				require.Equal(t, named(want), named(got))
			}
		}
	}
}

// named is lines of what has a name that a snapshot can tell.
func named(v *view.View) map[string]uint64 {
	out := lines(v)
	for k := range out {
		if strings.Contains(k, "[") {
			delete(out, k)
		}
	}
	return out
}

// TestWriteTrace: CPython reads what PyTorch's viewer needs, by opcodes that it knows, in batches that it can take.
func TestWriteTrace(t *testing.T) {
	s := eventtest.Random(1, 20_000)
	b, layouts := exported(t, newTrace(t, s), allocator.LayoutOptions{})
	var got struct {
		Segments []struct {
			Device        int
			Address       uint64
			Total_size    uint64
			Active_size   uint64
			Is_expandable bool
			Segment_type  string
			Frames        []any
			Blocks        []struct {
				Address, Size, Requested_size uint64
				State                         string
				Frames                        []struct {
					Filename, Name string
					Line           int
				}
			}
		}
		Device_traces [][]struct {
			Action  string
			Addr    uint64
			Size    uint64
			Stream  uint64
			Time_us uint64
			Frames  []any
		}
	}
	python(t, readValue, b, &got)
	n := 0
	for d, l := range layouts {
		for _, s := range l.Segments {
			g := got.Segments[n]
			n++
			require.Equal(t, []any{d, s.Addr, s.Size}, []any{g.Device, g.Address, g.Total_size})
			require.Len(t, g.Blocks, len(s.Blocks))
		}
		last := uint64(1_700_000_000e6)
		for _, e := range got.Device_traces[d] {
			require.GreaterOrEqual(t, e.Time_us, last)
			last = e.Time_us
			require.NotEmpty(t, e.Action)
		}
		require.Greater(t, len(got.Device_traces[d]), maxAppends)
	}
	require.Len(t, got.Segments, n)
	var ops map[string]int
	python(t, readOps, b, &ops)
	for op := range ops {
		require.Contains(t, viewer, op)
	}
}

// TestViewerOfTraces: PyTorch's own tool reads it with every command, and counts what we count.
func TestViewerOfTraces(t *testing.T) {
	interpreter, tool := viewerTool(t)
	inputs := kept(t)
	inputs["random"] = newTrace(t, eventtest.Random(3, 5000))
	for name, trace := range inputs {
		b, layouts := exported(t, trace, allocator.LayoutOptions{})
		file := filepath.Join(t.TempDir(), "snapshot.pickle")
		require.NoError(t, os.WriteFile(file, b, 0o644))
		view := func(args ...string) string {
			out, err := exec.Command(interpreter, append([]string{tool}, args...)...).CombinedOutput()
			require.NoError(t, err, "%s %s: %s", name, args, out)
			return string(out)
		}
		var reserved, requested, allocs, frees uint64
		for i := range layouts {
			reserved += layouts[i].Reserved
			for _, s := range layouts[i].Segments {
				for j := range s.Blocks {
					if s.Blocks[j].Live {
						requested += requestedSize(&s.Blocks[j])
					}
				}
			}
			for _, x := range layouts[i].History {
				switch x.Kind {
				case allocator.HistoryAlloc:
					allocs++
				case allocator.HistoryFree:
					frees++
				}
			}
		}
		stats := view("stats", file)
		require.Contains(t, stats, "total_reserved: "+vizBytes(reserved)+"\n", name)
		require.Contains(t, stats, "total_allocated: "+vizBytes(requested)+"\n", name)
		trace := view("trace", file)
		require.EqualValues(t, frees, strings.Count(trace, "\ndel "), name)
		require.EqualValues(t, frees, strings.Count(trace, "# free completed"), name)
		require.EqualValues(t, allocs, strings.Count(trace, "] ")+strings.Count(trace, "]\n"), name)
		for _, command := range []string{"segment_plot", "trace_plot"} {
			page := filepath.Join(t.TempDir(), "page.html")
			view(command, file, "-o", page)
			html, err := os.ReadFile(page)
			require.NoError(t, err)
			require.Contains(t, string(html), "add_local_files")
		}
	}
}

// vizBytes prints a size as the viewer does.
func vizBytes(n uint64) string {
	v := float64(n)
	for _, unit := range []string{"", "Ki", "Mi", "Gi"} {
		if v < 1024 {
			return fmt.Sprintf("%.1f%sB", v, unit)
		}
		v /= 1024
	}
	return fmt.Sprintf("%.1fTiB", v)
}

func TestWriteTraceNothing(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, WriteTrace(&buf, TraceInput{}))
	var got map[string]any
	python(t, readValue, buf.Bytes(), &got)
	require.Equal(t, map[string]any{"segments": []any{}, "device_traces": []any{}, "external_annotations": []any{}, "block_sizes": true}, got)
}

func TestWriteTraceError(t *testing.T) {
	trace := newTrace(t, eventtest.Random(1, 500))
	layouts, err := allocator.Layouts(trace, allocator.LayoutOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, WriteTrace(fullDisk{}, TraceInput{Layouts: layouts, Stack: trace.Stack}), errFull)
}
