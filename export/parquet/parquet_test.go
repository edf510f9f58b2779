// SPDX-License-Identifier: Apache-2.0

package parquet_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/rows"
	"github.com/gputrace/gputrace/export/parquet"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording/pytorch"
)

// python is that of the test environment, with DuckDB; empty: it has none.
func python(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("another program is run once, not under the race detector again")
	}
	out, err := exec.Command("../../testdata/setup.sh", "--print", "python").Output()
	require.NoError(t, err)
	interpreter := strings.TrimSpace(string(out))
	if exec.Command(interpreter, "-c", "import duckdb").Run() != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s has no duckdb (testdata/requirements.txt)", interpreter)
		}
		t.Skipf("%s has no duckdb", interpreter)
	}
	return interpreter
}

// ask answers questions about a file by DuckDB; FILE in them stands for it. Each answer is its rows.
func ask(t *testing.T, file string, questions ...string) [][][]any {
	t.Helper()
	text, err := json.Marshal(questions)
	require.NoError(t, err)
	program := `
import duckdb, json, sys
answers = [duckdb.sql(q.replace("FILE", "'" + sys.argv[1] + "'")).fetchall() for q in json.loads(sys.argv[2])]
print(json.dumps(answers, default=lambda v: int(v) if hasattr(v, "__int__") else str(v)))`
	var stderr bytes.Buffer
	cmd := exec.Command(python(t), "-c", program, file, string(text))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var answers [][][]any
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	require.NoError(t, d.Decode(&answers))
	return answers
}

func write(t *testing.T, trace *view.Trace, s view.Selection) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "allocations.parquet")
	var buf bytes.Buffer
	require.NoError(t, parquet.Write(&buf, &rows.Table{Trace: trace, Version: "test", Boot: time.Unix(1_700_000_000, 0)}, s))
	require.NoError(t, os.WriteFile(file, buf.Bytes(), 0o644))
	return file
}

func traces(t *testing.T) map[string]*view.Trace {
	t.Helper()
	out := map[string]*view.Trace{}
	add := func(name string, in view.Input) {
		trace, err := view.NewTrace(in, nil)
		require.NoError(t, err)
		out[name] = trace
	}
	add("random", eventtest.Random(1, 20_000))
	files, err := filepath.Glob("../../recording/pytorch/testdata/*.pickle")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		s, err := pytorch.Open(f)
		require.NoError(t, err)
		add(filepath.Base(f), s)
	}
	return out
}

// asInt is a number of an answer.
func asInt(t *testing.T, v any) int64 {
	t.Helper()
	n, ok := v.(json.Number)
	require.True(t, ok, "%v", v)
	i, err := n.Int64()
	require.NoError(t, err)
	return i
}

// TestDuckDB: what DuckDB adds up are the heap's figures: in use at the end by layer and device, by stack, and the peak by a
// window over births and ends.
func TestDuckDB(t *testing.T) {
	for name, trace := range traces(t) {
		t.Run(name, func(t *testing.T) {
			file := write(t, trace, view.Selection{})
			answers := ask(t, file,
				`SELECT layer, device, stack_id, count(*), sum(bytes), sum(requested) FROM FILE WHERE free_ts IS NULL GROUP BY ALL`,
				`WITH steps AS (
				   SELECT device, ts AS t, bytes AS b FROM FILE WHERE layer = 'torch'
				   UNION ALL SELECT device, free_ts, -bytes FROM FILE WHERE layer = 'torch' AND free_ts IS NOT NULL),
				 totals AS (SELECT device, sum(b) OVER (PARTITION BY device ORDER BY t NULLS FIRST, b ROWS UNBOUNDED PRECEDING) AS total FROM steps)
				 SELECT device, max(total) FROM totals GROUP BY device`,
				`SELECT count(*) FROM FILE WHERE dur <> epoch_ns(free_ts) - epoch_ns(ts) OR (dur IS NULL) <> (free_ts IS NULL OR ts IS NULL)`,
				`SELECT count(*), count(DISTINCT id) FROM FILE`,
			)
			require.Equal(t, inUse(trace.End()), answered(t, answers[0]))
			for _, row := range answers[1] {
				require.Equal(t, peakOfBlocks(trace, row[0].(string)), asInt(t, row[1]), "%s", row[0])
			}
			require.Zero(t, asInt(t, answers[2][0][0]))
			require.Equal(t, answers[3][0][0], answers[3][0][1])
		})
	}
}

// TestEvents: every event is a row, in order; and the totals after the last are the heap's.
func TestEvents(t *testing.T) {
	for name, trace := range traces(t) {
		t.Run(name, func(t *testing.T) {
			n := 0
			require.NoError(t, trace.Replay(&view.Visitor{
				Event: func(*event.Event, *heap.Heap) { n++ },
			}))
			answers := ask(t, writeEvents(t, trace), `SELECT count(*), count(*) FILTER (WHERE kind = 'alloc') FROM FILE`,
				`SELECT device, pid, arg_max(live, file_row_number), arg_max(reserved, file_row_number)
				   FROM read_parquet(FILE, file_row_number = true) WHERE layer = 'torch' AND live IS NOT NULL GROUP BY ALL`,
				`SELECT count(*) FROM (SELECT ts - lag(ts) OVER (ORDER BY file_row_number) AS d
				   FROM read_parquet(FILE, file_row_number = true)) WHERE d < INTERVAL 0 SECONDS`)
			require.EqualValues(t, n, asInt(t, answers[0][0][0]))
			require.Zero(t, asInt(t, answers[2][0][0]), "in the order of time")
			compared := 0
			for _, row := range answers[1] {
				pid := uint32(0) // a snapshot has none
				if row[1] != nil {
					pid = uint32(asInt(t, row[1]))
				}
				for _, a := range trace.End().Snapshot.Accounts {
					if a.Device.String() == row[0].(string) && a.PID == pid && a.Allocated != event.Unknown {
						compared++
						require.EqualValues(t, a.Allocated, asInt(t, row[2]), "%s", row[0])
					}
				}
			}
			require.Len(t, answers[1], compared)
		})
	}
}

// place is by what the test adds up.
type place struct {
	layer, device, stack string
}

// inUse is the live set of the heap.
func inUse(v *view.View) map[place][3]int64 {
	out := map[place][3]int64{}
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Inuse.Objects == 0 {
			continue
		}
		p := place{s.Layer.String(), s.Device.String(), ""}
		if s.Site.Stack != 0 {
			p.stack = fmt.Sprint(uint64(s.Site.Stack))
		}
		c := out[p]
		out[p] = [3]int64{c[0] + int64(s.Inuse.Objects), c[1] + int64(s.Inuse.Bytes), c[2] + int64(s.Inuse.Requested)}
	}
	return out
}

func answered(t *testing.T, table [][]any) map[place][3]int64 {
	t.Helper()
	out := map[place][3]int64{}
	for _, r := range table {
		p := place{r[0].(string), r[1].(string), ""}
		if r[2] != nil {
			p.stack = r[2].(json.Number).String()
		}
		n := [3]int64{asInt(t, r[3])}
		for i := range 2 { // a sum of nothing but unknown sizes is null
			if r[4+i] != nil {
				n[1+i] = asInt(t, r[4+i])
			}
		}
		out[p] = n
	}
	return out
}

// peakOfBlocks is the largest sum of known blocks on a device, event by event.
func peakOfBlocks(trace *view.Trace, device string) int64 {
	peak := uint64(0)
	_ = trace.Replay(&view.Visitor{
		Event: func(_ *event.Event, h *heap.Heap) {
			for _, a := range h.Totals().Accounts {
				if a.Device.String() == device {
					peak = max(peak, a.Live.Bytes+a.BeforeBlocks.Bytes)
				}
			}
		},
	})
	return int64(peak)
}

// TestNulls: what is not known is null, and never 0.
func TestNulls(t *testing.T) {
	unknown := event.Unknown
	trace, err := view.NewTrace(&eventtest.Stream{Events: []event.Event{{
		Time: 5, Kind: event.KindAlloc, Layer: event.LayerShared, Addr: 4096, Size: unknown, Handle: unknown, Context: unknown,
		Requested: unknown, Stream: unknown, Allocated: unknown, Reserved: unknown, Device: event.Device{Type: event.DeviceCUDA, Index: -1},
	}}}, nil)
	require.NoError(t, err)
	got := ask(t, write(t, trace, view.Selection{}),
		`SELECT free_ts, dur, bytes, requested, stream, pid, tid, call, stack_id, stack, leaf_py FROM FILE`,
		`SELECT epoch_ns(ts), device, name, origin, object, layer, segment FROM FILE`)
	require.Equal(t, make([]any, 11), got[0][0])
	require.Equal(t, []any{json.Number("1700000000000000005"), "cuda:?", "[no stack]", "event", "memory", "shared", false}, got[1][0])
}

// TestStacks: the text of a stack has its frames from the outermost on, and the innermost line of the program beside it.
func TestStacks(t *testing.T) {
	s, err := pytorch.Open("../../recording/pytorch/testdata/torch-2.15.0.pickle")
	require.NoError(t, err)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	got := ask(t, write(t, trace, view.Selection{}), `SELECT DISTINCT stack, leaf_py, name FROM FILE WHERE stack LIKE '%step%' AND layer = `+
		`'torch' ORDER BY stack`)
	require.Equal(t, []any{"run.py:25 <module>; train.py:14 <module>; train.py:7 step; train.py:3 keep", "/home/anna/train.py:3",
		"train.py:3 keep"}, got[0][0])
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWriteError(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 100), nil)
	require.NoError(t, err)
	require.ErrorIs(t, parquet.Write(fullDisk{}, &rows.Table{Trace: trace}, view.Selection{}), errFull)
}

// TestSelection: a range has what was allocated in it.
func TestSelection(t *testing.T) {
	trace := traces(t)["random"]
	s := view.Selection{From: trace.First() + (trace.Last()-trace.First())/2, To: trace.Last(), MinSize: 1024}
	want := 0
	require.NoError(t, trace.Allocations(s, func(*view.Allocation) error {
		want++
		return nil
	}))
	got := ask(t, write(t, trace, s), `SELECT count(*), min(bytes), min(epoch_ns(ts)) FROM FILE`)[0][0]
	require.EqualValues(t, want, asInt(t, got[0]))
	require.GreaterOrEqual(t, asInt(t, got[1]), int64(1024))
	require.Equal(t, 1, cmp.Compare(asInt(t, got[2])-1_700_000_000e9, int64(s.From)))
}

// TestDocumentedQueries: the SQL in docs/use/tables.md runs, and finds something.
func TestDocumentedQueries(t *testing.T) {
	page, err := os.ReadFile("../../docs/use/tables.md")
	require.NoError(t, err)
	var queries, courses []string
	for i, part := range strings.Split(string(page), "```") {
		if sql, ok := strings.CutPrefix(part, "sql\n"); ok {
			require.Equal(t, 1, i%2, "a fence is open")
			if !strings.Contains(sql, "'events.parquet'") {
				queries = append(queries, strings.ReplaceAll(sql, "'allocations.parquet'", "FILE"))
			} else {
				courses = append(courses, strings.ReplaceAll(sql, "'events.parquet'", "FILE"))
			}
		}
	}
	require.GreaterOrEqual(t, len(queries), 6)
	found := make([]int, len(queries))
	all := traces(t)
	for _, name := range []string{"random", "torch-2.15.0.pickle"} {
		for i, rows := range ask(t, write(t, all[name], view.Selection{}), queries...) {
			found[i] += len(rows)
		}
	}
	for i, n := range found {
		require.NotZero(t, n, queries[i])
	}
	require.Len(t, courses, 1)
	for _, rows := range ask(t, writeEvents(t, all["random"]), courses...) {
		require.NotEmpty(t, rows)
	}
}

// writeEvents writes a trace's events to a file.
func writeEvents(t *testing.T, trace *view.Trace) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "events.parquet")
	var buf bytes.Buffer
	table := &rows.Table{Trace: trace, Version: "test", Boot: time.Unix(1_700_000_000, 0)}
	require.NoError(t, parquet.WriteEvents(&buf, table, view.Selection{}))
	require.NoError(t, os.WriteFile(file, buf.Bytes(), 0o644))
	return file
}
