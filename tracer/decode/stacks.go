// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/internal/mapped"
)

// pythonWord marks a stack word as a Python frame's code object; the next word is its instruction (bpf/records.h).
const pythonWord = 1 << 63

// rawFrame is one frame as the kernel saw it, with what must be looked up before the target changes: the module of a
// native pc, or the code object of a Python frame.
type rawFrame struct {
	pc     uint64
	caller bool           // pc is a return address
	region *mapped.Region // nil: in no mapping
	code   *cpython.Code
	instr  uint64
	python bool
	why    string // placeholder for the function of a Python frame without a code object
}

type rawStack struct {
	status event.StackStatus
	frames []rawFrame   // nil once they have names
	native int          // number of native frames
	named  *event.Stack // nil: not requested yet
}

// stackTable resolves stack ids to frames. The kernel sends Python code objects before the stacks that contain them,
// because they can be freed at any time; native names are looked up on request.
type stackTable struct {
	byID  map[event.StackID]*rawStack
	codes map[uint64]*cpython.Code
	names map[codeKey][]codeName
	limit int // maximum size of byID
	// fileName returns the name that people use for the file of a code object that was just read.
	fileName func(file string) string
	// python and memory belong to the last stack; python is nil while the interpreter is not known.
	python *cpython.Runtime
	memory process.Memory
	over   uint64 // number of events whose stack arrived after the limit was reached

	lookedUp time.Time // when memory was last used for names or unwind tables; zero: it was freed
}

// codeKey is a place in the code of a file.
type codeKey struct {
	object *mapped.File
	vaddr  uint64
}

// codeName is a function's symbol name and its readable name.
type codeName struct {
	symbolize.Name
	function string
}

func newStackTable(limit int) *stackTable {
	return &stackTable{
		limit: limit,
		byID:  map[event.StackID]*rawStack{}, codes: map[uint64]*cpython.Code{},
		names: map[codeKey][]codeName{}, fileName: noCode{}.FileName,
	}
}

// full reports whether no further stack is kept.
func (t *stackTable) full() bool { return len(t.byID) >= t.limit }

// within returns the id that represents an event's stack.
func (t *stackTable) within(id event.StackID) event.StackID {
	if id == 0 || !t.full() {
		return id
	}
	if _, ok := t.byID[id]; ok {
		return id
	}
	t.over++
	return event.StackOverLimit
}

// add stores a stack that the kernel sent. A repeated stack is ignored.
func (t *stackTable) add(r stackRecord, find func(pc uint64) *mapped.Region, mem process.Memory, py *cpython.Runtime) {
	id := event.StackID(r.hash)
	if _, ok := t.byID[id]; ok || t.full() {
		return
	}
	t.python, t.memory = py, mem
	s := &rawStack{status: event.StackStatus(r.status)}
	for i := 0; i < len(r.words); i++ {
		word := r.words[i]
		if word&pythonWord == 0 {
			f := rawFrame{pc: word, caller: len(s.frames) > 0}
			f.region = find(f.lookupPC())
			s.frames = append(s.frames, f)
			s.native++
			continue
		}
		f := rawFrame{python: true, pc: word &^ pythonWord}
		if i++; i < len(r.words) {
			f.instr = r.words[i]
		}
		f.code, f.why = t.code(f.pc, mem, py)
		s.frames = append(s.frames, f)
	}
	t.byID[id] = s
}

// addCode stores a code object that the kernel sent, before the first stack that contains it. It replaces an earlier
// one with the same address.
func (t *stackTable) addCode(r *bpf.TraceRecordCode, mem process.Memory, py *cpython.Runtime) {
	addr := r.Addr[bpf.TraceCodeChunkCODE_OBJECT]
	delete(t.codes, addr)
	if py == nil || t.full() {
		return
	}
	if c, err := py.Code(&codeImage{r, mem}, addr); err == nil {
		t.keep(addr, c)
	}
}

// lookupPC returns the address for looking up names: a return address belongs to the preceding call.
func (f *rawFrame) lookupPC() uint64 {
	if f.caller {
		return f.pc - 1
	}
	return f.pc
}

// Placeholders for functions of Python frames whose code object could not be read.
const (
	unreadEnded   = "<ended before it was read>"
	unreadFreed   = "<changed before it was read>" // the program freed it, or reused its memory
	unreadRefused = "<not permitted to be read>"
	unreadUnknown = "<of an interpreter that is not known>"
	unreadOther   = "<line not known: another Python ran it, %s>"
	unreadSub     = "<line not known: a sub-interpreter ran it>"
	unreadCaller  = "<line not known: another interpreter of the process ran it>" // the one that called a sub-interpreter
	unreadLost    = "<line not known: no Python frame was found>"
)

// code returns a code object, reading it now if its record was lost. If that fails, it returns nil and the reason.
func (t *stackTable) code(addr uint64, mem process.Memory, py *cpython.Runtime) (c *cpython.Code, why string) {
	if c, ok := t.codes[addr]; ok {
		return c, ""
	}
	if py == nil {
		return nil, unreadUnknown
	}
	c, err := py.Code(mem, addr)
	if err != nil {
		return nil, unread(err) // retried at the next stack that contains it
	}
	t.keep(addr, c)
	return c, ""
}

// unread returns the placeholder for an error of reading a code object.
func unread(err error) string {
	switch {
	case errors.Is(err, process.ErrNotExist), errors.Is(err, unix.ESRCH):
		return unreadEnded
	case errors.Is(err, process.ErrPermission), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOSYS):
		return unreadRefused
	}
	return unreadFreed
}

// keep stores a code object that was just read.
func (t *stackTable) keep(addr uint64, c *cpython.Code) {
	c.Filename = t.fileName(c.Filename)
	t.codes[addr] = c
}

// nativeFrames returns the number of native frames of a stack; 0 when it is not known.
func (t *stackTable) nativeFrames(id event.StackID) int {
	if s := t.byID[id]; s != nil {
		return s.native
	}
	return 0
}

// stack returns a stack with the names of its frames.
func (t *stackTable) stack(id event.StackID) *event.Stack {
	if s := id.Placeholder(); s != nil {
		return s
	}
	s := t.byID[id]
	if s == nil {
		return nil
	}
	if s.named == nil {
		t.settle(s)
		s.named = &event.Stack{ID: id, Status: s.status, Frames: t.name(s.frames, reachesEnd(s.status))}
		s.frames = nil
	}
	return s.named
}

// reachesEnd reports whether the walk was complete.
func reachesEnd(status event.StackStatus) bool {
	return status.Complete() || status == event.StatusGuessed
}

// name resolves frames. A native frame followed by Python frames is the interpreter's loop, except for the one at which
// an incomplete walk ended: there the rest of the Python frames was appended.
func (t *stackTable) name(raw []rawFrame, complete bool) []event.Frame {
	out := make([]event.Frame, 0, len(raw))
	for i := range raw {
		f := &raw[i]
		if f.python {
			if f.code == nil || !f.code.Hidden {
				out = append(out, pythonFrame(f))
			}
			continue
		}
		eval := i+1 < len(raw) && raw[i+1].python && (complete || hasNative(raw[i+2:]))
		for _, n := range t.namedFrames(f) {
			n.Eval = eval
			out = append(out, n)
		}
	}
	return out
}

func hasNative(raw []rawFrame) bool {
	return slices.ContainsFunc(raw, func(f rawFrame) bool { return !f.python })
}

func pythonFrame(f *rawFrame) event.Frame {
	out := event.Frame{Kind: event.FramePython}
	if f.code == nil {
		out.Func, out.File = f.why, f.why
		return out
	}
	out.Func, out.File, out.StartLine = f.code.Qualname, f.code.Filename, f.code.FirstLine
	out.Line = f.code.Line(f.instr)
	return out
}

// namedFrames returns the function of a frame, after those that were inlined into it.
func (t *stackTable) namedFrames(f *rawFrame) []event.Frame {
	one := event.Frame{Kind: event.FrameNative, Addr: f.pc}
	if f.region == nil {
		return []event.Frame{one}
	}
	one.Module = f.region.Module
	one.Offset = f.pc - f.region.Bias
	if f.region.File.Symbols == nil {
		one.Offset = f.pc - f.region.Start + f.region.Offset
		return []event.Frame{one}
	}
	names := t.lookup(f.region.File, f.lookupPC()-f.region.Bias)
	if len(names) == 0 {
		return []event.Frame{one}
	}
	out := make([]event.Frame, len(names))
	for i, n := range names {
		out[i] = one
		out[i].Func, out[i].Linkage, out[i].File, out[i].Line, out[i].StartLine = n.function, n.Linkage, n.File, n.Line, n.StartLine
		out[i].Inlined = i < len(names)-1
	}
	return out
}

func (t *stackTable) lookup(o *mapped.File, vaddr uint64) []codeName {
	key := codeKey{o, vaddr}
	if n, ok := t.names[key]; ok {
		return n
	}
	t.lookedUp = time.Now()
	var out []codeName
	for _, n := range o.Symbols.Names(vaddr) {
		out = append(out, codeName{n, symbolize.Demangle(n.Linkage)})
	}
	t.names[key] = out
	return out
}
