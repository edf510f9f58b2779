//go:build linux

package e2e

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
)

// nativeReport is a report of testdata/programs/natives.c, with the stack that the program has unwound itself.
type nativeReport struct {
	addr  uint64
	tid   uint32
	shape string
	pcs   []uint64 // leaf first, from the function that makes the report
}

func readReports(t *testing.T, path string) []nativeReport {
	t.Helper()
	var out []nativeReport
	eachLine(t, path, func(line []byte) {
		f := strings.Fields(string(line))
		require.GreaterOrEqual(t, len(f), 4, "%s", line)
		r := nativeReport{addr: number(t, f[0]), tid: uint32(number(t, f[1])), shape: f[2]}
		for _, pc := range f[3:] {
			v, err := strconv.ParseUint(pc, 16, 64)
			require.NoError(t, err)
			r.pcs = append(r.pcs, v)
		}
		out = append(out, r)
	})
	require.NotEmpty(t, out)
	return out
}

// startNatives starts a build of natives.c, which waits for release.
func startNatives(t *testing.T, program string, args ...string) *target {
	t.Helper()
	dir := t.TempDir()
	args = append([]string{"--log", filepath.Join(dir, "log"), "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold")}, args...)
	return startIn(t, dir, nil, program, args...).ready(t)
}

func nativesProgram(name string) string { return filepath.Join(env.programs, name) }

// TestNativeStacks compares native stacks of every kind, frame by frame, with what the program's own unwinding finds, however
// the program is linked.
func TestNativeStacks(t *testing.T) {
	for _, program := range []string{"natives", "natives-now", "natives-fixed", "static/libc10.so", "static-pie/libc10.so"} {
		t.Run(program, func(t *testing.T) {
			checkNatives(t, startNatives(t, nativesProgram(program)))
		})
	}
}

// checkNatives traces a target of one round.
func checkNatives(t *testing.T, p *target) {
	t.Helper()
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.done(t)
	linker := linkerOf(t, p)
	tr.finishWhole(t)
	requireReports(t, tr, readReports(t, filepath.Join(p.dir, "log")), linker)
}

// linkerOf finds the code of the dynamic linker; none in a static program.
func linkerOf(t *testing.T, p *target) []process.Mapping {
	t.Helper()
	proc, err := process.Open(p.pid)
	require.NoError(t, err)
	maps, err := proc.Maps()
	require.NoError(t, err)
	return slices.DeleteFunc(maps, func(m process.Mapping) bool { return !m.Exec || !strings.HasPrefix(m.Base(), "ld-linux") })
}

// partialShapes are those whose stacks end early, and how.
var partialShapes = map[string][]event.StackStatus{
	"too_deep":      {event.StatusTooDeep},
	"without_rules": {event.StatusNoRow},
	"generated":     {event.StatusNoRow, event.StatusNoMapping},
}

// requireReports compares every report with its event: there are no others.
func requireReports(t *testing.T, tr *trace, reports []nativeReport, linker []process.Mapping) {
	t.Helper()
	events := map[uint64]*event.Event{}
	for i := range tr.events {
		events[tr.events[i].Addr] = &tr.events[i]
	}
	require.Len(t, tr.events, len(reports))
	require.Len(t, events, len(reports))
	seen, odd := map[string]int{}, 0
	for i := range reports {
		r := &reports[i]
		e := events[r.addr]
		require.NotNil(t, e, "%+v", r)
		require.Equal(t, r.tid, e.TID, r.shape)
		st := tr.Stack(e.Stack)
		require.NotNil(t, st, r.shape)
		if r.oddlyStepped(st, linker) {
			odd++
		} else {
			require.Empty(t, r.fault(st), "%s: %s\n%x\n%x", r.shape, st.Status, nativePCs(st), r.pcs)
		}
		seen[r.shape]++
	}
	t.Logf("%d reports of %d shapes; %d in the middle of a prologue without a rule", len(reports), len(seen), odd)
	require.Less(t, odd, 1+len(reports)/2)
}

// fault says how a stack differs; empty: not at all. The leaf is the probe, in the function that is reported to; behind it is
// the function that reports, which unwinds at another of its calls.
func (r *nativeReport) fault(st *event.Stack) string {
	pcs, want := nativePCs(st), r.pcs
	if statuses, ok := partialShapes[r.shape]; ok {
		if !slices.Contains(statuses, st.Status) || r.shape == "too_deep" && len(pcs) < 300 {
			return "does not say that it is cut"
		}
		if len(pcs)-1 > len(want) {
			return "too long"
		}
		want = want[:len(pcs)-1]
	} else if st.Status != event.StatusOK {
		return "incomplete"
	}
	if len(pcs) < 2 || max(pcs[1], want[0])-min(pcs[1], want[0]) > 200 || !slices.Equal(pcs[2:], want[1:]) {
		return "differs"
	}
	return ""
}

// oddlyStepped reports whether a stack ends where a signal has met a prologue or epilogue that counts the frame from another
// register, the linker's function that binds a symbol, or code without rules, where the program's own unwinding ends too. Up
// to there it must be right.
func (r *nativeReport) oddlyStepped(st *event.Stack, linker []process.Mapping) bool {
	pcs := nativePCs(st)
	if r.shape == "step" && st.Status == event.StatusNoRow {
		return slices.Equal(pcs[2:], r.pcs[1:])
	}
	if r.shape != "step" || st.Status != event.StatusBadRule || len(pcs)-1 > len(r.pcs) || !slices.Equal(pcs[2:], r.pcs[1:len(pcs)-1]) {
		return false
	}
	last := pcs[len(pcs)-1]
	const handler = 5 // frames: the report function, two of the reports, the handler, the trampoline
	return len(pcs) == handler+1 || slices.ContainsFunc(linker, func(m process.Mapping) bool { return m.Start <= last && last < m.End })
}
