// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// stackCall is a call of the report function as the interpreter sees it (testdata/programs/pystacks.py).
type stackCall struct {
	Addr  uint64 `json:"addr"`
	Size  int64  `json:"size"` // negative: a free
	TID   uint32 `json:"tid"`  // 0: a thread without Python
	Shape string `json:"shape"`
	Stack int    `json:"stack"`
}

// key finds the event of a call. Addresses are used once; refusals have none and come in the order of their thread.
func (c *stackCall) key(refused map[uint32]int) string {
	switch {
	case c.Addr == 0:
		refused[c.TID]++
		return fmt.Sprint(event.KindOutOfMemory, c.TID, refused[c.TID])
	case c.Size < 0:
		return fmt.Sprint(event.KindFree, c.Addr)
	}
	return fmt.Sprint(event.KindAlloc, c.Addr)
}

func eventKey(e *event.Event, refused map[uint32]int) string {
	if e.Kind == event.KindOutOfMemory {
		refused[e.TID]++
		return fmt.Sprint(e.Kind, e.TID, refused[e.TID])
	}
	return fmt.Sprint(e.Kind, e.Addr)
}

// The calls of each shape of Python code are few in CI. GPUTRACE_STACK_CALLS sets another number; more than stackRun are made
// in several runs. GPUTRACE_STACK_PYTHON adds an interpreter, by its path.
const (
	stackCalls = 30
	stackRun   = 10_000
)

// TestPythonStacks compares captured stacks, for every shape of Python code, with the interpreter's own view, and their
// return addresses with those that glibc's backtrace() found at the same call.
func TestPythonStacks(t *testing.T) {
	calls := stackCalls
	if v := os.Getenv("GPUTRACE_STACK_CALLS"); v != "" {
		var err error
		calls, err = strconv.Atoi(v)
		require.NoError(t, err)
	}
	check := func(t *testing.T, path string) {
		for done := 0; done < calls; done += stackRun {
			checkPythonStacks(t, path, min(calls-done, stackRun), options())
		}
	}
	for _, minor := range []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"} {
		t.Run(minor, func(t *testing.T) { check(t, python(t, minor)) })
	}
	if path := os.Getenv("GPUTRACE_STACK_PYTHON"); path != "" {
		t.Run(filepath.Base(path), func(t *testing.T) { check(t, path) })
	}
	for _, minor := range []string{"3.9", "3.13"} {
		t.Run(minor+" copied", func(t *testing.T) {
			o := options()
			o.Memory = directmap.Copy
			checkPythonStacks(t, python(t, minor), stackCalls, o)
		})
	}
}

// TestCompiledStacks does the same with modules made by Cython and pybind11 between the Python frames.
func TestCompiledStacks(t *testing.T) {
	tools, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python") // it has what requirements.txt lists
	require.NoError(t, err)
	for _, minor := range []string{"3.9", "3.11", "3.13"} { // the three ways to find an eval loop
		t.Run(minor, func(t *testing.T) {
			interpreter, dir := python(t, minor), t.TempDir()
			compileModules(t, tools, interpreter, dir)
			checkPythonStacks(t, interpreter, stackCalls, options(), "--modules", dir)
		})
	}
}

// compileModules makes cyshapes and pbshapes for an interpreter.
func compileModules(t *testing.T, tools, interpreter, dir string) {
	t.Helper()
	out, err := output(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('include'), sysconfig.get_config_var('EXT_SUFFIX'))")
	require.NoError(t, err)
	include, suffix, _ := strings.Cut(strings.TrimSpace(out), " ")
	pybind, err := output(tools, "-c", "import pybind11; print(pybind11.get_include())")
	require.NoError(t, err)
	programs, c := filepath.Join(env.testdata, "programs"), filepath.Join(dir, "cyshapes.c")
	for _, command := range [][]string{
		{tools, "-m", "cython", filepath.Join(programs, "cyshapes.pyx"), "-o", c},
		{"gcc", "-O1", "-g", "-fPIC", "-shared", "-fomit-frame-pointer", "-I", include, c, "-o", filepath.Join(dir, "cyshapes"+suffix)},
		{"g++", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-std=c++17", "-I", include, "-I", strings.TrimSpace(pybind),
			filepath.Join(programs, "pbshapes.cpp"), "-o", filepath.Join(dir, "pbshapes"+suffix)},
	} {
		_, err := output(command[0], command[1:]...)
		require.NoError(t, err)
	}
}

func checkPythonStacks(t *testing.T, python string, calls int, o *tracer.Options, more ...string) {
	t.Helper()
	version, err := output(python, "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])")
	require.NoError(t, err)
	dir := t.TempDir()
	args := []string{filepath.Join(env.testdata, "programs", "pystacks.py"), filepath.Join(env.programs, "libc10.so"),
		filepath.Join(dir, "calls"),
		"--native", filepath.Join(dir, "native"), "--wait", "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold"),
		"--threads", "2", "--calls", fmt.Sprint(calls)}
	args = append(args, more...)
	p := startIn(t, dir, nil, python, args...).ready(t)
	o.FreeStacks = true
	tr := attach(t, p.pid, o, nil)
	require.Contains(t, tr.target.Found().Python, version)
	p.release(t)
	p.done(t)
	tr.finishWhole(t)
	checkCallsOf(t, tr, readStackOracle(t, dir), calls)
}

// python finds an interpreter by its version: Debian's 3.14 or 3.15, one of pyenv's, or python3.N on the path.
func python(t *testing.T, minor string) string {
	t.Helper()
	if minor == "3.14" || minor == "3.15" {
		folder, err := output(filepath.Join(env.testdata, "debian-python.sh"), minor)
		require.NoError(t, err)
		return filepath.Join(folder, "bin", "python"+minor)
	}
	if root, err := exec.Command("pyenv", "root").Output(); err == nil {
		found, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "versions", minor+".*", "bin", "python3"))
		if len(found) > 0 {
			return found[len(found)-1]
		}
	}
	path, err := exec.LookPath("python" + minor)
	require.NoError(t, err, "install CPython %s, with pyenv or as python%s", minor, minor)
	return path
}

func checkCallsOf(t *testing.T, tr *trace, o *stackOracle, atLeast int) {
	t.Helper()
	events := map[string]*event.Event{}
	refused := map[uint32]int{}
	for i := range tr.events {
		events[eventKey(&tr.events[i], refused)] = &tr.events[i]
	}
	require.Equal(t, len(tr.events), len(o.calls))
	refused = map[uint32]int{}
	wrong, shapes, native, left := map[string]int{}, map[string]int{}, 0, uint64(0)
	for i := range o.calls {
		c := &o.calls[i]
		shapes[c.Shape]++
		key := c.key(refused)
		e := events[key]
		require.NotNil(t, e, "no event of %+v", c)
		pcs := o.native[key]
		if pcs != 0 {
			native++
		}
		if leftRaw(tr, e, c) {
			left++
		}
		if fault := o.check(tr, e, c, pcs); fault != "" {
			if wrong[c.Shape]++; wrong[c.Shape] == 1 {
				t.Logf("%s: %s\n  ours   %v\n  python %v\n  stack  %s", c.Shape, fault, short(tr.python(e.Stack)), short(o.stacks[c.Stack]),
					short(outline(tr.target.Stack(e.Stack))))
			}
		}
	}
	assert.Empty(t, wrong, "calls whose stacks differ, by shape")
	raw := tr.RawStacks()
	require.Equal(t, raw.OverRate+raw.NoRoom, left, "each stack that was not sent raw is counted, and no other ends early")
	require.Greater(t, len(shapes), 25)
	for shape, n := range shapes {
		require.GreaterOrEqual(t, n, atLeast, shape)
	}
	require.Greater(t, native, len(o.calls)*9/10, "calls with native stacks to compare with")
	q := tr.quality(tr.events)
	t.Logf("%d calls in %d shapes, %d unique stacks, %d of %d complete", len(o.calls), len(shapes), len(q.unique), q.complete, q.events)
}

// beyondLimit are the shapes that are deeper than a stack can be: the leaf side is kept.
var beyondLimit = []string{"too_deep", "too_deep_native"}

// leftRaw reports whether a stack that the kernel cannot unwind was not sent raw: there were too many of them in a second.
func leftRaw(tr *trace, e *event.Event, c *stackCall) bool {
	st := tr.target.Stack(e.Stack)
	return c.Shape == "odd_frames" && st != nil && st.Status == event.StatusBadRule
}

// checkStack says what is wrong with the stack of a call; empty: nothing.
func checkStack(tr *trace, e *event.Event, c *stackCall, want []pyFrame, pcs []uint64) string {
	st := tr.target.Stack(e.Stack)
	if st == nil {
		return "no stack"
	}
	ours, native := tr.python(e.Stack), returnAddresses(st)
	inSub := c.Shape == "subinterpreters"
	if inSub { // the frames of the interpreter that called it are not found, nor named by Python
		ours = slices.DeleteFunc(ours, func(f pyFrame) bool { return strings.HasPrefix(f.Name, "<line not known: ") })
	}
	deep := slices.Contains(beyondLimit, c.Shape)
	if deep {
		want, pcs = want[:min(len(ours), len(want))], pcs[:min(len(native), len(pcs))]
	}
	switch {
	case !sameFrames(ours, want):
		return "Python frames differ"
	case leftRaw(tr, e, c) && len(native) < len(pcs) && slices.Equal(native, pcs[:len(native)]):
		return ""
	case deep && st.Status != event.StatusTooDeep, !deep && !st.Status.Complete() && (!inSub || st.Status != event.StatusPythonState):
		return "status: " + st.Status.String()
	case deep && len(ours) < 20:
		return "few Python frames are left"
	case pcs != nil && !slices.Equal(native, pcs):
		return fmt.Sprintf("return addresses differ: %x, want %x", native, pcs)
	case st.Frames[0].Kind != event.FrameNative:
		return "the leaf is not native, but a C function made the call"
	case c.Shape == "native_recursion" && !oneOf(nativeFrames(st, "probe_deep"), 1, 30):
		return fmt.Sprint(nativeFrames(st, "probe_deep"), " frames of probe_deep, not 1 or 30")
	case c.Shape == "realigned_frame" && nativeFrames(st, "probe_realigned") != 1:
		return "probe_realigned is missing"
	case c.Shape == "qsort_callback" && !between(st, "probe_via_qsort"), c.Shape == "qsort_callback" && !between(st, "qsort"):
		return "qsort does not lie between the Python frames"
	case (c.Shape == "odd_frames") != (st.Status == event.StatusUnwound):
		return "unwound by the wrong side: " + st.Status.String()
	case c.Shape == "odd_frames" && !betweenOne(st, "probe_cfa_r", "probe_expression", "probe_return_in_r13"):
		return "the odd frame does not lie between the Python frames"
	case c.Shape == "cython" && !betweenOne(st, "__pyx_", "__Pyx_"):
		return "no function of Cython's lies between the Python frames"
	case c.Shape == "pybind11" && !between(st, "pybind11::") && len(want) > 1:
		return "no function of pybind11's lies between the Python frames"
	case c.Shape == "python_native_python" && !between(st, "probe_call"):
		return "probe_call does not lie between the Python frames"
	}
	return ""
}

func oneOf(n int, allowed ...int) bool {
	for _, a := range allowed {
		if n == a {
			return true
		}
	}
	return false
}

func nativeFrames(st *event.Stack, name string) int {
	n := 0
	for _, f := range st.Frames {
		if f.Kind == event.FrameNative && f.Func == name {
			n++
		}
	}
	return n
}

// between reports whether a native function has Python frames on both sides, and lies where it is called: with no Python
// frame between it and the one that it calls.
func between(st *event.Stack, name string) bool {
	leafward := false
	for i, f := range st.Frames {
		if f.Kind == event.FramePython {
			leafward = true
			continue
		}
		if !strings.HasPrefix(f.Func, name) || !leafward {
			continue
		}
		for _, r := range st.Frames[i:] {
			if r.Kind == event.FramePython {
				return true
			}
		}
	}
	return false
}

func betweenOne(st *event.Stack, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return between(st, name) })
}

// short keeps the leaf side of what is printed.
func short(v any) string {
	s := []rune(fmt.Sprint(v))
	return string(s[:min(len(s), 300)])
}

// outline is a stack in short, leaf first.
func outline(st *event.Stack) string {
	if st == nil {
		return "none"
	}
	var out []string
	for i := range st.Frames {
		f := &st.Frames[i]
		if f.Kind == event.FramePython {
			out = append(out, "["+f.Label()+"]")
		} else {
			out = append(out, f.Label())
		}
	}
	return st.Status.String() + ": " + strings.Join(out, " ")
}

// TestDeepNative checks that native recursion is followed to its outermost frame.
func TestDeepNative(t *testing.T) {
	for _, depth := range []int{1, 100, 1024, 2500} { // the last is close to MAX_NATIVE in bpf/limits.h
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			dir := t.TempDir()
			p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", fmt.Sprint(depth), "--batches", "1", "--calls", "10",
				"--go", filepath.Join(dir, "go")).ready(t)
			tr := attach(t, p.pid, options(), nil)
			require.Error(t, tr.target.Found().PythonErr)
			p.release(t)
			p.wait(t)
			tr.finishWhole(t)
			require.Len(t, tr.events, 10)
			for _, e := range tr.events {
				if e.Kind != event.KindAlloc {
					continue
				}
				st := tr.target.Stack(e.Stack)
				require.Equal(t, event.StatusOK, st.Status, outline(st))
				require.Equal(t, depth, nativeFrames(st, "descend"), outline(st))
				require.Equal(t, 1, nativeFrames(st, "main"), outline(st))
			}
		})
	}
}

// TestTooDeep checks that a stack beyond the limit keeps its leaf side and says so.
func TestTooDeep(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", "5000", "--batches", "1", "--calls", "2",
		"--go", filepath.Join(dir, "go")).ready(t)
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.wait(t)
	tr.finishWhole(t)
	st := tr.target.Stack(tr.events[0].Stack)
	require.Equal(t, event.StatusTooDeep, st.Status)
	require.GreaterOrEqual(t, nativeFrames(st, "descend"), 2500, short(outline(st)))
	require.Zero(t, nativeFrames(st, "main"))
}
