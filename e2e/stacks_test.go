//go:build linux

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// stackCall is a call of the report function as the interpreter sees it (testdata/programs/pystacks.py).
type stackCall struct {
	Addr   uint64    `json:"addr"`
	Size   int64     `json:"size"` // negative: a free
	TID    uint32    `json:"tid"`  // 0: a thread without Python
	Shape  string    `json:"shape"`
	Frames []pyFrame `json:"frames"`
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

// TestPythonStacks compares captured stacks with the interpreter's own view, for every shape of Python code.
func TestPythonStacks(t *testing.T) {
	for _, minor := range []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14"} {
		t.Run(minor, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{filepath.Join(env.testdata, "programs", "pystacks.py"), filepath.Join(env.programs, "libc10.so"), filepath.Join(dir, "calls"),
				"--wait", "--go", filepath.Join(dir, "go"), "--hold", filepath.Join(dir, "hold"), "--threads", "2", "--rounds", "3"}
			p := startIn(t, dir, nil, python(t, minor), args...).ready(t)
			o := options()
			o.FreeStacks = true
			tr := attach(t, p.pid, o, nil)
			require.Contains(t, tr.Found().Python, minor)
			p.release(t)
			p.done(t)
			tr.finishWhole(t)
			checkCallsOf(t, tr, readStackCalls(t, filepath.Join(dir, "calls")))
		})
	}
}

// python finds an interpreter by its version: Debian's 3.14, one of pyenv's, or python3.N on the path.
func python(t *testing.T, minor string) string {
	t.Helper()
	if minor == "3.14" {
		folder, err := output(filepath.Join(env.testdata, "debian-python.sh"))
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

func readStackCalls(t *testing.T, path string) []stackCall {
	t.Helper()
	var out []stackCall
	eachLine(t, path, func(b []byte) {
		var c stackCall
		require.NoError(t, json.Unmarshal(b, &c), "%s", b)
		out = append(out, c)
	})
	require.NotEmpty(t, out)
	return out
}

func checkCallsOf(t *testing.T, tr *trace, calls []stackCall) {
	t.Helper()
	events := map[string]*event.Event{}
	refused := map[uint32]int{}
	for i := range tr.events {
		events[eventKey(&tr.events[i], refused)] = &tr.events[i]
	}
	require.Len(t, tr.events, len(calls))
	refused = map[uint32]int{}
	wrong, shapes := map[string]int{}, map[string]bool{}
	for i := range calls {
		c := &calls[i]
		shapes[c.Shape] = true
		e := events[c.key(refused)]
		require.NotNil(t, e, "no event of %+v", c)
		if fault := checkStack(tr, e, c); fault != "" {
			if wrong[c.Shape]++; wrong[c.Shape] == 1 {
				t.Logf("%s: %s\n  ours   %v\n  python %v\n  stack  %s", c.Shape, fault, short(tr.python(e.Stack)), short(c.Frames), short(outline(tr.Stack(e.Stack))))
			}
		}
	}
	assert.Empty(t, wrong, "calls whose stacks differ, by shape")
	require.Greater(t, len(shapes), 25)
	q := tr.quality(tr.events)
	t.Logf("%d calls in %d shapes, %d unique stacks, %d of %d complete", len(calls), len(shapes), len(q.unique), q.complete, q.events)
}

// checkStack says what is wrong with the stack of a call; empty: nothing.
func checkStack(tr *trace, e *event.Event, c *stackCall) string {
	st := tr.Stack(e.Stack)
	switch {
	case st == nil:
		return "no stack"
	case !st.Status.Complete():
		return "incomplete: " + st.Status.String()
	case !sameFrames(tr.python(e.Stack), c.Frames):
		return "Python frames differ"
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
	for _, depth := range []int{1, 100, 160} {
		t.Run(fmt.Sprint(depth), func(t *testing.T) {
			dir := t.TempDir()
			p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", fmt.Sprint(depth), "--batches", "1", "--calls", "10",
				"--go", filepath.Join(dir, "go")).ready(t)
			tr := attach(t, p.pid, options(), nil)
			require.Error(t, tr.Found().PythonErr)
			p.release(t)
			p.wait(t)
			tr.finishWhole(t)
			require.Len(t, tr.events, 10)
			for _, e := range tr.events {
				if e.Kind != event.KindAlloc {
					continue
				}
				st := tr.Stack(e.Stack)
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
	p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--depth", "2000", "--batches", "1", "--calls", "2",
		"--go", filepath.Join(dir, "go")).ready(t)
	tr := attach(t, p.pid, options(), nil)
	p.release(t)
	p.wait(t)
	tr.finishWhole(t)
	st := tr.Stack(tr.events[0].Stack)
	require.Equal(t, event.StatusTooDeep, st.Status)
	require.GreaterOrEqual(t, nativeFrames(st, "descend"), 150, short(outline(st)))
	require.Zero(t, nativeFrames(st, "main"))
}
