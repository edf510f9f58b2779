// SPDX-License-Identifier: Apache-2.0

package chrome_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/chrome"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// The clock of the tests: what Kineto counts from in 2023, and a start 5 ns and 34 days later.
const (
	base    = 215 * 7889238 * 1_000_000_000
	started = base + 34*86400*1_000_000_000 + 5
	boot    = 900_000_000
)

func write(t testing.TB, trace *view.Trace, o *view.TimelineOptions) ([]byte, *view.Timeline) {
	t.Helper()
	tl, err := trace.Timeline(o)
	require.NoError(t, err)
	var buf bytes.Buffer
	require.NoError(t, chrome.Write(&buf, chrome.Input{
		Timeline: tl, Trace: trace, PID: eventtest.PID, Name: "python \"train\xff.py", Started: time.Unix(0, started), StartedBoot: boot,
		Comments: []string{"a comment"},
	}))
	return buf.Bytes(), tl
}

// readEvents is a Python program: it reads a trace with CPython's json, checks that what begins ends, and prints the events
// with times in nanoseconds since the machine was started.
const readEvents = `
import json, sys
from decimal import Decimal
base, started, boot = map(int, sys.argv[1:])
trace = json.load(sys.stdin, parse_float=Decimal)
assert trace['baseTimeNanoseconds'] == base and trace['displayTimeUnit'] == 'ms'
opened, out = {}, []
for e in trace['traceEvents']:
    e['ns'] = int(e.pop('ts') * 1000) + base - started + boot
    key = (e.get('cat'), e.get('id'), e['pid'])
    if e['ph'] == 'b':
        assert key not in opened and key[0] and key[1]
        opened[key] = e
    elif e['ph'] == 'e':
        b = opened.pop(key)
        assert b['name'] == e['name'] and b['ns'] <= e['ns']
        b['end'] = e['ns']
        continue
    else:
        assert e['ph'] in 'iCM' and 'id' not in e
    out.append(e)
assert not opened
json.dump({'events': out, 'other': trace['otherData']}, sys.stdout)
`

type decoded struct {
	Events []struct {
		Phase string         `json:"ph"`
		Name  string         `json:"name"`
		Cat   string         `json:"cat"`
		PID   uint32         `json:"pid"`
		TID   uint32         `json:"tid"`
		Time  uint64         `json:"ns"`
		End   uint64         `json:"end"`
		Args  map[string]any `json:"args"`
	} `json:"events"`
	Other map[string]any `json:"other"`
}

func decode(t *testing.T, trace []byte) *decoded {
	t.Helper()
	cmd := exec.Command("python3", "-c", readEvents, fmt.Sprint(int64(base)), fmt.Sprint(int64(started)), fmt.Sprint(boot))
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(trace), &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var d decoded
	require.NoError(t, json.Unmarshal(out, &d))
	return &d
}

// number is a number of JSON.
func number(v any) uint64 { return uint64(v.(float64)) }

// TestEvents: allocations, totals and the largest blocks are what happened, to the nanosecond and the byte.
func TestEvents(t *testing.T) {
	for seed := range uint64(4) {
		s := eventtest.Random(seed, 3000)
		trace, err := view.NewTrace(s, nil)
		require.NoError(t, err)
		out, _ := write(t, trace, &view.TimelineOptions{Lifetimes: 30})
		d := decode(t, out)
		want := map[uint64]*event.Event{}
		for i := range s.Events {
			want[s.Events[i].Time] = &s.Events[i]
		}
		last, instants, slice := map[string]uint64{}, 0, 0
		for _, x := range d.Events {
			switch x.Phase {
			case "M":
				require.Equal(t, "python \"train\ufffd.py", x.Args["name"])
			case "C":
				last[x.Name] = number(x.Args["bytes"])
			case "b":
				slice++
				e := want[x.Time]
				require.Equal(t, []uint64{e.Size, e.Addr}, []uint64{number(x.Args["bytes"]), number(x.Args["address"])})
				if x.End != trace.Last() { // it does not live at the end
					require.Equal(t, []any{event.KindFree, e.Addr}, []any{want[x.End].Kind, want[x.End].Addr})
				}
			case "i":
				instants++
				e := want[x.Time]
				require.Equal(t, e.TID, x.TID)
				require.Equal(t, "gputrace "+e.Layer.String()+" "+e.Device.String(), x.Cat)
				size := "bytes"
				if e.Kind == event.KindOutOfMemory {
					size = "asked"
				}
				require.Equal(t, e.Size, number(x.Args[size]))
			}
		}
		made := len(slices.DeleteFunc(slices.Clone(s.Events), func(e event.Event) bool { return e.Kind == event.KindFree }))
		require.Equal(t, made, instants)
		require.Greater(t, slice, 30)
		total := uint64(0)
		for _, device := range []string{"cuda:0", "cuda:1"} {
			total += last[device+" allocated"] + last[device+" device memory"] - last[device+" reserved"]
		}
		require.Equal(t, trace.End().Total(), total)
		require.Equal(t, []any{"a comment"}, d.Other["gputrace"])
	}
}

// TestLeftOut: what is left out is said to be.
func TestLeftOut(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(5, 3000), nil)
	require.NoError(t, err)
	out, tl := write(t, trace, &view.TimelineOptions{MinSize: 1 << 15})
	d := decode(t, out)
	require.NotZero(t, tl.Left.Objects)
	require.Equal(t, tl.Left.Objects, number(d.Other["left_out_allocations"]))
	require.Equal(t, tl.Left.Bytes, number(d.Other["left_out_bytes"]))
	for _, x := range d.Events {
		if x.Phase == "i" && x.Name != "out of memory" {
			require.GreaterOrEqual(t, number(x.Args["bytes"]), uint64(1<<15))
		}
	}
}

// TestUnknownClock: without a wall clock, times are those of the events.
func TestUnknownClock(t *testing.T) {
	s := eventtest.Random(1, 10)
	trace, err := view.NewTrace(s, nil)
	require.NoError(t, err)
	tl, err := trace.Timeline(nil)
	require.NoError(t, err)
	var buf bytes.Buffer
	require.NoError(t, chrome.Write(&buf, chrome.Input{Timeline: tl, Trace: trace}))
	var d struct {
		Base   int64 `json:"baseTimeNanoseconds"`
		Events []struct {
			Time float64 `json:"ts"`
		} `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal(buf.Bytes(), &d))
	require.Zero(t, d.Base)
	require.EqualValues(t, trace.First(), math.Round(1000*d.Events[0].Time))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("full")

func TestWriteError(t *testing.T) {
	trace, err := view.NewTrace(eventtest.Random(1, 300), nil)
	require.NoError(t, err)
	tl, err := trace.Timeline(nil)
	require.NoError(t, err)
	require.ErrorIs(t, chrome.Write(fullDisk{}, chrome.Input{Timeline: tl, Trace: trace}), errFull)
}

// BenchmarkWrite measures the time and the bytes of an event.
func BenchmarkWrite(b *testing.B) {
	const events = 200_000
	trace, err := view.NewTrace(eventtest.Random(1, events), nil)
	require.NoError(b, err)
	tl, err := trace.Timeline(&view.TimelineOptions{Lifetimes: 1000})
	require.NoError(b, err)
	for b.Loop() {
		var n counter
		require.NoError(b, chrome.Write(&n, chrome.Input{Timeline: tl, Trace: trace}))
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
