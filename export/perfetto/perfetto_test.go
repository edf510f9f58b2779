// SPDX-License-Identifier: Apache-2.0

package perfetto_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/perfetto"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// decoded is what Perfetto's own bindings find in a trace; see testdata/decode.py, which also checks its structure.
type decoded struct {
	Packets    int               `json:"packets"`
	Clocks     map[string]uint64 `json:"clocks"`
	Attributes map[string]any    `json:"attributes"`
	Processes  map[string][]any  `json:"processes"`
	Threads    [][2]uint32       `json:"threads"`

	ThreadNames map[string]string `json:"thread_names"`

	Counters [][]any      `json:"counters"`
	Instants []occurrence `json:"instants"`
	Slices   []occurrence `json:"slices"`
	Dumps    []struct {
		Sequence int     `json:"sequence"`
		Time     uint64  `json:"time"`
		PID      uint32  `json:"pid"`
		Heap     string  `json:"heap"`
		Samples  [][]any `json:"samples"`
	} `json:"dumps"`
}

// occurrence is an instant or a slice.
type occurrence struct {
	Track  []any             `json:"track"`
	Time   uint64            `json:"time"`
	End    uint64            `json:"end"` // 0: open
	Name   string            `json:"name"`
	Stack  []string          `json:"stack"`
	Values map[string]uint64 `json:"values"`
	Weight uint64            `json:"weight"`

	UUID            uint64         `json:"uuid"`  // of the track
	Depth           int            `json:"depth"` // slices around it
	Args            map[string]any `json:"args"`  // that are not in Values
	Category        []string       `json:"category"`
	Flows, FlowEnds []uint64
}

// venvPython is the Python that has what testdata/requirements.txt lists.
func venvPython(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("another program is run once, not under the race detector again")
	}
	out, err := exec.Command("../../testdata/setup.sh", "--print", "python").Output()
	require.NoError(t, err)
	python := strings.TrimSpace(string(out))
	if err := exec.Command(python, "-c", "import perfetto, google.protobuf").Run(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s has no perfetto: %v", python, err)
		}
		t.Skipf("%s has no perfetto (testdata/setup.sh installs it): %v", python, err)
	}
	return python
}

func decode(t testing.TB, trace []byte) *decoded {
	t.Helper()
	python := venvPython(t)
	file := filepath.Join(t.TempDir(), "timeline.pftrace")
	require.NoError(t, os.WriteFile(file, trace, 0o600))
	var stderr bytes.Buffer
	cmd := exec.Command(python, filepath.Join("testdata", "decode.py"), file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var d decoded
	require.NoError(t, json.Unmarshal(out, &d))
	return &d
}

func newTrace(t testing.TB, s *eventtest.Stream) *view.Trace {
	t.Helper()
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	return trace
}

func write(t testing.TB, trace *view.Trace, o *view.TimelineOptions) ([]byte, *view.Timeline) {
	t.Helper()
	tl, err := trace.Timeline(o)
	require.NoError(t, err)
	var buf bytes.Buffer
	require.NoError(t, perfetto.Write(&buf, perfetto.Input{
		Timeline: tl, Trace: trace, PID: eventtest.PID, Name: "python", Cmdline: []string{"python", "train\xff.py"},
		Started: time.Unix(1_700_000_000, 5), StartedBoot: 900_000_000,
		Attributes: []perfetto.Attribute{{Key: "gputrace.version", Text: "1\xff"}},
	}))
	return buf.Bytes(), tl
}

// number is a number of JSON that must be whole.
func number(v any) uint64 { return uint64(v.(float64)) }

// TestPython: what Perfetto's bindings read is what happened, for random streams.
func TestPython(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := eventtest.Random(seed, 4000)
			trace := newTrace(t, s)
			out, tl := write(t, trace, &view.TimelineOptions{Lifetimes: 40, Moments: 10})
			d := decode(t, out)
			require.Equal(t, map[string]uint64{"1": 1_700_000_000_000_000_005, "4": 900_000_000, "6": 900_000_000}, d.Clocks)
			require.Equal(t, []any{"python", "python", "train\ufffd.py"}, d.Processes[fmt.Sprint(eventtest.PID)])
			require.Len(t, d.Threads, 3)
			require.Equal(t, "1\ufffd", d.Attributes["gputrace.version"])
			require.Zero(t, number(d.Attributes["gputrace.left_out_allocations"]))
			require.Equal(t, tl.Shown.Bytes, number(d.Attributes["gputrace.allocated_bytes"]))
			checkInstants(t, s, trace, d)
			checkCounters(t, s, d)
			checkDumps(t, trace, d)
			require.Greater(t, len(d.Dumps), 4*10)
			checkSlices(t, s, d, 40)
		})
	}
}

// checkInstants: each allocation is there, with its bytes and its stack, and each refusal.
func checkInstants(t *testing.T, s *eventtest.Stream, trace *view.Trace, d *decoded) {
	t.Helper()
	var allocated, weights uint64
	at := map[uint64]*event.Event{}
	for i := range s.Events {
		e := &s.Events[i]
		switch at[e.Time] = e; e.Kind {
		case event.KindAlloc:
			allocated += e.Size
		case event.KindFree:
			delete(at, e.Time)
		}
	}
	for _, x := range d.Instants {
		e := at[x.Time]
		require.NotNil(t, e, "%+v", x)
		delete(at, x.Time)
		require.EqualValues(t, e.TID, x.Values["thread"])
		require.Equal(t, e.Device.String(), x.Track[1])
		if e.Kind == event.KindOutOfMemory {
			require.Equal(t, []uint64{e.Size, e.Allocated, e.Reserved}, []uint64{x.Values["asked"], x.Values["allocated"], x.Values["reserved"]})
			continue
		}
		weights += x.Weight
		require.Equal(t, []uint64{e.Size, e.Size, e.Addr}, []uint64{x.Weight, x.Values["size"], x.Values["address"]})
		if e.Layer == event.LayerAllocator {
			require.Equal(t, []uint64{e.Requested, e.Stream}, []uint64{x.Values["requested"], x.Values["stream"]})
		}
		require.Equal(t, trace.SiteName(&heap.Block{Stack: e.Stack}), x.Name)
		if st := s.Stacks[e.Stack]; st != nil && len(st.Frames) > 0 {
			require.GreaterOrEqual(t, len(x.Stack), len(st.Frames))
			require.Contains(t, x.Stack[len(x.Stack)-1], st.Frames[len(st.Frames)-1].Func)
		} else {
			require.Equal(t, []string{x.Name}, x.Stack)
		}
	}
	require.Empty(t, at)
	require.Equal(t, allocated, weights)
}

// checkCounters: every total of an event is on the track at that time, and nothing else.
func checkCounters(t *testing.T, s *eventtest.Stream, d *decoded) {
	t.Helper()
	type key struct {
		device, name string
		time         uint64
	}
	got := map[key]uint64{}
	for _, c := range d.Counters {
		got[key{c[1].(string), c[2].(string), number(c[3])}] = number(c[4])
	}
	changes := 0
	last, used := map[string]uint64{}, map[string]uint64{}
	live := map[uint64]uint64{}
	for i := range s.Events {
		e := &s.Events[i]
		if e.Kind == event.KindOutOfMemory {
			continue
		}
		device := e.Device.String()
		switch {
		case e.Layer == event.LayerAllocator:
			if last[device] != e.Allocated {
				changes++
				require.Equal(t, e.Allocated, got[key{device, "allocated", e.Time}])
			}
			last[device] = e.Allocated
			continue
		case e.Kind == event.KindAlloc:
			live[e.Addr] = e.Size
			used[device] += e.Size
		default:
			used[device] -= live[e.Addr]
		}
		if value, ok := got[key{device, "device memory", e.Time}]; ok && e.Layer == event.LayerDevice && last[device] != 0 {
			// The stream's reserved figure is larger than its one segment: the rest is from before.
			require.Equal(t, used[device]-200<<22+1<<32, value)
		}
	}
	n := 0
	for k := range got {
		if k.name == "allocated" {
			n++
		}
	}
	require.Equal(t, changes, n)
}

// checkDumps: at each moment the profiles add up to what was in use then, and nothing in them ever becomes less.
func checkDumps(t *testing.T, trace *view.Trace, d *decoded) {
	t.Helper()
	live := map[uint64]int64{}
	before := map[string][]uint64{}
	sequences := map[string]int{}
	for _, dump := range d.Dumps {
		if n, ok := sequences[dump.Heap]; ok {
			require.Equal(t, n, dump.Sequence, "a sequence for each heap")
		}
		sequences[dump.Heap] = dump.Sequence
		for _, x := range dump.Samples {
			values := []uint64{number(x[1]), number(x[2]), number(x[3]), number(x[4])}
			key := fmt.Sprint(dump.Heap, x[0])
			for i, v := range before[key] {
				require.GreaterOrEqual(t, values[i], v)
			}
			before[key] = values
			live[dump.Time] += int64(values[0]) - int64(values[1])
		}
	}
	require.NotEmpty(t, live)
	for time, bytes := range live {
		v, err := trace.At(time)
		require.NoError(t, err)
		require.EqualValues(t, v.Total(), bytes, "at %d", time)
	}
	used := slices.Sorted(maps.Values(sequences))
	require.Len(t, slices.Compact(used), len(sequences), "no sequence has two heaps")
}

// checkSlices: the largest blocks of each layer are there from birth to end.
func checkSlices(t *testing.T, s *eventtest.Stream, d *decoded, n int) {
	t.Helper()
	type life struct{ born, end, size, addr uint64 }
	lifetimes := map[event.Layer][]*life{}
	open := map[uint64]*life{}
	for i := range s.Events {
		switch e := &s.Events[i]; e.Kind {
		case event.KindAlloc:
			l := &life{e.Time, 0, e.Size, e.Addr}
			open[e.Addr], lifetimes[e.Layer] = l, append(lifetimes[e.Layer], l)
		case event.KindFree:
			if open[e.Addr] != nil {
				open[e.Addr].end = e.Time
			}
		}
	}
	var want, got []life
	for _, l := range lifetimes {
		slices.SortStableFunc(l, func(x, y *life) int { return int(y.size) - int(x.size) })
		for _, x := range l[:min(n, len(l))] {
			want = append(want, *x)
		}
	}
	for _, x := range d.Slices {
		got = append(got, life{x.Time, x.End, x.Values["size"], x.Values["address"]})
	}
	require.ElementsMatch(t, want, got)
}

// disturbed is a stream of which events are lost, repeated, late or something else.
func disturbed(seed uint64) *eventtest.Stream {
	s := eventtest.Random(seed, 3000)
	rng := rand.New(rand.NewPCG(seed, 7))
	var out []event.Event
	for _, e := range s.Events {
		switch n := rng.IntN(40); n {
		case 0, 1: // lost
			continue
		case 2:
			out = append(out, e)
		case 3:
			e.Time -= min(e.Time, rng.Uint64N(100_000))
		case 4:
			e.Size, e.Requested = event.Unknown, event.Unknown
		case 5:
			e.Kind = event.Kind(rng.IntN(12))
		case 6:
			e.Layer, e.Object = event.Layer(rng.IntN(8)), event.Object(rng.IntN(7))
		case 7:
			e.Allocated, e.Reserved = event.Unknown, rng.Uint64()>>rng.IntN(64)
		case 8:
			e.Device.Index, e.TID, e.Addr = -1, 0, rng.Uint64()
		}
		out = append(out, e)
	}
	s.Events = out
	return s
}

// TestDisturbed: whatever the events say, the trace is one that Perfetto reads, and its profiles add up to the views.
func TestDisturbed(t *testing.T) {
	for seed := range uint64(8) {
		trace := newTrace(t, disturbed(seed))
		out, tl := write(t, trace, &view.TimelineOptions{Lifetimes: 100, Moments: 5})
		d := decode(t, out)
		checkDumps(t, trace, d)
		weights := uint64(0)
		for _, x := range d.Instants {
			weights += x.Weight
		}
		require.Equal(t, tl.Shown.Bytes, weights)
		made, sites := heap.Count{}, heap.Count{}
		made.Objects, made.Bytes, made.Unsized = tl.Shown.Objects, tl.Shown.Bytes, tl.Shown.Unsized
		for i := range trace.End().Sites {
			if s := &trace.End().Sites[i]; s.Layer >= event.LayerAllocator && s.Layer <= event.LayerHost {
				sites.Objects, sites.Bytes, sites.Unsized = sites.Objects+s.Alloc.Objects, sites.Bytes+s.Alloc.Bytes, sites.Unsized+s.Alloc.Unsized
			}
		}
		require.Equal(t, sites, made, "every allocation that the heap counted")
	}
}

// TestMinSize: what is smaller is left out, and said to be; the totals stay near.
func TestMinSize(t *testing.T) {
	s := eventtest.Random(7, 4000)
	out, tl := write(t, newTrace(t, s), &view.TimelineOptions{MinSize: 1 << 14, Moments: 3})
	d := decode(t, out)
	var left, shown uint64
	for i := range s.Events {
		if e := &s.Events[i]; e.Kind == event.KindAlloc {
			if e.Size < 1<<14 {
				left += e.Size
			} else {
				shown += e.Size
			}
		}
	}
	require.Equal(t, []uint64{shown, left}, []uint64{tl.Shown.Bytes, tl.Left.Bytes})
	require.Equal(t, left, number(d.Attributes["gputrace.left_out_bytes"]))
	weights, refused := uint64(0), 0
	for _, x := range d.Instants {
		if weights += x.Weight; x.Name == "out of memory" {
			refused++
			continue
		}
		require.Contains(t, x.Track[2], "16384 bytes or more")
	}
	require.Equal(t, shown, weights)
	require.NotZero(t, refused)
	require.Empty(t, d.Slices)
}

// TestMaxEvents: where allocations end for want of room, the trace says so.
func TestMaxEvents(t *testing.T) {
	s := &eventtest.Stream{}
	for i := range uint64(100) {
		s.Events = append(s.Events, event.Event{Time: 10 + i, PID: 1, Kind: event.KindAlloc, Layer: event.LayerAllocator, Addr: 1<<20 + i<<10,
			Size:      512,
			Requested: event.Unknown, Stream: event.Unknown, Allocated: 512 * (1 + i), Reserved: 1 << 20})
	}
	out, tl := write(t, newTrace(t, s), &view.TimelineOptions{MaxEvents: 40})
	d := decode(t, out)
	require.Len(t, d.Instants, 21)
	last := d.Instants[20]
	require.Contains(t, last.Name, "left out")
	require.Equal(t, tl.Until, last.Time)
	require.Equal(t, tl.Left.Bytes, number(d.Attributes["gputrace.left_out_bytes"]))
	require.Equal(t, tl.Until, number(d.Attributes["gputrace.until_boottime_ns"]))
}

// TestHostileNames: what the watched program calls its files and functions is kept as far as the format can.
func TestHostileNames(t *testing.T) {
	s := eventtest.Random(1, 300)
	s.Stacks[1] = &event.Stack{ID: 1, Frames: []event.Frame{
		{Kind: event.FrameNative, Func: "f\xff\x00<script>", Module: &event.Module{Path: "/\xfe;/[kernel]", BuildID: "no hex"}, Offset: 1 << 63},
		{Kind: event.FrameNative, Addr: 1<<64 - 1},
		{Kind: event.FramePython, File: "/a\n\xff.py", Line: -5},
		{Kind: event.FramePython, Func: strings.Repeat("x", 1<<16), File: "/b.py", Line: 1 << 40},
	}}
	out, _ := write(t, newTrace(t, s), &view.TimelineOptions{Moments: 2, Lifetimes: 100})
	d := decode(t, out)
	i := slices.IndexFunc(d.Instants, func(x occurrence) bool {
		return len(x.Stack) > 3 &&
			strings.Contains(x.Stack[2], "0xffffffffffffffff")
	})
	require.NotEqual(t, -1, i)
	require.Equal(t, []string{"f\ufffd\x00<script>", "0xffffffffffffffff", "[no name] (a\n\ufffd.py)"}, d.Instants[i].Stack[1:4])
}

// TestRange: nothing outside of it is written, and the totals begin with what they were.
func TestRange(t *testing.T) {
	s := eventtest.Random(8, 4000)
	from, to := s.Events[1000].Time, s.Events[2000].Time
	trace := newTrace(t, s)
	out, tl := write(t, trace, &view.TimelineOptions{From: from, To: to, Moments: 4, Lifetimes: 10})
	d := decode(t, out)
	require.Equal(t, []uint64{from, to}, []uint64{tl.From, tl.To})
	var times []uint64
	for _, x := range slices.Concat(d.Instants, d.Slices) {
		times = append(times, x.Time, max(x.Time, x.End))
	}
	for _, x := range d.Dumps {
		times = append(times, x.Time)
	}
	first := map[any]uint64{}
	for _, c := range d.Counters {
		times = append(times, number(c[3]))
		if _, ok := first[c[1]]; !ok && c[2] == "allocated" {
			first[c[1]] = number(c[3])
		}
	}
	require.Equal(t, map[any]uint64{"cuda:0": from, "cuda:1": from}, first)
	require.LessOrEqual(t, from, slices.Min(times))
	require.GreaterOrEqual(t, to, slices.Max(times))
	checkDumps(t, trace, d)
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestWriteError(t *testing.T) {
	trace := newTrace(t, eventtest.Random(1, 300))
	tl, err := trace.Timeline(nil)
	require.NoError(t, err)
	require.ErrorIs(t, perfetto.Write(fullDisk{}, perfetto.Input{Timeline: tl, Trace: trace}), errFull)
}

// BenchmarkWrite measures the time and the bytes of an event.
func BenchmarkWrite(b *testing.B) {
	const events = 200_000
	trace := newTrace(b, eventtest.Random(1, events))
	tl, err := trace.Timeline(&view.TimelineOptions{Lifetimes: 1000, Moments: 24})
	require.NoError(b, err)
	for b.Loop() {
		var n counter
		require.NoError(b, perfetto.Write(&n, perfetto.Input{Timeline: tl, Trace: trace}))
		b.ReportMetric(float64(n)/events, "B/event")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
}

// counter counts what is written.
type counter int

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return io.Discard.Write(b)
}
