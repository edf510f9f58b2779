// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/elftest"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// in looks mappings up among regions.
func in(regions []mapped.Region) func(pc uint64) *mapped.Region {
	return func(pc uint64) *mapped.Region { return mapped.Find(regions, pc) }
}

func TestStackFrames(t *testing.T) {
	regions := regionsOf(at(0x1000, 0x2000, "/lib/a.so"), at(0x2000, 0x3000, "/lib/b.so"))
	table := newStackTable(DefaultStacks)
	table.add(stackRecord{status: 0, hash: 5, words: []uint64{0x1010, 0x2000, 1<<63 | 0x7000, 9, 0x9999, 1 << 63}}, in(regions), &image{}, nil)
	s := table.stack(5)
	require.NotNil(t, s)
	require.Equal(t, event.StatusOK, s.Status)
	require.Len(t, s.Frames, 5)

	leaf := s.Frames[0]
	require.Equal(t, event.FrameNative, leaf.Kind)
	require.EqualValues(t, 0x1010, leaf.Addr)
	require.Equal(t, "/lib/a.so", leaf.Module.Path)
	require.EqualValues(t, 0x10, leaf.Offset)
	require.False(t, leaf.Eval)

	// A return address on the border belongs to the call before it, in the other file.
	caller := s.Frames[1]
	require.EqualValues(t, 0x2000, caller.Addr)
	require.Equal(t, "/lib/a.so", caller.Module.Path)
	require.True(t, caller.Eval, "Python frames follow")

	require.Equal(t, event.Frame{Kind: event.FramePython, Func: unreadUnknown, File: unreadUnknown}, s.Frames[2])
	require.Nil(t, s.Frames[3].Module, "in no mapping")
	require.True(t, s.Frames[3].Eval)
	require.Equal(t, event.FramePython, s.Frames[4].Kind, "a record cut between the two words of a frame")
}

func TestStackIsKeptOnce(t *testing.T) {
	table := newStackTable(DefaultStacks)
	table.add(stackRecord{hash: 5, words: []uint64{1}}, in(nil), &image{}, nil)
	first := table.stack(5)
	table.add(stackRecord{hash: 5, words: []uint64{1, 2}, status: 3}, in(nil), &image{}, nil)
	require.Same(t, first, table.stack(5))
	require.Len(t, first.Frames, 1)
	require.Nil(t, table.stack(0))
	require.Nil(t, table.stack(6))
}

// TestEvalOfBrokenStack: where a walk broke off, the remaining Python frames were appended; they tell nothing of the frame
// before them.
func TestEvalOfBrokenStack(t *testing.T) {
	py := uint64(1<<63 | 0x7000)
	for name, c := range map[string]struct {
		status event.StackStatus
		words  []uint64
		eval   []bool // of the native frames
	}{
		"complete":                {event.StatusOK, []uint64{1, py, 0, 2, py, 0}, []bool{true, true}},
		"broken at the last":      {event.StatusNoRow, []uint64{1, py, 0, 2, py, 0}, []bool{true, false}},
		"two Python frames of it": {event.StatusUnreadable, []uint64{1, 2, py, 0, py, 0}, []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			table := newStackTable(DefaultStacks)
			table.add(stackRecord{status: uint8(c.status), hash: 1, words: c.words}, in(nil), &image{}, nil)
			var got []bool
			for _, f := range table.stack(1).Frames {
				if f.Kind == event.FrameNative {
					got = append(got, f.Eval)
				}
			}
			require.Equal(t, c.eval, got)
			require.Equal(t, c.status, table.stack(1).Status)
		})
	}
}

// TestNativeNames looks functions of PyTorch's libc10 up by their addresses, as the standard library reads them.
func TestNativeNames(t *testing.T) {
	path := filepath.Join(elftest.Setup(t, "site"), "torch", "lib", "libc10.so")
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	file, err := symbolize.Open(f, path)
	require.NoError(t, err)
	raw, err := elf.NewFile(f)
	require.NoError(t, err)

	var text *elf.Prog
	for _, p := range raw.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			text = p
		}
	}
	require.NotNil(t, text)
	const base = 0x7f0000000000
	m := at(base+text.Vaddr, base+text.Vaddr+text.Memsz, path)
	m.Offset = text.Off
	regions := []mapped.Region{mapped.NewRegion(m, &mapped.File{Symbols: file})}

	seen := 0
	for _, sym := range elftest.Functions(t, raw)[:200] {
		if sym.Size < 2 {
			continue
		}
		table := newStackTable(DefaultStacks)
		table.add(stackRecord{hash: 1, words: []uint64{base + sym.Value, base + sym.Value + sym.Size}}, in(regions), &image{}, nil)
		for _, frame := range table.stack(1).Frames {
			require.Equal(t, file.BuildID(), frame.Module.BuildID)
			require.NotEmpty(t, frame.Func)
			found, ok := file.SymbolAt(sym.Value)
			require.True(t, ok)
			require.Equal(t, sym.Value, found.Addr)
			require.Equal(t, found.Name, frame.Linkage) // an alias of the same address may be chosen
		}
		require.Equal(t, sym.Value, table.stack(1).Frames[0].Offset)
		seen++
	}
	require.Greater(t, seen, 100)
}

// TestInlinedFrames: a place in the code into which a call was inlined gives two frames of one address, with their lines; both
// are the interpreter's loop when Python frames follow.
func TestInlinedFrames(t *testing.T) {
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.so")
	require.NoError(t, os.WriteFile(src, []byte("int number(int);\n"+
		"static inline __attribute__((always_inline)) int inner(int n) { return number(n) + 1; }\n"+
		"int outer(int n) {\n\treturn inner(n) * 2;\n}\n"), 0o600))
	out, err := exec.Command("gcc", "-shared", "-fPIC", "-O2", "-g", "-o", lib, src).CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := os.Open(lib)
	require.NoError(t, err)
	defer f.Close()
	file, err := symbolize.Open(f, lib)
	require.NoError(t, err)
	outer, ok := file.Find("outer")
	require.True(t, ok)

	const base = 0x7f0000000000
	pc := outer.Addr // the return address of the call of number
	for pc < outer.Addr+outer.Size && (len(file.Names(pc-1)) < 2 || len(file.Names(pc)) < 2) {
		pc++
	}
	m := at(base, base+1<<20, lib)
	regions := []mapped.Region{mapped.NewRegion(m, &mapped.File{Symbols: file})}
	regions[0].Bias = base
	table := newStackTable(DefaultStacks)
	table.add(stackRecord{hash: 1, words: []uint64{base + outer.Addr, base + pc, 1<<63 | 0x7000, 9}}, in(regions), &image{}, nil)
	frames := table.stack(1).Frames
	require.Len(t, frames, 4)
	require.Equal(t, "outer", frames[0].Func)
	require.False(t, frames[0].Inlined)
	require.Equal(t, 3, frames[0].Line)
	for i, want := range []struct {
		function   string
		line, from int
		inlined    bool
	}{{"inner", 2, 2, true}, {"outer", 4, 3, false}} {
		got := frames[1+i]
		require.Equal(t, want.function, got.Func)
		require.Equal(t, src, got.File)
		require.Equal(t, want.line, got.Line)
		require.Equal(t, want.from, got.StartLine)
		require.Equal(t, want.inlined, got.Inlined)
		require.EqualValues(t, base+pc, got.Addr)
		require.Equal(t, pc, got.Offset)
		require.True(t, got.Eval)
	}
}

// TestStackLimit: what comes beyond the limit is one stack; what was there before stays, and no event is lost.
func TestStackLimit(t *testing.T) {
	p := New(&Options{MaxStacks: 3}).NewProcess(nil)
	var events []event.Event
	for round := range 2 {
		for hash := uint64(1); hash <= 5; hash++ {
			_, ok := p.Decode(nil, stackRecordBytes(0, hash, 0x1000*hash))
			require.True(t, ok)
			record := bpf.TraceRecordEvent{Type: uint8(bpf.TraceRecordTypeRECORD_EVENT), Stack: hash}
			events, _ = p.Decode(events, unsafe.Slice((*byte)(unsafe.Pointer(&record)), eventBytes))
			require.Len(t, events, round*5+int(hash))
		}
	}
	var got []event.StackID
	for i := range events {
		got = append(got, events[i].Stack)
	}
	const over = event.StackOverLimit
	require.Equal(t, []event.StackID{1, 2, 3, over, over, 1, 2, 3, over, over}, got)
	require.EqualValues(t, 4, p.StacksOverLimit())
	require.Len(t, p.stacks.byID, 3)
	require.EqualValues(t, 0x3000, p.Stack(3).Frames[0].Addr)
	require.Equal(t, "[over the limit]", p.Stack(over).Frames[0].Label())
	require.False(t, p.Stack(over).Status.Complete())
	require.Zero(t, p.event(&bpf.TraceRecordEvent{}).Stack, "an event without a stack has none")
}

func at(start, end uint64, path string) process.Mapping {
	return process.Mapping{Start: start, End: end, Exec: true, Inode: 1, Path: path}
}

func regionsOf(maps ...process.Mapping) []mapped.Region {
	var out []mapped.Region
	for _, m := range maps {
		out = append(out, mapped.NewRegion(m, &mapped.File{}))
	}
	return out
}

// TestUnread: a Python frame without a code object is called by what kept it from being read.
func TestUnread(t *testing.T) {
	for want, errs := range map[string][]error{
		unreadEnded:   {fmt.Errorf("read: %w", process.ErrNotExist), unix.ESRCH},
		unreadRefused: {fmt.Errorf("read: %w", process.ErrPermission), unix.EPERM, unix.EACCES, unix.ENOSYS},
		unreadFreed:   {errors.New("no code object"), unix.EFAULT},
	} {
		for _, err := range errs {
			require.Equal(t, want, unread(fmt.Errorf("read code object 0x7000: %w", err)))
		}
	}
}

// TestLeftOut names a stack that the kernel left out, and counts allocations only.
func TestLeftOut(t *testing.T) {
	p := New(nil).NewProcess(nil)
	for _, kind := range []event.Kind{event.KindAlloc, event.KindFree, event.KindAlloc} {
		e := p.event(&bpf.TraceRecordEvent{Kind: uint8(kind), StackStatus: uint8(bpf.TraceStackStatusSTACK_LEFT_OUT), Requested: 7})
		require.Equal(t, event.StackLeftOut, e.Stack)
		require.EqualValues(t, 7, e.Requested)
	}
	require.EqualValues(t, 5, p.event(&bpf.TraceRecordEvent{Kind: uint8(event.KindAlloc), Stack: 5}).Stack)
	leftOut, all := p.LeftOut()
	require.Equal(t, []uint64{2, 3}, []uint64{leftOut, all})
	require.Equal(t, "[no stack: CPU budget]", p.Stack(event.StackLeftOut).Frames[0].Label())
	require.EqualValues(t, bpf.TraceStackStatusSTACK_LEFT_OUT, p.Stack(event.StackLeftOut).Status)
	_, any := p.shared.Stackless()
	require.False(t, any, "no warning about missing stacks")
}
