//go:build linux

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/tracer/hook"
)

// booking is one call in the stand-in driver's ledger (testdata/standin/README.md).
type booking struct {
	tid        uint32
	function   string
	addr, size uint64
	rc         int
}

type bookings []booking

// tracedKind tells what a driver function of the hook table does; 0: it is not in it, or makes no event.
func tracedKind(function string) event.Kind {
	for i := range hook.Rows {
		if r := &hook.Rows[i]; r.Library == hook.Driver && r.Symbol == function {
			return r.Kind
		}
	}
	return 0
}

// readLedger gives the calls of functions that are traced.
func readLedger(t *testing.T, path string) bookings {
	t.Helper()
	var out bookings
	eachLine(t, path, func(line []byte) {
		var seq, boottime, pid uint64
		var b booking
		_, err := fmt.Sscanf(string(line), "%d %d %d %d %s %v %d %d", &seq, &boottime, &pid, &b.tid, &b.function, &b.addr, &b.size, &b.rc)
		require.NoError(t, err, "%s", line)
		if tracedKind(b.function) != 0 {
			out = append(out, b)
		}
	})
	return out
}

// layer gives the calls about memory of one layer.
func (l bookings) layer(layer event.Layer) bookings {
	var out bookings
	for _, b := range l {
		if slices.ContainsFunc(hook.Rows, func(r hook.Row) bool { return r.Symbol == b.function && r.Layer == layer }) {
			out = append(out, b)
		}
	}
	return out
}

// live is what was allocated and not freed: size by address.
func (l bookings) live() map[uint64]uint64 {
	out := map[uint64]uint64{}
	for _, b := range l {
		switch {
		case b.rc != 0:
		case tracedKind(b.function) == event.KindAlloc:
			out[b.addr] = b.size
		case tracedKind(b.function) == event.KindFree:
			delete(out, b.addr)
		}
	}
	return out
}

// deed is what one thread did to device memory, as both sides can tell it.
type deed struct {
	kind event.Kind
	addr uint64
	size uint64 // of an allocation
}

// deeds gives what each thread did, in its order. A failed free is a free that is undone.
func (l bookings) deeds() map[uint32][]deed {
	out := map[uint32][]deed{}
	for _, b := range l {
		d, kind := out[b.tid], tracedKind(b.function)
		switch {
		case kind == event.KindFree && b.addr == 0:
		case kind == event.KindFree:
			d = append(d, deed{event.KindFree, b.addr, 0})
			if b.rc != 0 {
				d = append(d, deed{event.KindFreeFailed, b.addr, 0})
			}
		case b.rc == 0:
			d = append(d, deed{kind, b.addr, b.size})
		}
		out[b.tid] = d
	}
	return out
}

func (tr *trace) deeds() map[uint32][]deed {
	out := map[uint32][]deed{}
	for _, e := range tr.calls() {
		d := deed{kind: e.Kind, addr: e.Addr}
		switch e.Kind {
		case event.KindFree, event.KindFreeFailed:
		case event.KindOutOfMemory:
			continue
		default:
			d.size = e.Size
		}
		out[e.TID] = append(out[e.TID], d)
	}
	return out
}

// startCalls starts cudacalls, ready to make its calls, and gives the ledger's path.
func startCalls(t *testing.T, environment []string, args ...string) (*target, string) {
	t.Helper()
	dir := t.TempDir()
	ledger := filepath.Join(dir, "ledger")
	environment = append(environment, "RUN_PROGRAM="+filepath.Join(env.programs, "cudacalls"), "STANDIN_LEDGER="+ledger, "STANDIN_LEDGER_SYNC=1")
	args = append(args, "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold"))
	return startIn(t, dir, environment, filepath.Join(env.testdata, "run"), args...).ready(t), ledger
}

// TestLedger compares the device layer with the driver's own ledger, call for call, also where frees fail.
func TestLedger(t *testing.T) {
	tests := []struct {
		name    string
		threads string
		env     []string
		perf    bool // attach by perf events, as older kernels need it
	}{
		{name: "one thread", threads: "1"},
		{name: "perf uprobes", threads: "2", perf: true},
		{name: "threads", threads: "8"},
		{name: "failing frees", threads: "1", env: []string{"STANDIN_FAIL_FREE=3"}},
		{name: "failing frees in threads", threads: "8", env: []string{"STANDIN_FAIL_FREE=7"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, ledger := startCalls(t, tt.env, "--threads", tt.threads, "--rounds", "500")
			before := len(readLedger(t, ledger))
			o := options()
			o.PerfUprobes = tt.perf
			tr := attach(t, p.pid, o, nil)
			p.release(t)
			p.done(t)
			tr.finishWhole(t)
			calls := readLedger(t, ledger)[before:]
			checkLedger(t, tr, calls)
			checkCalls(t, tr, p)
		})
	}
}

func checkLedger(t *testing.T, tr *trace, calls bookings) {
	t.Helper()
	want, ours := calls.deeds(), tr.deeds()
	require.Len(t, ours, len(want), "threads")
	total, failed := 0, 0
	for tid, w := range want {
		require.Equal(t, w, ours[tid], "thread %d", tid)
		total += len(w)
	}
	h := heap.New()
	for i := range tr.events {
		h.Apply(&tr.events[i])
		if tr.events[i].Kind == event.KindFreeFailed {
			failed++
		}
	}
	live := map[uint64]uint64{}
	for b := range h.Blocks() {
		live[b.Addr] = b.Size
	}
	require.NotEmpty(t, live)
	require.Equal(t, calls.live(), live)
	t.Logf("%d calls of %d threads, %d failed frees, %d blocks live", total, len(want), failed, len(live))
	require.NotZero(t, failed, "no failed free: the test is empty") // cudacalls always frees something twice
}

// checkCalls compares the names of the calls with what the program counted: the function that it called, once.
func checkCalls(t *testing.T, tr *trace, p *target) {
	t.Helper()
	ours := map[string]int{}
	for _, e := range tr.calls() {
		switch e.Kind {
		case event.KindAlloc, event.KindFree:
			ours[e.Call+" ok"]++
		case event.KindFreeFailed:
			ours[e.Call+" ok"]--
			ours[e.Call+" failed"]++
		}
	}
	want := map[string]int{}
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := map[string]*hook.Row{}
	for i := range hook.Rows {
		rows[hook.Rows[i].Symbol] = &hook.Rows[i]
	}
	for _, line := range p.lines {
		var name string
		var ok, failed int
		if n, _ := fmt.Sscanf(line, "CALL %s ok %d failed %d", &name, &ok, &failed); n != 3 || rows[name] == nil {
			continue
		}
		want[rows[name].Name()+" ok"] += ok
		if rows[name].Kind == event.KindFree && failed > 0 {
			want[rows[name].Name()+" failed"] += failed
		}
	}
	require.Equal(t, want, ours)
	require.NotZero(t, ours["cudaMalloc ok"])
	require.NotZero(t, ours["cuMemAlloc ok"])
	require.NotZero(t, ours["cudaMallocAsync ok"])
	require.NotZero(t, ours["cudaMallocManaged ok"])
}

// TestHitsPerProbe checks the two sides of the ring against each other for every probe, where calls nest.
func TestHitsPerProbe(t *testing.T) {
	p, _ := startCalls(t, nil, "--threads", "2", "--rounds", "100")
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	for _, h := range tr.hits(t) {
		require.Equal(t, h.Emitted, h.Received, "%+v", h)
	}
}
