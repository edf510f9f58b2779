// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// wordsAt is memory of a process by address.
type wordsAt map[uint64]uint64

func (w wordsAt) ReadAt(b []byte, addr uint64) (int, error) {
	v, ok := w[addr]
	if !ok || len(b) != 8 {
		return 0, errors.New("nothing there")
	}
	binary.LittleEndian.PutUint64(b, v)
	return 8, nil
}

// loopLibrary builds a library with an interpreter's loop and another function, and returns an address after a call in each.
func loopLibrary(t *testing.T) (*symbolize.File, map[string]uint64) {
	lib := elftest.Build(t, "loop.c", "void use(void); void _PyEval_EvalFrameDefault(void) { use(); use(); } void other(void) { use(); "+
		"use(); }")
	f, err := os.Open(lib)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	file, err := symbolize.Open(f, lib)
	require.NoError(t, err)
	pcs := map[string]uint64{}
	for _, name := range []string{"_PyEval_EvalFrameDefault", "other"} {
		s, ok := file.Find(name)
		require.True(t, ok)
		pcs[name] = s.Addr + 1
	}
	return file, pcs
}

// TestMissingPython: each call of the eval loop runs Python frames. Where it has none in the stack, lines are missing: the
// stack is not complete, and the line further out is not the one that allocated.
func TestMissingPython(t *testing.T) {
	file, pcs := loopLibrary(t)
	region := func(base uint64, path string) mapped.Region {
		r := mapped.NewRegion(at(base, base+1<<16, path), &mapped.File{Symbols: file})
		r.Bias = base
		return r
	}
	const python, second, starter = 0x10000, 0x20000, 0x30000
	regions := []mapped.Region{region(python, "/lib/libpython3.11.so.1.0"), region(second, "/lib/libpython3.13.so.1.0"),
		region(starter, "/site/_greenlet.cpython-311.so")}

	native, loop := python+pcs["other"], python+pcs["_PyEval_EvalFrameDefault"]
	otherLoop, starts := second+pcs["_PyEval_EvalFrameDefault"], starter+pcs["other"]
	const inner, outer, instruction = 1<<63 | 0x7000, 1<<63 | 0x8000, 0
	const done, noMapping, state = event.StatusOK, event.StatusNoMapping, event.StatusPythonState
	const otherText = "<line not known: another Python ran it, libpython3.13.so.1.0>"
	for name, c := range map[string]struct {
		entry        cpython.EntryKind
		words        []uint64
		status, want event.StackStatus
		python       []string // names of the Python frames, leaf first
		interpreters int
	}{
		"complete": {0, []uint64{native, loop, inner, instruction, native, loop, outer, instruction}, done, done,
			[]string{"inner", "outer"}, 1},
		"no Python":      {0, []uint64{native, native}, done, done, nil, 1},
		"another Python": {0, []uint64{native, otherLoop, native}, done, state, []string{otherText}, 1},
		"called from another Python": {0, []uint64{native, loop, inner, instruction, otherLoop}, done, state, []string{"inner", otherText},
			1},
		"a sub-interpreter called": {0, []uint64{native, loop, native, loop, outer, instruction}, done, state,
			[]string{unreadSub, "outer"}, 2},
		"a frame is lost": {0, []uint64{native, loop, native, loop, outer, instruction}, done, state,
			[]string{unreadLost, "outer"}, 1},
		"3.9 gives frames in their order": {cpython.EntryCode, []uint64{native, loop, outer, instruction, native, loop}, state, state,
			[]string{unreadSub, "outer", unreadSub}, 2},
		"broke off": {0, []uint64{native, loop, inner, instruction, native, loop}, noMapping, noMapping, []string{"inner"},
			1},
		"greenlet": {0, []uint64{native, loop, inner, instruction, starts, starts, native, loop}, noMapping, done,
			[]string{"inner"}, 1},
		"greenlet, over foreign frames": {0, []uint64{native, loop, inner, instruction, starts, loop, native}, done, done, []string{"inner"}, 1},
		"greenlet calls back": {0, []uint64{native, loop, inner, instruction, starts, loop, outer, instruction, native}, noMapping,
			noMapping, []string{"inner", "outer"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			py, err := cpython.RuntimeOf(cpython.Version{Major: 3, Minor: 11})
			require.NoError(t, err)
			py.Module, py.Address = "/lib/libpython3.11.so.1.0", 0x1000
			if c.entry != 0 {
				py.Descriptor.Entry = c.entry
			}
			memory := wordsAt{0x1000 + 0x28: 0x5000, 0x5000: 0} // 3.11: interpreters.head, PyInterpreterState.next
			if c.interpreters == 2 {
				memory[0x5000], memory[0x6000] = 0x6000, 0
			}
			table := newStackTable(DefaultStacks)
			table.codes[0x7000], table.codes[0x8000] = &cpython.Code{Qualname: "inner"}, &cpython.Code{Qualname: "outer"}
			table.add(stackRecord{status: uint8(c.status), hash: 1, words: c.words}, in(regions), memory, py)
			s := table.stack(1)
			require.Equal(t, c.want, s.Status)
			var got []string
			for i := range s.Frames {
				if s.Frames[i].Kind == event.FramePython {
					got = append(got, s.Frames[i].Func)
				}
			}
			require.Equal(t, c.python, got)
		})
	}
}
