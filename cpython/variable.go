// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"

	"golang.org/x/arch/x86/x86asm"

	"github.com/gputrace/gputrace/process"
)

// stateGetter returns the thread state of the thread that calls it, whether it has the GIL or not. From 3.15 on it does so from a
// thread-local variable (_Py_tss_gilstate of Python/pystate.c), which no symbol names.
const stateGetter = "PyGILState_GetThisThreadState"

const (
	getterCode    = 64      // bytes of it that are looked through
	variablesScan = 8 << 10 // how much is searched below a thread pointer, where thread-local variables are (ELF TLS, variant II), bytes
	variablesRead = 256
)

// findVariable finds the thread-local variable that holds each thread's own state. Another one, _Py_tss_tstate, holds the same while the
// thread has the GIL: what the interpreter itself reads is asked first, then which is set in most threads.
func (r *Runtime) findVariable(mem process.Memory, states map[uint64]map[uint64]bool) (slot, error) {
	all := len(states)
	maps.DeleteFunc(states, func(tp uint64, _ map[uint64]bool) bool { return r.abi.controlBlock(mem, tp) == nil })
	if len(states) == 0 {
		return slot{}, fmt.Errorf("%w: no thread control block at any of %d thread ids", ErrNotReady, all)
	}
	states = r.abi.byPointer(states)
	if read, ok := r.abi.threadLocal(mem, r.getter); ok {
		for tp := range states {
			if offset, ok := read.from(mem, tp); ok && holds(mem, states, offset) {
				return slot{offset, NoField}, nil
			}
		}
	}
	v := variables{above: r.abi.size != 0}
	for tp, own := range states {
		v.add(mem, tp, own)
	}
	if offset, ok := v.best(); ok {
		return slot{offset, NoField}, nil
	}
	return slot{}, fmt.Errorf("%w: no thread-local variable of %d threads holds the thread state", ErrNotReady, len(states))
}

// byPointer has for each thread pointer what is known by the handles of the threads.
func (a threadABI) byPointer(states map[uint64]map[uint64]bool) map[uint64]map[uint64]bool {
	if a.size == 0 {
		return states
	}
	out := map[uint64]map[uint64]bool{}
	for handle, own := range states {
		out[handle+a.size] = own
	}
	return out
}

// holds reports whether the words at an offset are states of the threads' own, or of one at least, and no other's.
func holds(mem process.Memory, states map[uint64]map[uint64]bool, offset int64) bool {
	matches := 0
	for tp, own := range states {
		switch word, err := process.Uint64(mem, tp+uint64(offset)); {
		case err != nil || word == 0: // a thread that has ended, or has not run Python yet
		case !own[word]:
			return false
		default:
			matches++
		}
	}
	return matches > 0
}

// variables counts, for every word below the thread pointers, the threads that have a state of theirs there. Index 0 is the word
// right below or, on arm64, right at it.
type variables struct {
	above              bool // they lie above the thread pointers (ELF TLS, variant I), and so do the words
	matches, conflicts [variablesScan / 8]int
}

func (v *variables) add(mem process.Memory, tp uint64, own map[uint64]bool) {
	if v.above {
		v.addAbove(mem, tp, own)
		return
	}
	var b [variablesRead]byte
	for n := uint64(0); n < variablesScan && tp > n+variablesRead; n += variablesRead {
		if _, err := mem.ReadAt(b[:], tp-n-variablesRead); err != nil {
			return // there is no more
		}
		for i := range variablesRead / 8 {
			v.count(int(n)/8+variablesRead/8-1-i, binary.LittleEndian.Uint64(b[8*i:]), own)
		}
	}
}

func (v *variables) addAbove(mem process.Memory, tp uint64, own map[uint64]bool) {
	var b [variablesRead]byte
	for n := uint64(0); n < variablesScan; n += variablesRead {
		if _, err := mem.ReadAt(b[:], tp+n); err != nil {
			return // there is no more
		}
		for i := range variablesRead / 8 {
			v.count(int(n)/8+i, binary.LittleEndian.Uint64(b[8*i:]), own)
		}
	}
}

func (v *variables) count(at int, word uint64, own map[uint64]bool) {
	switch {
	case own[word]:
		v.matches[at]++
	case word != 0: // 0: a thread that has not run Python yet
		v.conflicts[at]++
	}
}

// offset is the place of a word, from the thread pointer.
func (v *variables) offset(i int) int64 {
	if v.above {
		return 8 * int64(i)
	}
	return -8 * int64(i+1)
}

func (v *variables) fits(i int) bool { return v.matches[i] > 0 && v.conflicts[i] == 0 }

// best is the one that holds the states of most threads; of equals the lowest.
func (v *variables) best() (offset int64, ok bool) {
	most := 0
	for i := range v.matches {
		if v.fits(i) && (v.matches[i] > most || v.matches[i] == most && v.offset(i) < offset) {
			offset, most = v.offset(i), v.matches[i]
		}
	}
	return offset, most > 0
}

// variable is where a thread-local word is: at an offset from the thread pointer or, of a library that asks the loader, at one in the
// library's block.
type variable struct {
	offset int64
	module uint64 // the library, as the loader counts (the tls_index of __tls_get_addr); 0: the offset is from the thread pointer
}

// The loader's table of a thread's blocks (dtv_t of glibc, sysdeps/generic/dl-dtv.h): two words for each library, the first of which is its
// address.
const (
	tcbBlocks = 8
	blockSize = 16
)

// from is the offset from a thread's pointer. A block of a library that was loaded when the program began lies as far from each.
func (v variable) from(mem process.Memory, tp uint64) (offset int64, ok bool) {
	if v.module == 0 {
		return v.offset, true
	}
	blocks, err := process.Uint64(mem, tp+tcbBlocks)
	if err != nil {
		return 0, false
	}
	block, err := process.Uint64(mem, blocks+blockSize*v.module)
	return int64(block-tp) + v.offset, err == nil
}

// threadLocal is the first thread-local word that a function reads: directly, as in a program, by an offset that the loader has put in a
// table, or by asking the loader (__tls_get_addr, or a descriptor), as in libraries. The code is followed without branches.
func (a threadABI) threadLocal(mem process.Memory, function uint64) (v variable, ok bool) {
	if function == 0 || a.size != 0 { // arm64's code is not read
		return v, false
	}
	code := make([]byte, getterCode)
	n, _ := mem.ReadAt(code, function)
	code = code[:max(0, min(n, len(code)))]
	e := evaluator{mem: mem, next: function, known: map[x86asm.Reg]uint64{}, blocks: map[x86asm.Reg]variable{}}
	if rest, ok := bytes.CutPrefix(code, endbr64); ok {
		e.next, code = e.next+uint64(len(endbr64)), rest
	}
	for len(code) > 0 {
		inst, err := x86asm.Decode(code, 64)
		if err != nil || inst.Len == 0 {
			return v, false
		}
		code = code[inst.Len:]
		e.next += uint64(inst.Len)
		switch inst.Op {
		case x86asm.RET, x86asm.JMP:
			return v, false
		case x86asm.CALL:
			if !e.call(inst.Args[0]) {
				return v, false
			}
		case x86asm.LEA:
			if from, isMem := inst.Args[1].(x86asm.Mem); isMem && from.Base == x86asm.RIP {
				e.set(inst.Args[0], e.next+uint64(from.Disp))
			}
		case x86asm.MOV:
			if v, ok := e.move(inst.Args[0], inst.Args[1]); ok {
				return v, true
			}
		}
	}
	return v, false
}

// endbr64 may begin a function; it is no instruction to the decoder.
var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// evaluator follows what registers hold, as far as finding a thread-local word needs it.
type evaluator struct {
	mem    process.Memory
	next   uint64 // address of the next instruction
	known  map[x86asm.Reg]uint64
	blocks map[x86asm.Reg]variable // registers that hold an address in a library's block
}

func (e *evaluator) set(to x86asm.Arg, value uint64) {
	if r, ok := to.(x86asm.Reg); ok {
		e.known[r] = value
		delete(e.blocks, r)
	}
}

// call is one of the loader: a descriptor's function gives an offset from the thread pointer, which is behind its address; __tls_get_addr
// takes a library and an offset in its block.
func (e *evaluator) call(of x86asm.Arg) bool {
	if m, ok := of.(x86asm.Mem); ok {
		at, isKnown := e.known[m.Base]
		offset, err := process.Uint64(e.mem, at+8)
		e.set(x86asm.RAX, offset)
		return isKnown && err == nil
	}
	at, isKnown := e.known[x86asm.RDI]
	module, err := process.Uint64(e.mem, at)
	offset, err2 := process.Uint64(e.mem, at+8)
	if !isKnown || err != nil || err2 != nil || module == 0 || module > maxModules {
		return false
	}
	delete(e.known, x86asm.RAX)
	e.blocks[x86asm.RAX] = variable{int64(offset), module}
	return true
}

// maxModules bounds how many libraries with thread-local variables a process has.
const maxModules = 1 << 16

// move is a mov. v is what it reads, where that is thread-local.
func (e *evaluator) move(to, from x86asm.Arg) (v variable, ok bool) {
	if n, isNumber := from.(x86asm.Imm); isNumber {
		e.set(to, uint64(n))
		return v, false
	}
	m, isMem := from.(x86asm.Mem)
	if !isMem || m.Index != 0 {
		return v, false
	}
	base, isKnown := e.known[m.Base]
	block, inBlock := e.blocks[m.Base]
	switch {
	case m.Segment == x86asm.FS && m.Base == 0:
		return variable{offset: int64(int32(m.Disp))}, true
	case m.Segment == x86asm.FS && isKnown:
		return variable{offset: int64(base) + m.Disp}, true
	case inBlock:
		return variable{block.offset + m.Disp, block.module}, true
	case m.Base == x86asm.RIP:
		if word, err := process.Uint64(e.mem, e.next+uint64(m.Disp)); err == nil {
			e.set(to, word)
		}
	}
	return v, false
}
