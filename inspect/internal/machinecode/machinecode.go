// SPDX-License-Identifier: Apache-2.0

// Package machinecode reads the x86-64 code of a file: where it calls imported functions, and where the values came from that it
// passes to them.
package machinecode

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/gputrace/gputrace/symbolize"
	"golang.org/x/arch/x86/x86asm"
)

// MaxFunction is how many bytes of a function are decoded.
const MaxFunction = 64 << 10

const (
	maxCode = 64 << 20 // bytes of code that are searched; libc10_cuda.so has 0.4 MB
	textCut = 64 << 10 // bytes that symbolize.File.Text returns at once

	maxBackward  = 96 // instructions that are followed back from a call
	maxCopies    = 8  // register copies that are followed back
	maxCallSites = 64 // calls that are decoded
)

// code is the instructions of a file, from one link-time address on.
type code struct {
	start uint64
	bytes []byte
}

// codeOf copies the executable segments of a file.
func codeOf(f *symbolize.File) []code {
	var out []code
	for _, r := range f.CodeRanges() {
		c := code{start: r.Start}
		for at := r.Start; at < r.End && len(c.bytes) < maxCode; {
			b, ok := f.Text(at, textCut)
			if !ok {
				break
			}
			b = b[:min(uint64(len(b)), r.End-at)]
			c.bytes = append(c.bytes, b...)
			at += uint64(len(b))
		}
		out = append(out, c)
	}
	return out
}

// relative finds the instructions that consist of an opcode and a 32-bit distance to one of the targets. It looks at
// every byte, not at every instruction: a chance match is one in four billion for each target.
func (c *code) relative(opcode []byte, targets []uint64) []uint64 {
	var out []uint64
	n := len(opcode)
	for i := 0; ; i++ {
		next := bytes.Index(c.bytes[i:], opcode)
		if next < 0 || i+next+n+4 > len(c.bytes) {
			return out
		}
		i += next
		distance := int32(binary.LittleEndian.Uint32(c.bytes[i+n:]))
		end := c.start + uint64(i+n+4)
		if slices.Contains(targets, end+uint64(int64(distance))) {
			out = append(out, c.start+uint64(i))
		}
	}
}

// Encodings with a 32-bit distance (Intel SDM volume 2: CALL, JMP).
var (
	opCall         = []byte{0xe8}
	opCallIndirect = []byte{0xff, 0x15}
	opJumpIndirect = []byte{0xff, 0x25}
)

// ImportCalls lists the link-time addresses of the calls of imported functions whose name begins with prefix: through a
// PLT entry, which is a jump through the function's slot, perhaps behind endbr64 and a bnd prefix, or through the slot
// itself. Jumps, that is tail calls, are not listed.
func ImportCalls(f *symbolize.File, prefix string) []uint64 {
	all := codeOf(f)
	slots := f.ImportSlots(prefix)
	if len(slots) == 0 {
		return nil
	}
	var entries, calls []uint64
	for i := range all {
		for _, jump := range all[i].relative(opJumpIndirect, slots) {
			entries = append(entries, jump, jump-1, jump-4, jump-5)
		}
	}
	for i := range all {
		calls = append(calls, all[i].relative(opCallIndirect, slots)...)
		if len(entries) > 0 {
			calls = append(calls, all[i].relative(opCall, entries)...)
		}
	}
	return calls[:min(len(calls), maxCallSites)]
}

// Path is instructions in the order of their addresses.
type Path []x86asm.Inst

// PathTo decodes the function around a call from its start up to the call, which is left out. end is the address behind
// the call. ok is false when the call is not an instruction of a function with a frame description.
func PathTo(f *symbolize.File, call uint64) (p Path, end uint64, ok bool) {
	start, _, ok := f.Frames().Bounds(call)
	if !ok || call-start > MaxFunction-16 {
		return nil, 0, false
	}
	b, ok := f.Text(start, int(call-start)+16)
	if !ok {
		return nil, 0, false
	}
	at := start
	for at <= call && int(at-start) < len(b) {
		inst, n := Decode(b[at-start:])
		if at == call {
			return p, call + uint64(n), inst.Op == x86asm.CALL
		}
		p = append(p, inst)
		at += uint64(n)
	}
	return nil, 0, false
}

var endbr64 = []byte{0xf3, 0x0f, 0x1e, 0xfa}

// Decode reads one instruction. One that the decoder does not know (vector extensions) is passed byte by byte: x86 code
// falls back into step within a few instructions.
func Decode(b []byte) (inst x86asm.Inst, n int) {
	if bytes.HasPrefix(b, endbr64) {
		return x86asm.Inst{Op: x86asm.NOP}, len(endbr64)
	}
	inst, err := x86asm.Decode(b, 64)
	if err != nil || inst.Len == 0 {
		return x86asm.Inst{}, 1
	}
	return inst, inst.Len
}

// Straight decodes n instructions; those behind the end have no operation.
func Straight(b []byte, n int) Path {
	p := make(Path, n)
	for i := range p {
		var k int
		p[i], k = Decode(b)
		b = b[min(k, len(b)):]
	}
	return p
}

// Load is a 64-bit read of memory at base+offset, by the instruction at index of the path.
type Load struct {
	Base   x86asm.Reg
	Offset int64 // bytes
	Index  int
}

// LoadOf finds the read that gave a register the value that it has at the end of the path. ok is false when the value
// came otherwise, or cannot be followed. Jumps into the path are not looked for: what is found is what holds when the
// code ran in a straight line.
func (p Path) LoadOf(r x86asm.Reg) (l Load, ok bool) {
	for range maxCopies {
		i := p.lastWrite(r)
		if i < 0 || p[i].Op != x86asm.MOV || p[i].Args[0] != r {
			return Load{}, false
		}
		switch from := p[i].Args[1].(type) {
		case x86asm.Mem:
			plain := from.Segment == 0 && from.Index == 0 && p[i].MemBytes == 8
			return Load{Base: from.Base, Offset: Displacement(from), Index: i}, plain
		case x86asm.Reg:
			p, r = p[:i], from
		default:
			return Load{}, false
		}
	}
	return Load{}, false
}

// lastWrite is the index of the last instruction that may write a register, -1 when there is none in the straight line
// that ends the path.
func (p Path) lastWrite(r x86asm.Reg) int {
	for i := len(p) - 1; i >= 0 && len(p)-i <= maxBackward; i-- {
		switch inst := p[i]; {
		case inst.Op == x86asm.JMP, inst.Op == x86asm.RET, inst.Op == x86asm.UD2, inst.Op == 0:
			return -1
		case Writes(inst, r):
			return i
		}
	}
	return -1
}

// readOnly are the instructions whose first operand is not written.
var readOnly = []x86asm.Op{x86asm.CMP, x86asm.TEST, x86asm.NOP, x86asm.PUSH, x86asm.BT, x86asm.UCOMISS, x86asm.UCOMISD}

// implicit are the instructions that write registers which are not among their operands, or more than one operand.
var implicit = []x86asm.Op{
	x86asm.MUL, x86asm.DIV, x86asm.IDIV, x86asm.CWD, x86asm.CDQ, x86asm.CQO, x86asm.CBW, x86asm.CWDE, x86asm.CDQE,
	x86asm.XCHG, x86asm.XADD, x86asm.CMPXCHG, x86asm.CMPXCHG8B, x86asm.CMPXCHG16B, x86asm.CPUID, x86asm.RDTSC,
	x86asm.RDTSCP, x86asm.SYSCALL, x86asm.LEAVE, x86asm.MOVSB, x86asm.MOVSW, x86asm.MOVSD, x86asm.MOVSQ,
	x86asm.STOSB, x86asm.STOSW, x86asm.STOSD, x86asm.STOSQ, x86asm.LODSB, x86asm.LODSW, x86asm.LODSD, x86asm.LODSQ,
	x86asm.SCASB, x86asm.SCASW, x86asm.SCASD, x86asm.SCASQ, x86asm.CMPSB, x86asm.CMPSW, x86asm.CMPSD, x86asm.CMPSQ,
}

// calleeSaved keep their value over a call (System V x86-64 psABI, 3.2.1).
var calleeSaved = []x86asm.Reg{x86asm.RBX, x86asm.RBP, x86asm.RSP, x86asm.R12, x86asm.R13, x86asm.R14, x86asm.R15}

// Writes reports whether an instruction may change a 64-bit register; rather too often than too seldom.
func Writes(inst x86asm.Inst, r x86asm.Reg) bool {
	switch {
	case inst.Op == x86asm.CALL:
		return !slices.Contains(calleeSaved, r)
	case inst.Op == x86asm.PUSH:
		return r == x86asm.RSP
	case inst.Op == x86asm.POP && r == x86asm.RSP:
		return true
	case slices.Contains(readOnly, inst.Op):
		return false
	case slices.Contains(implicit, inst.Op), inst.Op == x86asm.IMUL && inst.Args[1] == nil:
		return !slices.Contains(calleeSaved, r) || inst.Op == x86asm.LEAVE || inst.Op == x86asm.XCHG || inst.Op == x86asm.XADD
	}
	written, ok := inst.Args[0].(x86asm.Reg)
	return ok && wide(written) == r
}

// wide is the 64-bit register that a general register is part of; 0 for another register.
func wide(r x86asm.Reg) x86asm.Reg {
	switch {
	case r >= x86asm.AL && r <= x86asm.BL:
		return r - x86asm.AL + x86asm.RAX
	case r >= x86asm.AH && r <= x86asm.BH:
		return r - x86asm.AH + x86asm.RAX
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return r - x86asm.SPB + x86asm.RSP
	case r >= x86asm.AX && r <= x86asm.R15W:
		return r - x86asm.AX + x86asm.RAX
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return r - x86asm.EAX + x86asm.RAX
	case r >= x86asm.RAX && r <= x86asm.R15:
		return r
	}
	return 0
}

// Stored reports whether an instruction may write the memory at base+offset by that very name.
func Stored(inst x86asm.Inst, l Load) bool {
	m, ok := inst.Args[0].(x86asm.Mem)
	if !ok || m.Base != l.Base || slices.Contains(readOnly, inst.Op) {
		return false
	}
	at := Displacement(m)
	return at > l.Offset-16 && at < l.Offset+8 // a store is at most a vector of 16 bytes
}

// Displacement is that of an operand. The decoder leaves one of 32 bits without its sign.
func Displacement(m x86asm.Mem) int64 { return int64(int32(m.Disp)) }
