// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chromeTrace is what torch.profiler and gputrace write.
type chromeTrace struct {
	Base   int64         `json:"baseTimeNanoseconds"`
	Events []chromeEvent `json:"traceEvents"`
}

type chromeEvent struct {
	Phase string  `json:"ph"`
	Name  string  `json:"name"`
	Cat   string  `json:"cat"`
	TID   any     `json:"tid"` // Kineto has names, too
	Time  float64 `json:"ts"`  // microseconds since the base
	Dur   float64 `json:"dur"` // microseconds
	Args  struct {
		Index uint64 `json:"Ev Idx"` // Kineto's number of an event
		// Kineto's [memory].
		Addr, Bytes int64
		DeviceType  int    `json:"Device Type"`
		Allocated   uint64 `json:"Total Allocated"`
		// gputrace's.
		Address uint64 `json:"address"`
		Size    uint64 `json:"bytes"`
	} `json:"args"`
}

func readChrome(t *testing.T, path string) chromeTrace {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var out chromeTrace
	require.NoError(t, json.Unmarshal(b, &out))
	return out
}

// TestTimelineBesideProfiler: torch.profiler's trace of the same run has the same allocations, on the same threads, at the same
// time, and the same totals in the same order. The other formats are of the same end.
func TestTimelineBesideProfiler(t *testing.T) {
	p := startTraining(t, "mlp.py", "--steps", "30", "--profile", "DIR/kineto.json").ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.done(t)
	c.interrupt(t)
	trace, folder := filepath.Join(c.out(), "trace.gputrace"), t.TempDir()
	ours, theirs := filepath.Join(folder, "ours.json"), filepath.Join(p.dir, "kineto.json")
	for _, args := range [][]string{{"-f", "chrome", "-o", ours}, {"-f", "folded,speedscope,perfetto", "--with", theirs, "-o", folder}} {
		out, err := exec.Command(env.binary, append([]string{"export", trace}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotContains(t, string(out), "warning")
	}
	kineto, merged := readChrome(t, theirs), readPerfetto(t, filepath.Join(folder, "timeline.pftrace.gz"))
	checkMerged(t, kineto, merged)
	compareWithKineto(t, kineto, readChrome(t, ours))

	accounts := replayTrace(t, trace, nil).end.Totals().Accounts
	require.Len(t, accounts, 1)
	require.Equal(t, accounts[0].Allocated, foldedTorch(t, filepath.Join(folder, "memory.folded")))
	require.Equal(t, accounts[0].Allocated, perfettoTorch(merged))
	require.FileExists(t, filepath.Join(folder, "memory.speedscope.json"))
}

// allocation is what both traces have of one.
type allocation struct {
	address, size uint64
	tid           float64
}

func compareWithKineto(t *testing.T, kineto, ours chromeTrace) {
	t.Helper()
	require.Equal(t, kineto.Base, ours.Base)
	made := map[allocation][]float64{}
	var totals, want []uint64
	for _, e := range ours.Events {
		switch {
		case e.Phase == "i" && strings.HasPrefix(e.Cat, "gputrace torch"):
			key := allocation{e.Args.Address, e.Args.Size, e.TID.(float64)}
			made[key] = append(made[key], e.Time)
		case e.Phase == "C" && e.Name == "cuda:0 allocated":
			totals = append(totals, e.Args.Size)
		}
	}
	memory := slices.DeleteFunc(slices.Clone(kineto.Events), func(e chromeEvent) bool {
		return e.Name != "[memory]" || e.Args.DeviceType != 1
	})
	slices.SortStableFunc(memory, func(x, y chromeEvent) int { return int(math.Copysign(1, x.Time-y.Time)) })
	var apart []float64 // microseconds
	for _, e := range memory {
		want = append(want, e.Args.Allocated)
		if e.Args.Bytes < 0 {
			continue
		}
		times := made[allocation{uint64(e.Args.Addr), uint64(e.Args.Bytes), e.TID.(float64)}]
		require.NotEmpty(t, times, "%+v", e)
		nearest := math.Inf(1)
		for _, at := range times {
			nearest = min(nearest, math.Abs(at-e.Time))
		}
		apart = append(apart, nearest)
	}
	require.Greater(t, len(apart), 500)
	slices.Sort(apart)
	t.Logf("%d allocations; apart by %.1f us, at most %.1f", len(apart), apart[len(apart)/2], apart[len(apart)-1])
	require.Less(t, apart[len(apart)/2], 100.0)
	// Both tell of every change; the profiler was on for a part of the time.
	require.Contains(t, texts(totals), texts(want))
}

// checkMerged checks the profiler's trace and gputrace's in one Perfetto file: each slice of the profiler has its thread and length, and
// each allocation is on the track of its thread, inside the operator in which the profiler has it.
func checkMerged(t *testing.T, kineto chromeTrace, merged *perfettoTrace) {
	t.Helper()
	byIndex := map[uint64]*perfettoEvent{} // by Kineto's number
	ranges := map[any][]*perfettoEvent{}   // record_function by thread
	for i := range merged.Slices {
		x := &merged.Slices[i]
		if n, ok := x.Values["Ev Idx"]; ok {
			require.NotContains(t, byIndex, n)
			byIndex[n] = x
		}
		if len(x.Category) == 1 && x.Category[0] == "user_annotation" {
			ranges[x.Track[1]] = append(ranges[x.Track[1]], x)
		}
	}
	operators := map[float64][]chromeEvent{} // by thread
	made := map[allocation][]*perfettoEvent{}
	for _, e := range kineto.Events {
		tid, ok := e.TID.(float64)
		if e.Phase != "X" || !ok {
			continue
		}
		x := byIndex[e.Args.Index]
		require.NotNil(t, x, "%+v", e)
		require.Equal(t, []any{e.Name, fmt.Sprintf("thread %.0f", tid)}, []any{x.Name, x.Track[1]})
		require.InDelta(t, e.Dur*1000, x.End-x.Time, 1)
		operators[tid] = append(operators[tid], e)
	}
	require.Greater(t, len(byIndex), 1000)
	require.NotEmpty(t, operators)
	for _, e := range kineto.Events {
		if e.Name != "[memory]" || e.Args.DeviceType != 1 || e.Args.Bytes < 0 {
			continue
		}
		key := allocation{uint64(e.Args.Addr), uint64(e.Args.Bytes), e.TID.(float64)}
		if op := innermost(operators[key.tid], e.Time); op != nil {
			made[key] = append(made[key], byIndex[op.Args.Index])
		}
	}
	inside, outside, inRange := 0, 0, 0
	for _, x := range merged.Instants {
		var tid float64
		_, isAllocation := x.Values["address"]
		if n, _ := fmt.Sscanf(x.Track[1].(string), "thread %g", &tid); n != 1 || !isAllocation {
			continue
		}
		in := func(s *perfettoEvent) bool { return s.Time <= x.Time && x.Time <= s.End }
		operators := made[allocation{x.Values["address"], x.Values["size"], tid}]
		switch {
		case len(operators) == 0: // of the driver
		case slices.ContainsFunc(operators, in):
			inside++
		default:
			outside++
		}
		if slices.ContainsFunc(ranges[x.Track[1]], in) {
			inRange++
		}
	}
	t.Logf("%d allocations inside their operator, %d not; %d in a range", inside, outside, inRange)
	require.Greater(t, inside, 500)
	require.LessOrEqual(t, outside, inside/100, "the clocks differ by 1 us")
	require.NotZero(t, inRange)
}

// innermost is the event that began last of those that contain a moment.
func innermost(events []chromeEvent, time float64) *chromeEvent {
	var best *chromeEvent
	for i := range events {
		if e := &events[i]; e.Time <= time && time <= e.Time+e.Dur && (best == nil || e.Time > best.Time) {
			best = e
		}
	}
	return best
}

// texts is numbers as a text in which a part is found as such.
func texts(numbers []uint64) string {
	var b strings.Builder
	for _, n := range numbers {
		b.WriteString(" " + strconv.FormatUint(n, 10) + ",")
	}
	return b.String()
}

// foldedTorch adds up a file of folded stacks, but for the driver's calls.
func foldedTorch(t *testing.T, path string) uint64 {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := uint64(0)
	for line := range strings.Lines(string(b)) {
		i := strings.LastIndexByte(line, ' ')
		n, err := strconv.ParseUint(strings.TrimSpace(line[i:]), 10, 64)
		require.NoError(t, err)
		if !strings.Contains(line, "cuMem") {
			sum += n
		}
	}
	return sum
}

// perfettoTrace is a Perfetto file as Perfetto's own bindings read it.
type perfettoTrace struct {
	Dumps []struct {
		Heap    string   `json:"heap"`
		Samples [][5]any `json:"samples"` // stack, bytes allocated, of that freed
	} `json:"dumps"`
	Instants, Slices []perfettoEvent
}

// perfettoEvent is an instant or a slice.
type perfettoEvent struct {
	Track     []any // process, thread or device, row
	Name      string
	Time, End uint64 // CLOCK_BOOTTIME nanoseconds
	Category  []string
	Values    map[string]uint64
}

func readPerfetto(t *testing.T, path string) *perfettoTrace {
	t.Helper()
	python, err := exec.Command(filepath.Join(env.testdata, "setup.sh"), "--print", "python").Output()
	require.NoError(t, err)
	run := func(args ...string) ([]byte, error) {
		return exec.Command(strings.TrimSpace(string(python)), args...).Output()
	}
	if _, err := run("-c", "import perfetto, google.protobuf"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("perfetto is not there: %v", err)
		}
		t.Skipf("perfetto is not there (testdata/requirements.txt): %v", err)
	}
	out, err := run(filepath.Join("..", "export", "perfetto", "testdata", "decode.py"), path)
	require.NoError(t, err)
	var d perfettoTrace
	require.NoError(t, json.Unmarshal(out, &d))
	return &d
}

// perfettoTorch is what the last heap profile of the caching allocator adds up to.
func perfettoTorch(d *perfettoTrace) uint64 {
	sum := 0.0
	for _, dump := range d.Dumps {
		if dump.Heap != "cuda:0 torch blocks" {
			continue
		}
		sum = 0
		for _, s := range dump.Samples {
			sum += s[1].(float64) - s[2].(float64)
		}
	}
	return uint64(sum)
}
