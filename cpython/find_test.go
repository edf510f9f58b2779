// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bufio"
	"bytes"
	"errors"
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

	"github.com/gputrace/gputrace/process"
)

const waits = "import sys; print('ready', flush=True); sys.stdin.read()"

func TestFindUnknownVersion(t *testing.T) {
	for want, head := range map[string][]uint64{"3.16.2": {0x031002f0, 0}, "3.16.2t": {0x031002f0, 1}, "4.0.0": {0x040000f0, 0}} {
		m := image{addrRuntime: []byte(debugCookie)}
		m.put(addrRuntime, head...)
		_, err := newRuntime(m, &located{runtime: addrRuntime})
		var unknown *UnknownVersionError
		require.ErrorAs(t, err, &unknown)
		assert.Equal(t, want, unknown.Version.String())
	}
}

func TestFindNoPython(t *testing.T) {
	_, err := Find(start(t, "/bin/sh", "-c", "echo ready; read x"))
	assert.ErrorIs(t, err, ErrNoPython)
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	_, err = Find(p)
	assert.ErrorIs(t, err, ErrNoPython)
}

// A deleted interpreter under a name that says nothing: found by its symbol, through the mapping.
func TestFindByAnyName(t *testing.T) {
	b, err := os.ReadFile(systemPython(t))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "renamed")
	require.NoError(t, os.WriteFile(path, b, 0o700))
	p := start(t, path, "-c", waits)
	require.NoError(t, os.Remove(path))
	r, err := Find(p)
	require.NoError(t, err)
	assert.Equal(t, path, r.Module)
	assert.NotZero(t, r.Descriptor.TLSOffset)
}

// Sub-interpreters have thread states of their own, several for one thread.
func TestSubinterpreters(t *testing.T) {
	for _, row := range []struct {
		version, module string
		want            int // interpreters with a thread state: from 3.13 on one that runs nothing has none
	}{
		{"3.8.18", "_xxsubinterpreters", 3}, {"3.9.18", "_xxsubinterpreters", 3}, {"3.10.13", "_xxsubinterpreters", 3},
		{"3.11.7", "_xxsubinterpreters", 3}, {"3.12.1", "_xxsubinterpreters", 3},
		{"3.13.0", "_interpreters", 2}, {"3.14", "_interpreters", 2}, {"3.15", "_interpreters", 2},
	} {
		p := start(t, pythonOf(t, row.version), "-c", fmt.Sprintf(
			"import %s as i; a, b = i.create(), i.create(); i.run_string(a, %q)", row.module, waits))
		r, err := Find(p)
		require.NoError(t, err)
		threads, err := r.Threads(p)
		require.NoError(t, err)
		interpreters := map[uint64]bool{}
		for _, th := range threads {
			interpreters[th.Interp] = true
		}
		assert.Len(t, interpreters, row.want, row.version)
		assert.Equal(t, 3, r.Interpreters(p), row.version)
		assert.Equal(t, r.Version.Minor < 12, r.Beside(p) == "2 sub-interpreters", row.version)
		if key := r.key(p); key >= 0 {
			assert.Equal(t, int64(tcbKeys+tsdSize*key+tsdData), r.Descriptor.TLSOffset)
		}
	}
}

// Programs that embed the interpreter, which is a library then, with keys in the way.
func TestEmbedded(t *testing.T) {
	for _, version := range installed {
		program := compileEmbed(t, version)
		for _, row := range []struct {
			before, copies int
		}{
			{before: 0}, {before: 7, copies: 1}, {before: 20, copies: 1}, {before: 60}, {before: 40, copies: 1},
		} {
			t.Run(fmt.Sprintf("%s/%d/%d", version, row.before, row.copies), func(t *testing.T) {
				p := start(t, program[0], append(program[1:], strconv.Itoa(row.before), strconv.Itoa(row.copies))...)
				r, err := Find(p)
				require.NoError(t, err)
				threads, err := r.Threads(p)
				require.NoError(t, err)
				assert.Len(t, threads, 4)
				for _, th := range threads {
					assert.Equal(t, th.State, stateOf(t, p, r, th.Handle))
				}
				want := slot{r.Descriptor.TLSOffset, r.Descriptor.TLSBlock}
				blind := *r.layout
				if hasKey(r.layout) {
					key := r.key(p)
					assert.GreaterOrEqual(t, key, row.before)
					assert.Equal(t, threadABI{}.slotOfKey(key), want)
					blind.runtimeKey = 0
				} else {
					v, ok := r.abi.threadLocal(p, r.getter)
					require.True(t, ok)
					at, ok := v.from(p, threads[0].Handle)
					require.True(t, ok)
					assert.Equal(t, want.offset, at)
				}

				// Without the interpreter's word on it, the threads alone must show the same slot.
				got, err := (&Runtime{Address: r.Address, layout: &blind}).findSlot(p, threads)
				require.NoError(t, err)
				assert.Equal(t, want, got)
			})
		}
	}
}

// compileEmbed makes the program, and returns the command that runs it: with Debian's library by the libc that belongs to it.
func compileEmbed(t *testing.T, version string) []string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "embed")
	prefix, short, command := "", version, []string{out}
	var include, lib string
	if ofDebian(version) {
		prefix = debianPrefix(t, version)
		include, lib = filepath.Join(prefix, "include"), filepath.Join(prefix, "root/usr/lib/x86_64-linux-gnu")
		command = []string{"env", "PYTHONHOME=" + filepath.Join(prefix, "root/usr"), filepath.Join(lib, "ld-linux-x86-64.so.2"),
			"--library-path", lib, out}
	} else {
		prefix, short = pyenvPrefix(t, version), version[:strings.LastIndexByte(version, '.')]
		include, lib = filepath.Join(prefix, "include"), filepath.Join(prefix, "lib")
	}
	b, err := exec.Command("gcc", "-w", "-pthread", "-I"+include, "-I"+filepath.Join(include, "python"+short), "testdata/embed.c", "-o", out,
		"-L"+lib, "-Wl,-rpath,"+lib, "-Wl,--allow-shlib-undefined", "-l:libpython"+short+".so.1.0").CombinedOutput()
	require.NoError(t, err, "%s", b)
	return command
}

// gdb's backtrace tells how many activations of the eval loop a thread has, and where each lies on the native stack: the
// boundary that the interpreter keeps there (3.10 to 3.12: the cframe, from 3.13 on: the shim) must lie in exactly one of
// them. Before, nothing lies there, and the activations are those whose pc is in the eval loop. Debian's executable has no
// names by which gdb could tell them.
func TestActivations(t *testing.T) {
	for _, version := range ofPyenv() {
		t.Run(version, func(t *testing.T) {
			p, o := startOracle(t, pythonOf(t, version))
			r, err := Find(p)
			require.NoError(t, err)
			evals := gdbEvals(t, p.PID)
			for _, th := range o.Threads {
				state := stateOf(t, p, r, th.Ident)
				frames, err := r.stack(p, state)
				require.NoError(t, err)
				entries := 0
				for _, f := range frames {
					if f.Entry {
						entries++
					}
				}
				got := evals[th.Native]
				require.Len(t, got, entries, "thread %d", th.Native)
				if r.Descriptor.Entry == EntryCode {
					for _, e := range got {
						assert.True(t, slices.ContainsFunc(r.Eval, func(r Range) bool { return r.Start <= e.pc && e.pc < r.Limit }), "%#x", e.pc)
					}
					continue
				}
				assert.Empty(t, r.Eval)
				boundaries := boundariesOf(t, p, r, state)
				require.Len(t, boundaries, entries)
				for i, at := range boundaries {
					assert.True(t, got[i].Start <= at && at < got[i].Limit, "activation %d: %#x is not in %#x", i, at, got[i])
				}
			}
		})
	}
}

// activation is where a native frame of the eval loop lies on the stack, and its pc.
type activation struct {
	Range
	pc uint64
}

func gdbEvals(t *testing.T, pid int) map[uint64][]activation {
	t.Helper()
	var stderr bytes.Buffer
	cmd := exec.Command("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off",
		"-p", strconv.Itoa(pid), "-x", "testdata/activations.py")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	evals := map[uint64][]activation{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		var tid uint64
		var a activation
		if _, err := fmt.Sscanf(s.Text(), "eval %d %d %d %d", &tid, &a.Start, &a.Limit, &a.pc); err == nil {
			evals[tid] = append(evals[tid], a)
		}
	}
	require.NotEmpty(t, evals, "%s\n%s", out, stderr.String())
	return evals
}

// boundariesOf are the addresses on the native stack that belong to one activation each, innermost first.
func boundariesOf(t *testing.T, p *process.Process, r *Runtime, state uint64) []uint64 {
	t.Helper()
	d := r.Descriptor
	var out []uint64
	if d.TStateCFrame != NoField {
		return cframes(t, p, r, state)
	}
	frame, err := r.innermost(p, state)
	for ; frame != 0; frame, err = process.Uint64(p, frame+uint64(d.FramePrevious)) {
		require.NoError(t, err)
		b, err := read(p, frame, int(d.FrameSize))
		require.NoError(t, err)
		if b[d.FrameOwner] >= d.OwnerShim {
			out = append(out, frame)
		}
	}
	return out
}

func TestVersionFromStrings(t *testing.T) {
	for _, row := range []struct {
		constants, want string
	}{
		{"\x00/opt/python/3.10.13\x00lib/python3.10\x00", "3.10.13"},
		{"\x003.10.4\x00/usr/lib/python3.10\x003.2.0\x00", "3.10.4"},
		{"\x003.9.2+\x00python3.9\x00", "3.9.2"},
		{"\x003.10.0rc2\x00python3.10\x00", "3.10.0"},
		{"\x003.9.1\x003.8.1\x00python3.8\x00", "3.8.1"},
		{"\x0013.10.1\x00python3.10\x00", "3.10"},
		{"python3.10\x00", "3.10"},
		{"\x003.10.13\x00", ""},
		{"python3.11\x00\x003.11.2\x00", ""},
		{"", ""},
	} {
		v, ok := versionFromStrings([]byte(row.constants))
		assert.Equal(t, row.want != "", ok, row.constants)
		if ok {
			assert.Equal(t, row.want, v.String())
		}
	}
}

func TestErrors(t *testing.T) {
	assert.EqualError(t, &UnknownVersionError{Version{3, 16, 0, true}}, "python 3.16.0t: layout not known")
	assert.EqualError(t, &LayoutError{Version{3, 9, 2, false}, "code: f"},
		"python 3.9.2: not laid out as the release of that version: code: f")
	assert.False(t, errors.Is(ErrNotReady, ErrNoPython))
}
