// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/heap"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	second = uint64(time.Second)
	start  = 1000 * second
	gib    = 1 << 30
	mib    = 1 << 20
)

var (
	cuda0 = event.Device{Type: event.DeviceCUDA, Index: 0}
	cuda1 = event.Device{Type: event.DeviceCUDA, Index: 1}
	odd   = event.Device{Type: event.DeviceCUDA, Index: -1}
)

func python(id event.StackID, file string, line int, function string) *event.Stack {
	return &event.Stack{ID: id, Frames: []event.Frame{{Kind: event.FramePython, File: file, Line: line, Func: function}}}
}

var knownStacks = map[event.StackID]*event.Stack{
	1: python(1, "/home/a/model.py", 88, "Block.forward"),
	2: python(2, "/home/a/train.py", 41, "main"),
	3: python(3, "/home/a/"+strings.Repeat("deep_", 10)+"name.py", 12345, strings.Repeat("Outer.<locals>.", 4)+"f\x1b[2J"),
	4: {ID: 4, Frames: []event.Frame{{Kind: event.FrameNative, Func: "at::detail::empty_generic"}}},
	5: {ID: 5, Status: event.StatusNoRow, Frames: []event.Frame{{Kind: event.FrameNative, Func: "ncclCommInitRank"}}},
}

func source(path string) io.Reader {
	text := map[string]string{
		"model.py": strings.Repeat("\n", 87) + "    x = x + self.mlp(self.ln(x)) + self.some_other_long_thing(x)\n",
		"train.py": strings.Repeat("\n", 40) + "    losses.append(loss)\n",
	}[filepath.Base(path)]
	if text == "" {
		return nil
	}
	return strings.NewReader(text)
}

func viewOf(s *heap.Snapshot) *view.View {
	return view.New(s, func(id event.StackID) *event.Stack { return knownStacks[id] }, &view.Options{Source: source})
}

func site(layer event.Layer, device event.Device, stack event.StackID, objects, bytes uint64) heap.Site {
	n := heap.Count{Objects: objects, Bytes: bytes}
	peak := heap.Count{Objects: 2 * objects, Bytes: bytes + bytes/8}
	return heap.Site{Layer: layer, Device: device, PID: 48211, Stack: stack, Alloc: n, Inuse: n, Peak: peak}
}

// training is one process on one device without losses: the ordinary case.
func training() *heap.Snapshot {
	segment := site(event.LayerDevice, cuda0, 1, 12, 6*gib)
	segment.Segment = true
	return &heap.Snapshot{
		Totals: heap.Totals{
			First: start + second/2, Time: start + 48200*1000*1000, Events: 121215,
			Accounts: []heap.Account{{
				PID: 48211, Device: cuda0, Allocated: 27*gib + 800*mib, Reserved: 33*gib + 512*mib,
				Live:   heap.Count{Objects: 2300, Bytes: 6*gib + 400*mib},
				Before: 21*gib + 400*mib, Baseline: 21*gib + 400*mib, Peak: 31*gib + 200*mib, PeakTime: start + 12400*1000*1000,
				PeakBefore: 21*gib + 400*mib, PeakReserved: 33*gib + 512*mib,
				Allocs: 61190, Frees: 60009,
			}},
			Drivers: []heap.DriverAccount{{PID: 48211, Layer: event.LayerDevice, Device: cuda0, Allocs: 14, Frees: 2}},
		},
		Sites: []heap.Site{
			site(event.LayerAllocator, cuda0, 1, 96, 3*gib),
			site(event.LayerAllocator, cuda0, 2, 2204, 1228*1024),
			site(event.LayerAllocator, cuda0, 3, 4, 1*mib),
			site(event.LayerAllocator, cuda0, 4, 12, 3*gib),
			site(event.LayerDevice, cuda0, 5, 9, 921*mib),
			segment,
		},
	}
}

func balanced() []figures.Hits {
	return []figures.Hits{
		{Probe: "torch report", Hits: 121199, Emitted: 121199, Dropped: map[string]uint64{"ring full": 0}},
		{Probe: "cuMemAlloc_v2", Hits: 28, Emitted: 14, Quiet: map[string]uint64{"call entered": 14}},
		{Probe: "cuMemFree_v2", Hits: 2, Emitted: 2},
	}
}

// broken has everything that can go wrong, two devices, and a device layer whose ordinal is not known.
func broken() *heap.Snapshot {
	s := training()
	a := &s.Accounts[0]
	a.Lost, a.Gaps, a.GapBytes, a.LostFrees, a.OOMs, a.PeakTime = -512, 7, 4096, 3, 1, 0
	a.Before += 512
	s.Accounts = append(s.Accounts, heap.Account{PID: 48211, Device: cuda1, Allocated: event.Unknown, Reserved: event.Unknown,
		Before: event.Unknown, Baseline: event.Unknown, Live: heap.Count{Objects: 1, Bytes: 2048}, Peak: 4096, PeakTime: start + second,
		Allocs: 1})
	s.Drivers[0].FailedFrees, s.Drivers[0].UnknownFrees = 1, 2
	s.Sites = append(s.Sites, site(event.LayerAllocator, cuda1, 0, 1, 2048), site(event.LayerDevice, odd, 77, 1, 300))
	s.Ignored, s.Failures, s.GapCount = 4, 5, 7
	for i := range uint64(6) {
		s.Gaps = append(s.Gaps, heap.Gap{Time: start + i*second, PID: 48211, Device: cuda0, Bytes: 512 - int64(i)*1024})
	}
	return s
}

func unbalanced() []figures.Hits {
	hits := balanced()
	hits[0].Dropped = map[string]uint64{"ring full": 10, "no scratch": 2, "too deep": 0}
	hits[0].Hits += 12
	hits[1].Hits += 3
	hits[2].Hits--
	hits[2].Emitted++
	return hits
}

var inputs = map[string]Input{
	"training":  {View: viewOf(training()), Hits: balanced(), Start: start, Duration: 48200 * time.Millisecond},
	"recording": {View: viewOf(training()), Top: 1},
	"losses": {
		View: viewOf(broken()), Hits: unbalanced(), Start: start, Duration: 48200 * time.Millisecond,
		RawStacks: &figures.RawStacks{Sent: 2000, Unwound: 1990, Guessed: 7, Partial: 3, OverRate: 12270, NoRoom: 1},
	},
	"member":  {View: viewOf(training()), Hits: unbalanced(), Lost: new(uint64(3)), Start: start, Duration: 48200 * time.Millisecond},
	"nothing": {View: viewOf(heap.New().Snapshot()), Hits: []figures.Hits{{Probe: "torch report"}}, Duration: time.Second},
}

func golden(t *testing.T, name, got string) {
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// goldens compares what is printed on screens of several widths, one below the other, with a golden file. No line is longer than its
// screen, but where it is nothing but a file and line.
func goldens(t *testing.T, name string, print func(w io.Writer, width int) error) {
	t.Helper()
	var all strings.Builder
	for _, width := range []int{60, 80, 120, 200} {
		var out strings.Builder
		require.NoError(t, print(&out, width))
		for _, c := range out.String() {
			require.True(t, c == '\n' || c >= ' ' && c != 0x7f, "control character %q", c)
		}
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSpace(line)
			require.True(t, utf8.RuneCountInString(line) <= width || isPlace.MatchString(line), "%d columns: %s", width, line)
		}
		fmt.Fprintf(&all, "===== %d columns\n%s", width, out.String())
	}
	golden(t, name, all.String())
}

var isPlace = regexp.MustCompile(`^\S+:\d+$`)

func TestSummary(t *testing.T) {
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			goldens(t, "summary."+name, func(w io.Writer, width int) error {
				in.Width = width
				return Summary(w, in)
			})
		})
	}
}

// TestUnknownWidth: a screen of which nothing is known has 80 columns.
func TestUnknownWidth(t *testing.T) {
	in := inputs["training"]
	var unknown, known bytes.Buffer
	require.NoError(t, Summary(&unknown, in))
	in.Width = 80
	require.NoError(t, Summary(&known, in))
	require.Equal(t, known.String(), unknown.String())
}

func TestChecks(t *testing.T) {
	for want, c := range map[string]*figures.Checks{
		"\nchecks   live set = allocator state (checked 3 times, 0 differences)\n": {Made: 3},
		"\nchecks   live set differed from the allocator state (checked 1 time, 1 difference)\n": {Made: 1,
			Differences: 1},
		"\nchecks   live set not compared (checked 0 times, 0 differences; 2 checks not possible)\n": {Failed: 2},
		"\nchecks   live set differed from the allocator state (checked 5 times, 2 differences; 1 check not possible)\n": {Made: 5,
			Differences: 2, Failed: 1},
	} {
		in := inputs["training"]
		in.Checks, in.Width = c, 120
		var buf bytes.Buffer
		require.NoError(t, Summary(&buf, in))
		require.Contains(t, buf.String(), want)
	}
}

func TestComments(t *testing.T) {
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			golden(t, "comments."+name, strings.Join(Comments(in), "\n")+"\n")
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestSummaryError(t *testing.T) {
	err := Summary(fullDisk{}, inputs["training"])
	require.ErrorIs(t, err, errFull)
}

func TestLiveLine(t *testing.T) {
	now := Live{Now: time.Date(2026, 11, 21, 14, 2, 31, 0, time.UTC), Rate: 312.4}
	one, both := training().Totals, broken().Totals
	one.Drivers[0].Live.Bytes, one.Drivers[0].Segments.Bytes = 7*gib, 6*gib
	for want, b := range map[string]heap.Totals{
		"14:02:31  torch 27.8 GiB (peak 31.2 GiB)  reserved 33.5 GiB  other device 1.0 GiB  312 blocks/s  lost 0 events": one,
		"14:02:31  torch unknown  reserved unknown  other device 0 B  312 blocks/s  lost 0 events":                       both,
	} {
		require.Equal(t, want, LiveLine(&b, now))
	}
	one.Accounts, now.NoTorch = nil, true
	require.Equal(t, "14:02:31  device memory 1.0 GiB  lost 0 events", LiveLine(&one, now))
	require.Contains(t, LiveLine(&both, now), "torch unknown", "there is an account")
	empty := heap.New().Totals()
	later := Input{View: viewOf(training()), Hits: unbalanced(), LostAfter: 2}
	all := Lost(later.Hits)
	require.Greater(t, all, uint64(2))
	require.Equal(t, all-2, later.EventsLost())
	later.Lost = new(uint64(1))
	require.Zero(t, later.EventsLost())
	require.Contains(t, LiveLine(&empty, Live{Lost: 1}), "torch unknown  reserved unknown  other device 0 B  0 blocks/s  lost 1 event")
}

func TestOffset(t *testing.T) {
	const at = 10 * uint64(time.Second)
	for later, want := range map[int64]string{0: "+0.0 s", -40e6: "+0.0 s", 40e6: "+0.0 s", -60e6: "-0.1 s", 1.25e9: "+1.2 s",
		-10e9: "-10.0 s"} {
		require.Equal(t, want, Offset(at+uint64(later), at))
	}
	require.Equal(t, "+0.000 s", exactOffset(at-1000, at))
	require.Equal(t, "-0.002 s", exactOffset(at-2e6, at))
}

func TestBytesText(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1.0 KiB", 1075: "1.0 KiB", 1126: "1.1 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB",
		1023 << 20: "1.0 GiB", 1014 << 20: "1.0 GiB", 999 << 20: "999.0 MiB", 1023948 << 10: "999.9 MiB", 1023949 << 10: "1.0 GiB",
		1<<30 - 1: "1.0 GiB", 1 << 30: "1.0 GiB", 31<<30 + 1<<29: "31.5 GiB", math.MaxUint64 - 1: "16.0 EiB",
		event.Unknown: "unknown",
	} {
		require.Equal(t, want, Bytes(n), n)
	}
}

func TestSignedText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "+0 B", 512: "+512 B", -1: "-1 B", -2048: "-2.0 KiB", math.MinInt64: "-8.0 EiB", math.MaxInt64: "+8.0 EiB",
	} {
		require.Equal(t, want, signedText(n), n)
	}
}

func TestCountText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 61204: "61,204", 1234567: "1,234,567",
		math.MaxUint64: "18,446,744,073,709,551,615"} {
		require.Equal(t, want, countText(n))
	}
}

// TestDuration: what takes time is never 0, and a unit is changed before its figure is rounded to the next one.
func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 1: "1 ns", 12 * time.Microsecond: "12 µs", 999 * time.Microsecond: "999 µs", 999500: "1.0 ms",
		4310 * time.Microsecond: "4.3 ms", 99949 * time.Microsecond: "99.9 ms",
		100 * time.Millisecond: "100 ms", 999 * time.Millisecond: "999 ms", 999500 * time.Microsecond: "1.0 s",
		48200 * time.Millisecond: "48.2 s", -time.Second: "-1.0 s",
	} {
		require.Equal(t, want, Duration(d), int64(d))
	}
}

func TestShare(t *testing.T) {
	for part, want := range map[float64]string{
		0: "0 %", 1e-9: "<1 %", 0.0099: "<1 %", 0.01: "1 %", 0.125: "12 %", 0.994: "99 %", 0.996: ">99 %", 1: "100 %", 1.5: "150 %",
		-0.001: ">-1 %", -0.5: "-50 %",
	} {
		require.Equal(t, want, Share(part), part)
	}
	require.Equal(t, "unknown", Share(math.NaN()))
}
