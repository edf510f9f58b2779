// SPDX-License-Identifier: Apache-2.0

package perfetto_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/kineto"
	"github.com/gputrace/gputrace/export/perfetto"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// A moment on both clocks.
const (
	startedUnix = 1_700_000_000_000_000_005
	startedBoot = 900_000_000
)

// micros is a moment of CLOCK_BOOTTIME as a trace of torch.profiler has it, microseconds since 1970.
func micros(boot uint64) string {
	unix := int64(boot) - startedBoot + startedUnix
	return fmt.Sprintf("%d.%03d", unix/1000, unix%1000)
}

// profiled is a random trace of torch.profiler over a range of time: slices that nest and that overlap on threads, kernels with flows, a
// counter.
func profiled(rng *rand.Rand, from, to uint64) string {
	events := []string{
		`{"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}}`,
		`{"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}}`,
		`{"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}}`,
		fmt.Sprintf(`{"ph": "M", "name": "thread_name", "pid": %d, "tid": 101, "args": {"name": "thread 101 (python)"}}`, eventtest.PID),
		fmt.Sprintf(`{"ph": "i", "s": "t", "name": "[memory]", "pid": %d, "tid": 101, "ts": %s, "args": {"Bytes": -512, "ok": true}}`,
			eventtest.PID, micros(from)),
		fmt.Sprintf(`{"ph": "C", "name": "power", "pid": "GPU 0 Counters", "tid": 0, "ts": %s, "args": {"W": 71.5}}`, micros(to)),
	}
	slice := func(pid, tid int, category, name string, begin, length uint64) {
		const format = `{"ph": "X", "cat": %q, "name": %q, "pid": %d, "tid": %d, "ts": %s, "dur": %d.%03d, "args": %s}`
		args := fmt.Sprintf(`{"External id": %d, "Input Dims": [[%d]]}`, len(events), length)
		events = append(events, fmt.Sprintf(format, category, name, pid, tid, micros(begin), length/1000, length%1000, args))
	}
	flow := func(kind string, id, pid, tid int, at uint64) {
		const format = `{"ph": %q, "cat": "ac2g", "name": "ac2g", "id": %d, "pid": %d, "tid": %d, "ts": %s, "bp": "e"}`
		events = append(events, fmt.Sprintf(format, kind, id, pid, tid, micros(at)))
	}
	for i := range 150 {
		at := from + rng.Uint64N(to-from)
		length := rng.Uint64N((to - from) / 20)
		slice(eventtest.PID, 100+rng.IntN(3), "cpu_op", fmt.Sprintf("aten::op%d", i%7), at, min(length, to-at))
		if i%3 == 0 {
			flow("s", i, eventtest.PID, 0, at) // no slice is there
		}
	}
	for i, at := 0, from; at+5000 < to; i, at = i+1, at+(to-from)/40 {
		slice(eventtest.PID, 99, "cuda_runtime", "cudaGraphLaunch", at, 2000)
		flow("s", i, eventtest.PID, 99, at)
		for range 2 {
			at += 2000
			slice(0, 7, "kernel", "kernel<\"a\\b\">", at, 1000)
			flow("f", i, 0, 7, at)
		}
	}
	return `{"traceEvents": [` + strings.Join(events, ",") + `]}`
}

// chromeEvent is an event as another reader of the trace sees it.
type chromeEvent struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name"`
	Category string         `json:"cat"`
	PID      any            `json:"pid"`
	TID      any            `json:"tid"`
	Time     json.Number    `json:"ts"`
	Duration json.Number    `json:"dur"`
	ID       int            `json:"id"`
	Args     map[string]any `json:"args"`
}

// nanoseconds is a time of a trace, which has three digits after the point.
func nanoseconds(t testing.TB, n json.Number) int64 {
	t.Helper()
	v, err := json.Number(strings.Replace(string(n), ".", "", 1)).Int64()
	require.NoError(t, err)
	return v
}

func bootOf(t testing.TB, n json.Number) uint64 {
	t.Helper()
	return uint64(nanoseconds(t, n) - startedUnix + startedBoot)
}

func writeProfiled(t testing.TB, s *eventtest.Stream, in perfetto.Input, texts ...string) *decoded {
	t.Helper()
	for _, text := range texts {
		k, err := kineto.Read(strings.NewReader(text))
		require.NoError(t, err)
		in.Profiles = append(in.Profiles, k)
	}
	trace := newTrace(t, s)
	tl, err := trace.Timeline(&view.TimelineOptions{Lifetimes: 10, Moments: 2})
	require.NoError(t, err)
	in.Timeline, in.Trace, in.PID, in.Name = tl, trace, eventtest.PID, "python"
	in.Started, in.StartedBoot = time.Unix(0, startedUnix), startedBoot
	var buf bytes.Buffer
	require.NoError(t, perfetto.Write(&buf, in))
	return decode(t, buf.Bytes())
}

// shown is a slice of torch.profiler.
type shown struct {
	place, name, category string
	from, to              uint64
	external              uint64
	dims                  string
}

// TestProfiles: Perfetto's bindings read every slice of torch.profiler on the track of its thread or stream, from its beginning to its end,
// with its arguments and flows; slices of one track nest.
func TestProfiles(t *testing.T) {
	s := eventtest.Random(3, 2000)
	from, to := s.Events[0].Time, s.Events[len(s.Events)-1].Time
	text := profiled(rand.New(rand.NewPCG(1, 1)), from, to)
	d := writeProfiled(t, s, perfetto.Input{}, text)
	var file struct {
		Events []chromeEvent `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal([]byte(text), &file))
	var want, got []shown
	for _, e := range file.Events {
		if e.Phase != "X" {
			continue
		}
		place := fmt.Sprintf("%v thread %v", e.PID, e.TID)
		if e.PID == 0.0 {
			place = "0 GPU 0 (python)"
		}
		begin := bootOf(t, e.Time)
		dims, err := json.Marshal(e.Args["Input Dims"])
		require.NoError(t, err)
		end := begin + uint64(nanoseconds(t, e.Duration))
		want = append(want, shown{place, e.Name, e.Category, begin, end, number(e.Args["External id"]), string(dims)})
	}
	var slices []occurrence
	for _, x := range d.Slices {
		if dims, ok := x.Args["Input Dims"].(string); ok {
			slices = append(slices, x)
			place := fmt.Sprint(x.Track[0], " ", x.Track[1])
			got = append(got, shown{place, x.Name, strings.Join(x.Category, " "), x.Time, x.End, x.Values["External id"], dims})
		}
	}
	require.ElementsMatch(t, want, got)
	checkNesting(t, slices)
	checkFlows(t, d)
	require.Equal(t, "thread 101 (python)", d.ThreadNames["101"])
	require.Contains(t, d.Counters, []any{0.0, "GPU 0 Counters", "power W", float64(to), 71.5})
	require.Contains(t, d.Processes, fmt.Sprint(eventtest.PID))
	for _, x := range d.Instants {
		if x.Name == "[memory]" {
			require.Equal(t, map[string]any{"Bytes": -512.0, "ok": true}, x.Args)
			return
		}
	}
	t.Fatal("no instant")
}

// checkNesting checks that two slices of one track are apart or one is in the other, as deep as the ends in the file say.
func checkNesting(t *testing.T, all []occurrence) {
	t.Helper()
	overlap, deep := 0, 0
	for i, x := range all {
		depth := 0
		for j, y := range all {
			if i == j || x.UUID != y.UUID || y.End <= x.Time || x.End <= y.Time {
				continue
			}
			require.True(t, x.Time <= y.Time && y.End <= x.End || y.Time <= x.Time && x.End <= y.End, "%+v %+v", x, y)
			if y.Time <= x.Time && x.End <= y.End && (y.Time != x.Time || y.End != x.End || j < i) {
				depth++
			}
		}
		if x.End > x.Time { // an empty slice can be beside or in another
			require.Equal(t, depth, x.Depth, "%+v", x)
		}
		deep = max(deep, depth)
		if x.Track[2] == "overlapping" {
			overlap++
		}
	}
	require.NotZero(t, deep)
	require.NotZero(t, overlap)
}

// checkFlows checks that each launch leads to its two kernels.
func checkFlows(t *testing.T, d *decoded) {
	t.Helper()
	starts := map[uint64]uint64{}
	launches, kernels := 0, map[uint64]int{}
	for _, x := range d.Slices {
		if x.Name == "cudaGraphLaunch" {
			launches++
			require.Len(t, x.Flows, 2)
			for _, id := range x.Flows {
				require.NotContains(t, starts, id)
				starts[id] = x.Time
			}
		}
	}
	for _, x := range d.Slices {
		if strings.HasPrefix(x.Name, "kernel<") {
			require.Len(t, x.FlowEnds, 1)
			require.Contains(t, starts, x.FlowEnds[0])
			require.Less(t, x.Time-starts[x.FlowEnds[0]], uint64(5000))
			kernels[starts[x.FlowEnds[0]]]++
		}
	}
	require.Greater(t, launches, 20)
	require.Len(t, kernels, launches)
}

// TestProfileAllocations: while torch.profiler watches the process, each allocation is also on the track of its thread.
func TestProfileAllocations(t *testing.T) {
	s := eventtest.Random(4, 2000)
	from, to := s.Events[500].Time, s.Events[1500].Time
	d := writeProfiled(t, s, perfetto.Input{}, fmt.Sprintf(`[{"ph": "X", "name": "run", "pid": %d, "tid": 1, "ts": %s, "dur": %d.%03d}]`,
		eventtest.PID, micros(from), (to-from)/1000, (to-from)%1000))
	type place struct{ time, tid, bytes uint64 }
	var want, got []place
	for i := range s.Events {
		e := &s.Events[i]
		switch {
		case e.Time < from || e.Time > to:
		case e.Kind == event.KindAlloc:
			want = append(want, place{e.Time, uint64(e.TID), e.Size})
		case e.Kind == event.KindOutOfMemory:
			want = append(want, place{e.Time, uint64(e.TID), 0})
		}
	}
	for _, x := range d.Instants {
		var tid uint64
		if n, _ := fmt.Sscanf(x.Track[1].(string), "thread %d", &tid); n == 1 {
			require.Equal(t, tid, x.Values["thread"])
			require.NotEmpty(t, x.Args["device"])
			require.NotEmpty(t, x.Stack)
			got = append(got, place{x.Time, tid, x.Weight})
		}
	}
	require.Greater(t, len(want), 300)
	require.ElementsMatch(t, want, got)
	another := fmt.Sprintf(`[{"ph": "X", "name": "run", "pid": 77, "tid": 78, "ts": %s, "dur": 1}]`, micros(from))
	other := writeProfiled(t, s, perfetto.Input{}, another)
	require.Contains(t, other.Threads, [2]uint32{77, 78})
	for _, x := range other.Instants {
		require.NotContains(t, x.Track[1], "thread ")
	}
}

// TestProfileRange: nothing outside of the range is written, two traces of one process share their tracks, and what is from before the
// start of the machine is at its beginning.
func TestProfileRange(t *testing.T) {
	s := eventtest.Random(5, 1000)
	from, to := s.Events[300].Time, s.Events[600].Time
	slice := func(pid, tid string, begin, length uint64) string {
		const format = `{"ph": "X", "name": "x", "pid": %s, "tid": %s, "ts": %s, "dur": %d.%03d}`
		return fmt.Sprintf(format, pid, tid, micros(begin), length/1000, length%1000)
	}
	pid := fmt.Sprint(eventtest.PID)
	text := `[` + strings.Join([]string{
		slice(pid, "9", from-100, 50), slice(pid, "9", from-40, 60), slice(pid, "9", from+30, 40), slice(pid, "9", to-10, 60),
		slice(pid, "9", to+1, 5), slice(`"Spans"`, `"a"`, from+5, 10),
	}, ",") + `]`
	second := `[` + slice(`"Spans"`, `"a"`, from+50, 10) + `,` + slice(pid, "9", from+80, 1) + `]`
	d := writeProfiled(t, s, perfetto.Input{ProfileFrom: from, ProfileTo: to}, text, second)
	type times struct{ from, to uint64 }
	got := map[string][]times{}
	for _, x := range d.Slices {
		if x.Name == "x" {
			place := fmt.Sprint(x.Track[1:]...)
			got[place] = append(got[place], times{x.Time - from, x.End - from})
		}
	}
	n := to - from
	require.Equal(t, map[string][]times{"thread 9": {{0, 20}, {30, 70}, {n - 10, n}, {80, 81}}, "Spansa": {{5, 15}, {50, 60}}}, got)
	early := writeProfiled(t, s, perfetto.Input{}, `[{"ph": "X", "name": "x", "pid": 5, "tid": 5, "ts": 7, "dur": 1}]`)
	for _, x := range early.Slices {
		require.True(t, x.Name != "x" || x.Time == 0 && x.End == 0)
	}
}
