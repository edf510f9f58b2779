// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gputrace/gputrace/process"
)

// LayoutError says that the interpreter in memory is not laid out as its release is: it was changed, or its version is not
// what it says. Native frames still work.
type LayoutError struct {
	Version Version
	What    string // what did not fit
}

func (e *LayoutError) Error() string {
	return fmt.Sprintf("python %s: not laid out as the release of that version: %s", e.Version, e.What)
}

// provenType is what a static type object says of its instances, and what it should say.
type provenType struct {
	symbol, name string
	basic        uint64            // tp_basicsize
	members      map[string]uint16 // offsets in tp_members
}

// provenTypes are the types whose layout is used, as far as they tell about it.
func (l *layout) provenTypes() []provenType {
	shift := l.shift()
	code := provenType{"PyCode_Type", "code", uint64(l.codeBasic), map[string]uint16{
		"co_filename": l.codeFilename, "co_name": l.codeName, "co_firstlineno": l.codeFirstLine,
	}}
	if l.lines == lineOldPairs {
		code.members["co_lnotab"] = l.codeLineTable
	} else {
		code.members["co_linetable"] = l.codeLineTable
	}
	if l.codeQualname != NoField {
		code.members["co_qualname"] = l.codeQualname
	}
	out := []provenType{
		{"PyUnicode_Type", "str", uint64(l.compactSize) + 8, nil}, // behind the header of compact ones is a pointer
		{"PyBytes_Type", "bytes", BytesHeader + shift + 1, nil},   // and a zero
	}
	if l.desc.CodeStart != NoField {
		code.basic = uint64(l.desc.CodeStart) // the bytecode is the variable part
		return append(out, code, provenType{"PyGen_Type", "generator", uint64(l.generatorBasic), nil})
	}
	frame := provenType{"PyFrame_Type", "frame", uint64(l.frameBasic), map[string]uint16{
		"f_back": l.desc.FramePrevious, "f_code": l.desc.FrameCode,
	}}
	if l.lines == lineOldPairs { // 3.10 computes f_lasti
		frame.members["f_lasti"] = l.desc.FrameInstr
	}
	return append(out, code, frame)
}

// proveTypes compares the row of the version with what the types say of themselves, in the file's own symbols. The error
// is a *LayoutError.
func (r *Runtime) proveTypes(mem process.Memory, find func(name string) (addr uint64, ok bool)) error {
	for _, want := range r.layout.provenTypes() {
		addr, ok := find(want.symbol)
		if !ok {
			return &LayoutError{r.Version, "no symbol " + want.symbol}
		}
		if what := r.layout.typeFault(mem, addr, &want); what != "" {
			return &LayoutError{r.Version, want.symbol + ": " + what}
		}
		if want.name == wantedTypes[typeCode].name {
			r.types[typeCode].Store(addr)
		}
	}
	return nil
}

// typeFault says what does not fit in a type object; empty: nothing.
func (l *layout) typeFault(mem process.Memory, addr uint64, want *provenType) string {
	shift := l.shift()
	b, err := read(mem, addr, int(TypeMembers+shift)+8)
	if err != nil {
		return err.Error()
	}
	word := func(at uint64) uint64 { return binary.LittleEndian.Uint64(b[at+shift:]) }
	if name, err := cString(mem, word(TypeName)); err != nil || name != want.name {
		return fmt.Sprintf("its name is %q, want %q", name, want.name)
	}
	if got := word(TypeBasicSize); got != want.basic {
		return fmt.Sprintf("tp_basicsize is %d, want %d", got, want.basic)
	}
	if want.members == nil {
		return ""
	}
	got := readMemberOffsets(mem, word(TypeMembers))
	for name, offset := range want.members {
		if at, ok := got[name]; !ok || at != uint64(offset) {
			return fmt.Sprintf("%s is at %d (0: nowhere), want %d", name, at, offset)
		}
	}
	return ""
}

// readMemberOffsets reads a table of PyMemberDef, as much of it as can be read.
func readMemberOffsets(mem process.Memory, table uint64) map[string]uint64 {
	out := map[string]uint64{}
	for range maxMembers {
		b, err := read(mem, table, MemberSize)
		if err != nil {
			return out
		}
		name, err := cString(mem, binary.LittleEndian.Uint64(b))
		if err != nil {
			return out // the last has no name
		}
		out[name] = binary.LittleEndian.Uint64(b[MemberOffset:])
		table += MemberSize
	}
	return out
}

// maxThreadID is the kernel's PID_MAX_LIMIT (include/linux/threads.h).
const maxThreadID = 4 << 20

// proveThreads checks what thread states hold, and that the chain of frames of at least one thread is whole: frames of code
// objects, the outermost of which ends an activation. Chains of running threads change while they are read, so it tries
// again. It is fine that no thread runs Python code. Errors: ErrNotReady, *LayoutError.
func (r *Runtime) proveThreads(mem process.Memory) error {
	var fault error
	for try := range tries {
		if try > 0 {
			time.Sleep(tryPause)
		}
		threads, err := r.Threads(mem)
		if err != nil {
			fault = err
			continue
		}
		if fault = r.threadFault(mem, threads); fault == nil {
			return nil
		}
	}
	return fault
}

// threadFault is nil when a chain of frames is whole, or when there is none; else a *LayoutError.
func (r *Runtime) threadFault(mem process.Memory, threads []Thread) error {
	var fault error
	for _, t := range threads {
		if t.TID > maxThreadID {
			return &LayoutError{r.Version, fmt.Sprintf("thread state %#x has the thread id %d", t.State, t.TID)}
		}
		whole, err := r.chainIsWhole(mem, t.State)
		if whole {
			return nil
		}
		if err != nil {
			fault = &LayoutError{r.Version, fmt.Sprintf("thread state %#x: %v", t.State, err)}
		}
	}
	return fault
}

var errNoCode = errors.New("a frame without a code object")

// chainIsWhole reports whether a thread has frames that are all right. It has none, without an error, when it runs nothing.
func (r *Runtime) chainIsWhole(mem process.Memory, state uint64) (bool, error) {
	frames, ended := 0, true
	err := r.walk(mem, state, func(f pyFrame, shim bool) error {
		if ended = shim || f.Entry; shim {
			return nil
		}
		frames++
		b, err := read(mem, f.Code, int(ObjectType+r.layout.shift())+8)
		if err != nil {
			return fmt.Errorf("code object: %w", err)
		}
		if typ := binary.LittleEndian.Uint64(b[ObjectType+r.layout.shift():]); typ != r.types[typeCode].Load() {
			return errNoCode
		}
		return nil
	})
	if err == nil && frames > 0 && !ended {
		err = errors.New("the outermost frame does not end an activation")
	}
	return err == nil && frames > 0, err
}
