// SPDX-License-Identifier: Apache-2.0

package csv_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/csv"
	"github.com/gputrace/gputrace/export/internal/rows"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// read reads a table by Python's csv: rows by the names in the header.
func read(t *testing.T, table []byte) []map[string]string {
	t.Helper()
	cmd := exec.Command("python3", "-c", `
import csv, io, json, sys
print(json.dumps(list(csv.DictReader(io.TextIOWrapper(sys.stdin.buffer, newline=""), strict=True))))`)
	cmd.Stdin = bytes.NewReader(table)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var got []map[string]string
	require.NoError(t, json.Unmarshal(out, &got))
	return got
}

func newTrace(t *testing.T, in view.Input) *view.Trace {
	t.Helper()
	trace, err := view.NewTrace(in, nil)
	require.NoError(t, err)
	return trace
}

// TestAllocations: Python reads the rows that the other tables have, and those in use add up to what the heap has.
func TestAllocations(t *testing.T) {
	trace := newTrace(t, eventtest.Random(1, 5000))
	var buf bytes.Buffer
	require.NoError(t, csv.WriteAllocations(&buf, &rows.Table{Trace: trace, Boot: time.Unix(1_700_000_000, 0)}, view.Selection{}))
	got := read(t, buf.Bytes())
	live, n := map[string]uint64{}, 0
	require.NoError(t, trace.Allocations(view.Selection{}, func(a *view.Allocation) error {
		r := got[n]
		n++
		require.Len(t, r, 24)
		require.Equal(t, fmt.Sprint(a.ID), r["id"])
		require.Equal(t, fmt.Sprint(a.Block.Addr), r["addr"])
		at, err := time.Parse(time.RFC3339Nano, r["ts"])
		require.NoError(t, err)
		require.Equal(t, int64(a.Block.Time), at.UnixNano()-1_700_000_000e9)
		require.Equal(t, a.Freed == 0, r["free_ts"] == "")
		require.Equal(t, a.Block.Size == event.Unknown, r["bytes"] == "")
		if r["free_ts"] == "" && r["bytes"] != "" {
			bytes, err := strconv.ParseUint(r["bytes"], 10, 64)
			require.NoError(t, err)
			live[r["layer"]+" "+r["device"]] += bytes
		}
		return nil
	}))
	require.Len(t, got, n)
	want := map[string]uint64{}
	for _, s := range trace.End().Sites {
		want[s.Layer.String()+" "+s.Device.String()] += s.Inuse.Bytes
	}
	for k, bytes := range want {
		require.Equal(t, bytes, live[k], k)
	}
}

// TestSums: Python reads the sums, which add up to the total.
func TestSums(t *testing.T) {
	trace := newTrace(t, eventtest.Random(2, 5000))
	for i, by := range view.RowKindNames {
		var buf bytes.Buffer
		require.NoError(t, csv.WriteSums(&buf, trace.Peak(), view.RowKind(i)))
		total := int64(0)
		for _, r := range read(t, buf.Bytes()) {
			require.NotEmpty(t, r[by])
			n, err := strconv.ParseInt(r["bytes"], 10, 64)
			require.NoError(t, err)
			total += n
		}
		require.EqualValues(t, trace.Peak().Total(), total, by)
	}
}

// TestHostileNames: a name can end neither its field nor its row, and is no formula.
func TestHostileNames(t *testing.T) {
	unknown := event.Unknown
	s := &eventtest.Stream{
		Events: []event.Event{{
			Time: 5, PID: 1, Kind: event.KindAlloc, Layer: event.LayerDevice, Addr: 4096, Size: 512, Handle: unknown, Context: unknown,
			Requested: unknown, Stream: unknown, Allocated: unknown, Reserved: unknown, Stack: 1, Call: "cu\"Mem,\nAlloc",
		}},
		Stacks: map[event.StackID]*event.Stack{1: {ID: 1, Frames: []event.Frame{
			{Kind: event.FramePython, Func: "=cmd|' /C calc'!A0", File: "/x/=1+1,\"\n.py", Line: 3},
			{Kind: event.FrameNative, Func: "=HYPERLINK(\"x\")"},
		}}},
	}
	trace := newTrace(t, s)
	var buf bytes.Buffer
	require.NoError(t, csv.WriteAllocations(&buf, &rows.Table{Trace: trace}, view.Selection{}))
	got := read(t, buf.Bytes())
	require.Len(t, got, 1)
	require.Equal(t, "cu\"Mem,\nAlloc", got[0]["call"])
	for i := range view.RowKindNames {
		var sums bytes.Buffer
		require.NoError(t, csv.WriteSums(&sums, trace.End(), view.RowKind(i)))
		for _, r := range append(read(t, sums.Bytes()), got[0]) {
			for name, v := range r {
				require.NotRegexp(t, "^[=+@-]", v, name)
			}
		}
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWriteError(t *testing.T) {
	trace := newTrace(t, eventtest.Random(1, 500))
	require.ErrorIs(t, csv.WriteAllocations(fullDisk{}, &rows.Table{Trace: trace}, view.Selection{}), errFull)
	require.ErrorIs(t, csv.WriteSums(fullDisk{}, trace.End(), view.ByLine), errFull)
}
