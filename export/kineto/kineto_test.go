// SPDX-License-Identifier: Apache-2.0

package kineto_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export/kineto"
)

func read(t testing.TB, text string) *kineto.Trace {
	t.Helper()
	k, err := kineto.Read(strings.NewReader(text))
	require.NoError(t, err)
	return k
}

// rowOf finds a row by the names of its process and itself.
func rowOf(t testing.TB, k *kineto.Trace, process, name string) *kineto.Row {
	t.Helper()
	for _, row := range k.Rows {
		if row.Process.Name == process && row.Name == name {
			return row
		}
	}
	t.Fatalf("no row %q of %q", name, process)
	return nil
}

// trace puts events into the form of PyTorch 2.15.
func trace(events ...string) string {
	return `{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "baseTimeNanoseconds": 1790857026000000000, "traceEvents": [` +
		strings.Join(events, ",") + `], "traceName": "x.json"}`
}

func slice(pid, tid any, name, ts, dur string) string {
	return fmt.Sprintf(`{"ph": "X", "cat": "cpu_op", "name": %q, "pid": %v, "tid": %v, "ts": %s, "dur": %s}`, name, pid, tid, ts, dur)
}

// TestTimes: times are exact, from the base wherever it is in the file, or from 1970.
func TestTimes(t *testing.T) {
	const base = 1790857026000000000
	event := slice(7, 7, "a", "5039959055893.807", "134.431")
	for name, c := range map[string]struct {
		text           string
		time, duration int64
	}{
		"2.15":           {trace(event), base + 5039959055893807, 134431},
		"base at end":    {`{"traceEvents": [` + event + `], "baseTimeNanoseconds": 5}`, 5039959055893812, 134431},
		"2.1":            {`{"traceEvents": [` + slice(7, 7, "a", "1700000000123456", "12") + `]}`, 1700000000123456000, 12000},
		"a list":         {`[` + slice(7, 7, "a", "1700000000123456.5", "0.25") + `]`, 1700000000123456500, 250},
		"exponent":       {`[` + slice(7, 7, "a", "1.5e3", "5.123e3") + `]`, 1500000, 5123000},
		"negative":       {`[` + slice(7, 7, "a", "-0.5", "-3") + `]`, -500, 0},
		"below 0":        {`[` + slice(7, 7, "a", "-2.25", "1") + `]`, -2250, 1000},
		"more digits":    {`[` + slice(7, 7, "a", "1.0009999", "1.0") + `]`, 1000, 1000},
		"no time at all": {`[{"ph": "X", "pid": 7, "tid": 7, "name": "a", "ts": null}]`, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			k := read(t, c.text)
			require.Equal(t, 1, k.Events)
			e := k.Rows[0].Events[0]
			require.Equal(t, []int64{c.time, c.duration}, []int64{e.Time, e.Duration})
			require.Equal(t, []int64{c.time, c.time + c.duration}, []int64{k.From, k.To})
		})
	}
	far := read(t, trace(slice(7, 7, "a", "9e300", "9e300"), slice(7, 7, "b", "9223372036854775807", "1"), slice(7, 7, "c", "-9e300", "1")))
	for _, e := range far.Rows[0].Events {
		require.LessOrEqual(t, e.Time, e.End(), "no overflow")
	}
}

// meta is a metadata event.
func meta(what string, pid, tid any, args string) string {
	return fmt.Sprintf(`{"ph": "M", "name": %q, "pid": %v, "tid": %v, "ts": 1, "args": {%s}}`, what, pid, tid, args)
}

func kernel(pid, tid any, ts, dur string) string {
	return strings.Replace(slice(pid, tid, "k", ts, dur), "cpu_op", "kernel", 1)
}

// TestRows: processes, devices and groups are named as the metadata say, which come after the events. In a container, the process can have
// the number of a device.
func TestRows(t *testing.T) {
	for _, pid := range []int{900, 1} {
		k := read(t, trace(
			slice(pid, 900, "op", "10", "5"), slice(pid, pid+1, "op", "10", "5"), kernel(1, 20, "11", "2"), kernel(1, 7, "11", "2"),
			slice(`"Spans"`, `"PyTorch Profiler"`, "span", "1", "50"), `{"ph": "i", "name": "end", "pid": "", "tid": "", "ts": 60, "s": "g"}`,
			slice(-1, 0, "CUPTI", "10", "1"),
			meta("process_name", pid, 0, `"name": "python"`), meta("process_labels", pid, 0, `"labels": "CPU"`),
			meta("thread_name", pid, 900, `"name": "thread 900 (python)"`), meta("thread_name", pid, 900, `"name": "thread 900 (pt_autograd_0)"`),
			meta("process_name", 1, 0, `"name": "python"`), meta("process_labels", 1, 0, `"labels": "GPU 1"`),
			meta("thread_name", 1, 7, `"name": "stream 7 "`), meta("thread_sort_index", 1, 7, `"sort_index": 7`),
			meta("thread_name", 1, 20, `"name": "stream 20 "`), meta("thread_sort_index", 1, 20, `"sort_index": 20`),
			meta("process_name", -1, 0, `"name": "Overhead"`), meta("process_name", 5, 0, `"name": "no events"`),
			meta("process_name", 6, 0, `"name": 3`),
		))
		require.Len(t, k.Rows, 7)
		require.Empty(t, k.LeftOut)
		thread := rowOf(t, k, "python", "thread 900 (pt_autograd_0)")
		require.Equal(t, []int64{int64(pid), 900}, []int64{thread.Process.PID, thread.TID})
		require.EqualValues(t, pid+1, rowOf(t, k, "python", "").TID)
		for i, name := range []string{"stream 7 ", "stream 20 "} {
			stream := rowOf(t, k, "GPU 1 (python)", name)
			require.True(t, stream.Process.Device)
			require.Equal(t, []int64{0, 0, int64(i)}, []int64{stream.Process.PID, stream.TID, int64(stream.Rank)})
		}
		require.Equal(t, "span", k.Name(&rowOf(t, k, "Spans", "PyTorch Profiler").Events[0]))
		require.Equal(t, kineto.Instant, rowOf(t, k, "profiler", "profiler").Events[0].Kind)
		require.Equal(t, "CUPTI", k.Name(&rowOf(t, k, "Overhead", "0").Events[0]))
	}
}

// TestRows2021: PyTorch 1.8.1 writes thread IDs in quotes and streams by name.
func TestRows2021(t *testing.T) {
	k := read(t, `{"traceEvents": [`+strings.Join([]string{
		slice(900, `"901"`, "op", "1700000000000001", "5"), slice(0, `"stream 7"`, "k", "1700000000000002", "5"),
		meta("thread_name", 900, `"901"`, `"name": "thread 901 (python)"`), meta("process_labels", 0, 0, `"labels": "GPU 0"`),
	}, ",")+`]}`)
	require.EqualValues(t, 901, rowOf(t, k, "", "thread 901 (python)").TID)
	require.True(t, rowOf(t, k, "GPU 0", "stream 7").Process.Device)
}

// TestArgs: every value of JSON keeps its type, in the file's order.
func TestArgs(t *testing.T) {
	k := read(t, trace(`{"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1, "args": {
		"Addr": 140128867601408, "Bytes": -512, "big": 18446744073709551615, "huge": 1e30, "f": 0.5, "finished" : false, "none": null,
		"a\"}b": "c\\\",{", "Input Dims": [[4, 64], [], "]"], "nested": {"x": {"y": 1}}, "": "", "last": true}}`,
		`{"ph": "i", "name": "x", "pid": 1, "tid": 1, "ts": 2, "args": {}}`,
		`{"ph": "i", "name": "x", "pid": 1, "tid": 1, "ts": 3, "args": "text"}`))
	type arg struct {
		name  string
		value any
	}
	var got []arg
	events := k.Rows[0].Events
	for i := range events {
		events[i].Args(func(name string, value any) { got = append(got, arg{name, value}) })
	}
	require.Equal(t, []arg{
		{"Addr", int64(140128867601408)}, {"Bytes", int64(-512)}, {"big", uint64(18446744073709551615)}, {"huge", 1e30}, {"f", 0.5},
		{"finished", false}, {`a"}b`, `c\",{`}, {"Input Dims", kineto.JSON(`[[4, 64], [], "]"]`)}, {"nested", kineto.JSON(`{"x": {"y": 1}}`)},
		{"", ""}, {"last", true},
	}, got)
}

func flow(kind string, id, tid any, ts string) string {
	return fmt.Sprintf(`{"ph": %q, "cat": "ac2g", "name": "ac2g", "id": %v, "pid": 1, "tid": %v, "ts": %s, "bp": "e"}`, kind, id, tid, ts)
}

// TestFlows: a flow belongs to the slice before it, or to the innermost slice around it; the ends of a flow are numbered.
func TestFlows(t *testing.T) {
	k := read(t, trace(
		slice(1, 1, "outer", "10", "100"), slice(1, 1, "launch", "10", "5"), flow("s", 1, 1, "10"), slice(1, 1, "inner", "10", "2"),
		slice(1, 2, "k1", "20", "5"), flow("f", 1, 2, "20"), slice(1, 2, "k2", "30", "5"), flow("f", 1, 2, "30"), flow("f", 7, 2, "30"),
		flow("s", 2, 1, "50"), flow("t", 2, 1, "12"), flow("s", 3, 1, "500"), flow("s", 3, 9, "50"),
	))
	got := map[string]string{}
	for _, row := range k.Rows {
		for i := range row.Events {
			for _, f := range k.Flows(&row.Events[i]) {
				got[k.Name(&row.Events[i])] += fmt.Sprintf("%s %d %d of %d;", f.Key[len(f.Key)-1:], f.Point, f.End, f.Ends)
			}
		}
	}
	require.Equal(t, map[string]string{
		"launch": "1 0 0 of 2;", "k1": "1 2 0 of 2;", "k2": "1 2 1 of 2;", "outer": "2 0 0 of 0;", "inner": "2 1 0 of 0;",
	}, got)
	require.Equal(t, map[string]int{"arrows with no slice at one end": 2}, k.LeftOut)
}

// TestLanes: random slices are in order, nest in their lanes, and are all there; slices that nest take one lane.
func TestLanes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 5, 300} {
		var events []string
		for range n {
			events = append(events, slice(1, 1, "x", fmt.Sprint(rng.IntN(2000)), fmt.Sprint(rng.IntN(40))))
		}
		k := read(t, trace(events...))
		row := k.Rows[0]
		require.Len(t, row.Events, n)
		for i := range row.Events {
			x := &row.Events[i]
			require.Less(t, int(x.Lane), row.Lanes)
			for j := range row.Events[:i] {
				y := &row.Events[j]
				require.LessOrEqual(t, y.Time, x.Time)
				require.True(t, x.Lane != y.Lane || y.End() <= x.Time || y.End() >= x.End(), "%v %v", x, y)
			}
		}
	}
	nested := trace(slice(1, 1, "b", "12", "3"), slice(1, 1, "a", "10", "5"), slice(1, 1, "c", "15", "1"), slice(1, 1, "d", "15", "0"))
	require.Equal(t, 1, read(t, nested).Rows[0].Lanes)
	var many []string
	for i := range 100 {
		many = append(many, slice(1, 1, "x", fmt.Sprint(i), "1000"))
	}
	k := read(t, trace(many...))
	require.Equal(t, []int{64, 64}, []int{k.Rows[0].Lanes, k.Events})
	require.Equal(t, map[string]int{"slices that overlap with more than 64 others of their track": 36}, k.LeftOut)
}

// TestOther: counters are read, and events of other kinds are counted.
func TestOther(t *testing.T) {
	k := read(t, trace(`{"ph": "C", "name": "power", "pid": "GPU 0 Counters", "tid": 0, "ts": 5, "dur": 3, "args": {"": 71.5}}`,
		`{"ph": "b", "name": "x", "pid": 1, "tid": 1, "ts": 1, "id": 1}`, `{"ph": "b", "name": "x", "pid": 1, "tid": 1, "ts": 1, "id": 1}`))
	e := rowOf(t, k, "GPU 0 Counters", "0").Events[0]
	require.Equal(t, kineto.Counter, e.Kind)
	require.Zero(t, e.Duration)
	require.Equal(t, map[string]int{`events of the unknown type "b"`: 2}, k.LeftOut)
}

// TestOpen: a file is read gzipped or not, and an error names it and says what is wrong.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	good := trace(slice(1, 1, "a", "1", "2"), slice(1, 1, "b", "1", "2"))
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		return path
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write([]byte(good))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	for _, path := range []string{write("plain.json", []byte(good)), write("zipped.json", zipped.Bytes())} {
		k, err := kineto.Open(path)
		require.NoError(t, err)
		require.Equal(t, 2, k.Events)
		require.Equal(t, path, k.Path)
	}
	cut := strings.Index(good, `"b"`)
	for name, c := range map[string]struct{ text, want string }{
		"cut.json":    {good[:cut], "the file is cut off after event 1, at byte"},
		"between":     {good[:strings.Index(good, `]`)], "the file is cut off, at byte"},
		"end":         {good[:len(good)-1], "the file is cut off after event 2, at byte"},
		"list":        {`[` + slice(1, 1, "a", "1", "2"), "the file is cut off after event 1"},
		"cut.gz":      {zipped.String()[:zipped.Len()-9], "the file is cut off"},
		"broken.gz":   {"\x1f\x8bxxxxxxxxxx", "gzip: invalid header"},
		"sum.gz":      {zipped.String()[:zipped.Len()-5] + "xxxxx", "gzip: invalid checksum"},
		"empty":       {"", "the file is empty"},
		"pickle":      {"\x80\x02}q\x00.", "at byte 0 of its text: invalid character"},
		"invalid":     {strings.Replace(good, `"b"`, `"b" b"`, 1), "after event 1: invalid character"},
		"type":        {strings.Replace(good, `"b"`, `5`, 1), "after event 1: json: cannot unmarshal number"},
		"time":        {strings.Replace(good, `"ts": 1,`, `"ts": "now",`, 1), `"now" is not a time in microseconds`},
		"number":      {"5", "it has no list traceEvents"},
		"object":      {`{"a": 1}`, "it has no list traceEvents"},
		"not a list":  {`{"traceEvents": {}}`, "it has no list traceEvents"},
		"more":        {good + "{}", "it goes on after its end"},
		"base":        {`{"baseTimeNanoseconds": "x", "traceEvents": []}`, "cannot unmarshal string"},
		"no colon":    {`{"traceEvents" []}`, "invalid character"},
		"only a name": {`{"traceEvents":`, "the file is cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(name, []byte(c.text))
			_, err := kineto.Open(path)
			require.ErrorIs(t, err, kineto.ErrFormat)
			require.ErrorContains(t, err, path+": ")
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err = kineto.Open(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "missing")
}

// FuzzRead: whatever a file contains, events are in order, in the lanes and times that the trace has, and the arguments are those that
// Go's decoder finds.
func FuzzRead(f *testing.F) {
	f.Add(trace(slice(1, 1, "a", "1", "2"), flow("s", 1, 1, "1"), kernel(0, 7, "3", "1"), meta("process_labels", 0, 0, `"labels": "GPU 0"`)))
	f.Add(`[{"ph": "C", "args": {"a": [1, {"b": "\\\""}], "c": -1e3}}, {"ph": "f", "ts": 5}]`)
	f.Fuzz(func(t *testing.T, text string) {
		k, err := kineto.Read(strings.NewReader(text))
		if err != nil {
			require.ErrorIs(t, err, kineto.ErrFormat)
			return
		}
		for _, row := range k.Rows {
			last := k.From
			for i := range row.Events {
				e := &row.Events[i]
				require.LessOrEqual(t, last, e.Time)
				require.LessOrEqual(t, e.End(), k.To)
				require.Less(t, int(e.Lane), row.Lanes)
				last = e.Time
				k.Flows(e)
				e.Args(func(_ string, value any) {
					if nested, ok := value.(kineto.JSON); ok {
						require.True(t, json.Valid([]byte(nested)))
					}
				})
			}
		}
	})
}

// BenchmarkRead measures the time and the memory of an event.
func BenchmarkRead(b *testing.B) {
	const events = 100_000
	var text strings.Builder
	for i := range events {
		fmt.Fprintf(&text, `,{"ph": "X", "cat": "cpu_op", "name": "aten::op%d", "pid": 1, "tid": %d, "ts": %d.5, "dur": 3.250, `, i%100, i%3, i*2)
		fmt.Fprintf(&text, `"args": {"External id": %d, "Sequence number": 2, "Input Dims": [[4, 64], [], []]}}`, i)
	}
	file := `{"traceEvents": [` + text.String()[1:] + `]}`
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		k, err := kineto.Read(strings.NewReader(file))
		require.NoError(b, err)
		n := 0
		for _, row := range k.Rows {
			for i := range row.Events {
				row.Events[i].Args(func(string, any) { n++ })
			}
		}
		require.Equal(b, 3*events, n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
}
