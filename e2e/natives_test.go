// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
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
	args = append([]string{"--log", filepath.Join(dir, "log"), "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold")},
		args...)
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
	checkNativesBy(t, p, options())
}

func checkNativesBy(t *testing.T, p *target, o *tracer.Options) {
	t.Helper()
	tr := attach(t, p.pid, o, nil)
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
	"without_rules": {event.StatusNoRow, event.StatusGuessed},
	"generated":     {event.StatusNoRow, event.StatusNoMapping, event.StatusGuessed},
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
		st := tr.target.Stack(e.Stack)
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
		if !slices.Contains(statuses, st.Status) || r.shape == "too_deep" && len(pcs) < 2500 {
			return "does not say that it is cut"
		}
		if st.Status == event.StatusGuessed { // further than the program's own unwinding
			if nativeFrames(st, "generated") != 1 || nativeFrames(st, "run_round") != 1 || nativeFrames(st, "main") != 1 {
				return "is guessed wrongly"
			}
			pcs = pcs[:len(want)+1]
		}
		if len(pcs)-1 > len(want) {
			return "too long"
		}
		want = want[:len(pcs)-1]
	} else if !st.Status.Complete() {
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
	if r.shape == "step" && (st.Status == event.StatusNoRow || st.Status == event.StatusGuessed) {
		return len(pcs) > len(r.pcs) && slices.Equal(pcs[2:len(r.pcs)+1], r.pcs[1:])
	}
	if r.shape == "step" && st.Status == event.StatusGuessed { // goes on from there
		return len(pcs) > len(r.pcs) && slices.Equal(pcs[2:len(r.pcs)+1], r.pcs[1:])
	}
	if r.shape != "step" || st.Status != event.StatusBadRule || len(pcs)-1 > len(r.pcs) || !slices.Equal(pcs[2:], r.pcs[1:len(pcs)-1]) {
		return false
	}
	last := pcs[len(pcs)-1]
	const handler = 5 // frames: the report function, two of the reports, the handler, the trampoline
	return len(pcs) == handler+1 || slices.ContainsFunc(linker, func(m process.Mapping) bool { return m.Start <= last && last < m.End })
}

// comesAndGoes are the libraries that a program loads one after the other, to the same address.
const comesAndGoes = "comes-a.so,comes-b.so,comes-a.so,comes-b.so"

// TestLibrariesComeAndGo: a library that is loaded is followed as soon as its mapping is read, and when another takes its place no
// stack is unwound by the rules of the first, or has its name.
func TestLibrariesComeAndGo(t *testing.T) {
	var paths []string
	for _, name := range strings.Split(comesAndGoes, ",") {
		paths = append(paths, nativesProgram(name))
	}
	p := startNatives(t, nativesProgram("natives"), "--libraries", strings.Join(paths, ","))
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	at := map[string]bool{}
	for _, line := range p.output() {
		if strings.HasPrefix(line, "AT ") {
			at[line] = true
		}
	}
	require.Len(t, at, 1, "the libraries do not take each other's place")
	reports := readReports(t, filepath.Join(p.dir, "log"))
	calls := len(reports) / len(paths)
	events := tr.layer(event.LayerAllocator)
	require.Len(t, events, len(reports))
	for i := range paths {
		t.Logf("%d of %d calls unwound", requireLibrary(t, tr, reports[i*calls:(i+1)*calls], filepath.Base(paths[i])), calls)
	}
}

// requireLibrary checks the calls through a library: to the end, or up to it where its mapping was not read in time. It gives the
// number of those that are complete.
func requireLibrary(t *testing.T, tr *trace, reports []nativeReport, library string) int {
	t.Helper()
	events := map[uint64]*event.Event{}
	for i := range tr.events {
		events[tr.events[i].Addr] = &tr.events[i]
	}
	complete := 0
	for i := range reports {
		r := &reports[i]
		st := tr.target.Stack(events[r.addr].Stack)
		const inLibrary = 4 // frames from the leaf: the report function, two of the reports, the callback
		if st.Status == event.StatusNoMapping {
			require.Len(t, st.Frames, inLibrary+1)
			require.Equal(t, r.pcs[1:inLibrary], nativePCs(st)[2:])
			continue
		}
		complete++
		require.Empty(t, r.fault(st), "%s: %s\n%x\n%x", library, st.Status, nativePCs(st), r.pcs)
		require.Equal(t, library, filepath.Base(st.Frames[inLibrary].Module.Path), "call %d", i)
	}
	require.NotZero(t, complete, "%s was never known", library)
	return complete
}

// TestReplacedFiles: a program whose file, and that of the library with the probe, were removed, or are other files by now, is traced
// by what it has mapped.
func TestReplacedFiles(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, path string){
		"deleted": func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) },
		"another": func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path))
			copyFile(t, nativesProgram("comes-a.so"), path)
		},
		"moved": func(t *testing.T, path string) { require.NoError(t, os.Rename(path, path+".old")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program, library := filepath.Join(dir, "natives"), filepath.Join(dir, "libc10.so")
			copyFile(t, nativesProgram("natives"), program)
			copyFile(t, nativesProgram("libc10.so"), library)
			p := startNatives(t, program, "--brief")
			replace(t, program)
			replace(t, library)
			checkNatives(t, p)
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, b, 0o755))
}

// TestOtherRoot: the paths of a program in a root directory of its own, or in a mount namespace, mean nothing to the tracer.
func TestOtherRoot(t *testing.T) {
	t.Run("chroot", func(t *testing.T) {
		root := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755))
		copyFile(t, nativesProgram("static/libc10.so"), filepath.Join(root, "libc10.so"))
		p := startIn(t, root, nil, "chroot", root, "/libc10.so", "--log", "/log", "--go", "/go", "--hold", "/hold", "--brief").ready(t)
		checkNatives(t, p)
	})
	t.Run("mount namespace", func(t *testing.T) {
		dir := t.TempDir()
		hidden := filepath.Join(dir, "hidden")
		require.NoError(t, os.Mkdir(hidden, 0o755))
		script := `mount -t tmpfs none "$1" && cp "$2" "$3" "$1" && exec "$1/natives" --log "$4/log" --go "$4/go" --hold "$4/hold" --brief`
		p := startIn(t, dir, nil, "unshare", "--mount", "sh", "-c", script, "sh", hidden, nativesProgram("natives"),
			nativesProgram("libc10.so"), dir).ready(t)
		require.NoFileExists(t, filepath.Join(hidden, "natives"))
		checkNatives(t, p)
	})
}

// TestReturnProbesOnTheStack: while another tool has return probes on functions of the stack, at several depths, in recursions and
// on functions that are left by longjmp, the stacks are those that they are without it.
func TestReturnProbesOnTheStack(t *testing.T) {
	p := startNatives(t, nativesProgram("natives"), "--rounds", "2", "--brief")
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.await(t, "ROUND 1")
	probes := returnProbes(t, nativesProgram("natives"), p.pid, "main", "run_round", "descend", "thread_main", "on_signal", "compare")
	p.touch(t, "go.2")
	p.done(t)
	for _, l := range probes {
		require.NoError(t, l.Close())
	}
	tr.finishWhole(t)
	reports := readReports(t, filepath.Join(p.dir, "log"))
	require.Zero(t, len(reports)%2)
	events := map[uint64]*event.Event{}
	for i := range tr.events {
		events[tr.events[i].Addr] = &tr.events[i]
	}
	seen := map[string]int{}
	first, second := reports[:len(reports)/2], reports[len(reports)/2:]
	for i := range first {
		a, b := &first[i], &second[i]
		require.Equal(t, a.shape, b.shape)
		if a.shape == "generated" { // the code lies elsewhere
			continue
		}
		one, other := tr.target.Stack(events[a.addr].Stack), tr.target.Stack(events[b.addr].Stack)
		require.Equal(t, one.Status, other.Status, a.shape)
		require.Equal(t, nativePCs(one), nativePCs(other), a.shape)
		seen[a.shape]++
	}
	require.Greater(t, len(seen), 25)
}

// returnProbes places return probes as another tool would, with a program that does nothing.
func returnProbes(t *testing.T, path string, pid int, functions ...string) []link.Link {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = prog.Close() })
	ex, err := link.OpenExecutable(path)
	require.NoError(t, err)
	var out []link.Link
	for _, f := range functions {
		l, err := ex.Uretprobe(f, prog, &link.UprobeOptions{PID: pid})
		require.NoError(t, err, f)
		out = append(out, l)
	}
	return out
}

// TestStorm: many threads, more than there are cores, allocate under timer signals, signals between threads and forks. Every
// stack is the one that the program has unwound itself.
func TestStorm(t *testing.T) {
	reports := 500 // of each thread
	if n, err := strconv.Atoi(os.Getenv("GPUTRACE_STORM")); err == nil {
		reports = n
	}
	checkNatives(t, startNatives(t, nativesProgram("natives"), "--threads", "16", "--storm", itoa(reports)))
}
