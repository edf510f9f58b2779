// SPDX-License-Identifier: Apache-2.0

//go:build linux

package snapshot

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/inspect"
)

// readers are Python programs that read a pickle from standard input and print what they found as JSON.
const (
	readValue = "import json, pickle, sys; print(json.dumps(pickle.load(sys.stdin.buffer)))"
	readOps   = `
import collections, json, pickletools, sys
ops = pickletools.genops(sys.stdin.buffer.read())
print(json.dumps(collections.Counter(op.name for op, _, _ in ops)))`
)

// python runs a program of CPython's own, which must not complain.
func python(t *testing.T, program string, input []byte, result any) {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("python3", "-c", program)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	require.NoError(t, d.Decode(result))
}

func pickled(t *testing.T, write func(p *pickler)) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := bufio.NewWriter(&buf)
	p := newPickler(w)
	write(p)
	p.stop()
	require.NoError(t, w.Flush())
	return buf.Bytes()
}

func TestIntegers(t *testing.T) {
	var numbers []uint64
	for shift := range 64 {
		n := uint64(1) << shift
		numbers = append(numbers, n-1, n, n+1)
	}
	numbers = append(numbers, math.MaxUint64)
	var got []json.Number
	python(t, readValue, pickled(t, func(p *pickler) {
		p.list(len(numbers), func(i int) { p.integer(numbers[i]) })
	}), &got)
	require.Len(t, got, len(numbers))
	for i, n := range numbers {
		require.Equal(t, fmt.Sprint(n), got[i].String())
	}
}

// TestTexts makes more texts than the short opcodes can number, each of them used twice.
func TestTexts(t *testing.T) {
	texts := []string{"", "ü€😀", "'\"\\\n\x00"}
	for i := range 600 {
		texts = append(texts, fmt.Sprint("name ", i))
	}
	b := pickled(t, func(p *pickler) {
		p.list(2*len(texts), func(i int) { p.text(texts[i%len(texts)]) })
	})
	var got []string
	python(t, readValue, b, &got)
	require.Equal(t, append(texts, texts...), got)
	var ops map[string]int
	python(t, readOps, b, &ops)
	require.Equal(t, len(texts), ops["BINUNICODE"], "each text is written once")
	require.Equal(t, len(texts), ops["BINGET"]+ops["LONG_BINGET"])
}

func TestLists(t *testing.T) {
	for n, batches := range map[int]int{0: 0, 1: 1, maxAppends: 1, maxAppends + 1: 2, 3*maxAppends + 7: 4} {
		b := pickled(t, func(p *pickler) { p.list(n, func(i int) { p.integer(uint64(i)) }) })
		var got []int
		python(t, readValue, b, &got)
		require.Len(t, got, n)
		for i := range got {
			require.Equal(t, i, got[i])
		}
		var ops map[string]int
		python(t, readOps, b, &ops)
		require.Equal(t, batches, ops["APPENDS"], "%d values", n)
	}
}

// viewer lists the opcodes that the unpickler of PyTorch's MemoryViz.js (2.6.0) knows.
var viewer = strings.Fields(`PROTO FRAME MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET MARK EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE
	TUPLE1 TUPLE2 TUPLE3 LIST DICT APPEND APPENDS SETITEM SETITEMS BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINUNICODE
	BINUNICODE NONE NEWTRUE NEWFALSE STOP`)

// the state has two devices, one of them empty, two streams, all states, and more blocks than a batch holds.
func state() *allocator.State {
	one := inspect.Segment{Addr: 0x7f0000000000, Size: 20 << 20, Stream: 0x55b7f448d430, Pool: inspect.Pool{ID: [2]uint64{1, 0}},
		Expandable: true, Blocks: []inspect.Block{
			{Addr: 0x7f0000000000, Size: 5 << 20, Requested: 5<<20 - 3, Stream: 0x55b7f448d430, State: inspect.StateAllocated},
			{Addr: 0x7f0000500000, Size: 5 << 20, Requested: 5<<20 - 5, Stream: 0x55b7f448d430, State: inspect.StatePending},
			{Addr: 0x7f0000a00000, Size: 10 << 20, Stream: 0x55b7f448d430},
		}}
	many := inspect.Segment{Addr: 0x7f1000000000, Size: 4096 * 512, Pool: inspect.Pool{Small: true}}
	for i := range uint64(4096) {
		b := inspect.Block{Addr: many.Addr + 512*i, Size: 512}
		if i%2 == 0 {
			b.State, b.Requested = inspect.StateAllocated, 1+i%512
		}
		many.Blocks = append(many.Blocks, b)
	}
	return allocator.New(&inspect.Map{Devices: []inspect.DeviceMap{
		{DeviceTotals: inspect.DeviceTotals{Device: 0}},
		{DeviceTotals: inspect.DeviceTotals{Device: 1}, Segments: []inspect.Segment{one, many}},
	}})
}

func written(t *testing.T, b *allocator.State) []byte {
	t.Helper()
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, b))
	return buf.Bytes()
}

func TestWrite(t *testing.T) {
	b := written(t, state())
	var got struct {
		Segments []map[string]any
		Traces   [][]any `json:"device_traces"`
	}
	python(t, readValue, b, &got)
	require.Len(t, got.Traces, 2)
	require.Len(t, got.Segments, 2)
	blocks := got.Segments[0]["blocks"].([]any)
	require.Len(t, got.Segments[1]["blocks"], 4096)
	delete(got.Segments[0], "blocks")
	number := func(n int64) json.Number { return json.Number(fmt.Sprint(n)) }
	require.Equal(t, map[string]any{
		"device": number(1), "address": number(0x7f0000000000), "total_size": number(20 << 20), "allocated_size": number(5 << 20),
		"active_size": number(10 << 20), "requested_size": number(10<<20 - 8), "stream": number(0x55b7f448d430), "segment_type": "large",
		"segment_pool_id": []any{number(1), number(0)}, "is_expandable": true, "frames": []any{},
	}, got.Segments[0])
	require.Equal(t, []any{
		map[string]any{"address": number(0x7f0000000000), "size": number(5 << 20), "requested_size": number(5<<20 - 3),
			"state": "active_allocated", "frames": []any{}},
		map[string]any{"address": number(0x7f0000500000), "size": number(5 << 20), "requested_size": number(5<<20 - 5),
			"state": "active_pending_free", "frames": []any{}},
		map[string]any{"address": number(0x7f0000a00000), "size": number(10 << 20), "requested_size": number(0), "state": "inactive",
			"frames": []any{}},
	}, blocks)
	var ops map[string]int
	python(t, readOps, b, &ops)
	for op := range ops {
		require.Contains(t, viewer, op)
	}
}

// viewerTool is PyTorch's own viewer, and the Python that runs it.
func viewerTool(t *testing.T) (interpreter, tool string) {
	t.Helper()
	if testing.Short() {
		t.Skip("another program is run once, not under the race detector again")
	}
	out, err := exec.Command("../../testdata/setup.sh", "--print", "python").Output()
	require.NoError(t, err)
	interpreter = strings.TrimSpace(string(out))
	found, err := filepath.Glob(filepath.Join(filepath.Dir(interpreter), "../lib/python3*/site-packages/torch/cuda/_memory_viz.py"))
	require.NoError(t, err)
	require.Len(t, found, 1, "PyTorch's viewer beside %s", interpreter)
	return interpreter, found[0]
}

// TestViewer: PyTorch's own command line tool reads it and finds the sizes.
func TestViewer(t *testing.T) {
	interpreter, tool := viewerTool(t)
	file := filepath.Join(t.TempDir(), "snapshot.pickle")
	require.NoError(t, os.WriteFile(file, written(t, state()), 0o644))
	for command, want := range map[string]string{
		"stats": "22.0MiB", "trace": "", "segment_plot": "<html", "trace_plot": "<html",
	} {
		result := filepath.Join(t.TempDir(), "out")
		args := []string{tool, command, file}
		if command != "stats" && command != "trace" {
			args = append(args, "-o", result)
		}
		out, err := exec.Command(interpreter, args...).CombinedOutput()
		require.NoError(t, err, "%s: %s", command, out)
		if page, err := os.ReadFile(result); err == nil {
			out = page
		}
		require.Contains(t, string(out), want, command)
	}
}

func TestWriteNothing(t *testing.T) {
	var got map[string]any
	python(t, readValue, written(t, allocator.New(&inspect.Map{})), &got)
	require.Equal(t, map[string]any{"segments": []any{}, "device_traces": []any{}, "external_annotations": []any{}}, got)
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWriteError(t *testing.T) {
	require.ErrorIs(t, Write(fullDisk{}, state()), errFull)
}
