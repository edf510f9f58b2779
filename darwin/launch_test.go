// SPDX-License-Identifier: Apache-2.0

package darwin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/darwin/macho"
	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/event"
)

// TestResolve: a script is given to its interpreter by us, since /usr/bin/env and /bin/sh of macOS drop the library.
func TestResolve(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
		return path
	}
	t.Setenv("PATH", dir)
	interpreter := write("python", "\xcf\xfa\xed\xfe")
	write("direct", "#!"+interpreter+" -u\nprint()\n")
	write("env", "#!/usr/bin/env python\nprint()\n")
	write("wrapped", "#!"+filepath.Join(dir, "env")+"\n")
	write("lost", "#!/no/such/python\n")
	for command, want := range map[string]string{
		"python x.py":  interpreter + ": python x.py",
		"direct 1 2":   interpreter + ": " + interpreter + " -u " + dir + "/direct 1 2",
		"env a":        interpreter + ": python " + dir + "/env a",
		"wrapped":      interpreter + ": python " + dir + "/env " + dir + "/wrapped",
		dir + "/env b": interpreter + ": python " + dir + "/env b",
	} {
		p, err := resolve(strings.Fields(command))
		require.NoError(t, err, command)
		require.Equal(t, want, p.path+": "+strings.Join(p.args, " "), command)
	}
	for _, command := range []string{"lost", "nowhere"} {
		_, err := resolve([]string{command})
		require.Error(t, err, command)
	}
	_, err := resolve([]string{"lost"})
	require.ErrorContains(t, err, "interpreter of")
}

// TestExamine: of a program that is none, and of a library of ours, whose signature is as a program's.
func TestExamine(t *testing.T) {
	var b strings.Builder
	e := Examine("/bin/cat")
	require.NoError(t, e.Write(&b))
	require.False(t, e.Works())
	require.Contains(t, b.String(), "no program for macOS")

	path := filepath.Join(t.TempDir(), "python3")
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, library, 0o755))
	b.Reset()
	e = Examine(path)
	require.NoError(t, e.Write(&b))
	require.True(t, e.Works(), b.String())
	require.Contains(t, b.String(), "built for x86_64, arm64\n")
	require.Contains(t, b.String(), "run       ok: nothing keeps libraries out of it\n")
	require.True(t, strings.HasSuffix(b.String(), "gputrace run will see the program's memory\n"))
	require.Empty(t, macho.SystemFolder(path))
}

// TestPlaces: parts of a heap do not overlap, whatever offsets are said, and what was given back is used again.
func TestPlaces(t *testing.T) {
	var a addresses
	p := a.take(100 << 10)
	require.Greater(t, a.take(1).base, p.base+p.size-1)
	at := func(offset, size uint64) uint64 {
		addr, ok := p.put(offset, size)
		require.True(t, ok)
		return addr - p.base
	}
	require.EqualValues(t, 0, at(0, 10<<10))
	require.EqualValues(t, 20<<10, at(20<<10, 10<<10))
	require.EqualValues(t, 10<<10, at(20<<10, 10<<10), "taken: the first that is free")
	require.EqualValues(t, 30<<10, at(event.Unknown, 70<<10), "not known")
	_, ok := p.put(event.Unknown, 1)
	require.False(t, ok, "full")
	p.remove(p.base + 20<<10)
	require.EqualValues(t, 20<<10, at(5, 5<<10))
	_, ok = p.put(0, 200<<10)
	require.False(t, ok, "larger than all")
}

// TestMerge: Python's frames follow the eval loops that run them.
func TestMerge(t *testing.T) {
	table := newStackTable()
	for pc, name := range map[uint64]string{1: "_ZN2at3mps12MPSAllocator8allocateEm", 2: evalLoop, 3: "PyObject_Call", 4: evalLoop + ".cold",
		5: "main"} {
		table.symbols[pc] = &ring.Symbol{PC: pc, Base: 1, Path: "/lib/x", Name: name}
	}
	table.symbols[9] = &ring.Symbol{PC: 9, Path: "/tmp/" + ShimName}
	inner, outer := ring.Frame{Code: 7, Entry: true}, ring.Frame{Code: 8, Entry: true}
	for name, tt := range map[string]struct {
		native []uint64
		frames []ring.Frame
		want   string
		status event.StackStatus
	}{
		"in pairs": {[]uint64{9, 8, 1, 2, 3, 4, 5}, []ring.Frame{{Code: 6}, inner, outer},
			"at::mps::MPSAllocator::allocate E p p PyObject_Call E p main", event.StatusOK},
		"a loop more": {[]uint64{1, 2, 3, 4, 5}, []ring.Frame{inner}, "at::mps::MPSAllocator::allocate p", event.StatusPythonState},
		"no loop": {[]uint64{1, 3}, []ring.Frame{inner, outer}, "at::mps::MPSAllocator::allocate PyObject_Call p p",
			event.StatusPythonState},
		"no Python":     {[]uint64{1, 5}, nil, "at::mps::MPSAllocator::allocate main", event.StatusOK},
		"an odd end":    {[]uint64{1, 2}, []ring.Frame{{Code: 6}}, "at::mps::MPSAllocator::allocate E p", event.StatusOK},
		"without names": {[]uint64{1, 77}, nil, "at::mps::MPSAllocator::allocate 0x4d", event.StatusOK},
	} {
		st := table.merge(&ring.Stack{Python: ring.PythonRead, Native: tt.native, Frames: tt.frames})
		var words []string
		for i := range st.Frames {
			switch f := &st.Frames[i]; {
			case f.Kind == event.FramePython:
				words = append(words, "p")
			case f.Eval:
				words = append(words, "E")
			default:
				words = append(words, f.Label())
			}
		}
		require.Equal(t, tt.want, strings.Join(words, " "), name)
		require.Equal(t, tt.status, st.Status, name)
	}
}

func TestWatermark(t *testing.T) {
	const name = "PYTORCH_MPS_HIGH_WATERMARK_RATIO="
	for v, want := range map[string]float64{"": 1.7, name: 1.7, name + "0.5": 0.5, name + "0": 0} {
		got, ok := watermark([]string{"A=b", v})
		require.True(t, ok, v)
		require.Equal(t, want, got, v)
	}
	for _, v := range []string{"x", "-1"} {
		_, ok := watermark([]string{name + v})
		require.False(t, ok, v)
	}
}
