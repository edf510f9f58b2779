// SPDX-License-Identifier: Apache-2.0

// Package machinecode reads the x86-64 and arm64 code of a file: where it calls imported functions, and where the values came from that
// it passes to them. What an instruction does is described alike for both processors.
package machinecode

import (
	"debug/elf"
	"iter"
	"slices"

	"github.com/gputrace/gputrace/symbolize"
)

// MaxFunction is how many bytes of a function are decoded.
const MaxFunction = 64 << 10

const (
	maxCode = 64 << 20 // bytes of code that are searched; libc10_cuda.so has 0.4 MB
	textCut = 64 << 10 // bytes that symbolize.File.Text returns at once

	maxBackward    = 96 // instructions that are followed back from a call
	maxCopies      = 8  // register copies that are followed back
	maxCallSites   = 64 // calls that are decoded
	maxInstruction = 16 // bytes, rounded up
)

// Reg is a 64-bit general register, 0 stands for the absence of one. Those on x86-64 count from 1 as they are encoded; on arm64, x0 is 1,
// the stack pointer is 32, and the register that is always zero counts as absent.
type Reg uint8

// bit is the register's bit in a set of registers.
func (r Reg) bit() uint32 {
	if r == 0 {
		return 0
	}
	return 1 << (r - 1)
}

// Op is what an instruction does, as far as it is asked here.
type Op uint8

// The operations. Other is an instruction that is known and does something else.
const (
	Unknown Op = iota // not decoded
	Other
	Nop
	Load        // To, and Second, get what is in memory
	Store       // From, and Second, are written to memory
	Copy        // To = From, all 64 bits
	Constant    // To = Value
	Add         // To = Base + Index + Offset; only x86-64 may multiply the index
	Compare     // From, or what is in memory, is compared with something
	SetNotEqual // a register gets whether what was compared is not equal
	Call        // of Target, of what is in memory, or of an address in a register
	Jump        // the same, without a return and without a condition
	Return
	Trap // where the program cannot go on
)

// Operand is an operand in memory, or a sum of the same form.
type Operand struct {
	Base   Reg   // 0: Offset is a link-time address
	Index  Reg   // 0: none
	Offset int64 // bytes
	Size   int   // bytes that are read or written; 0: not known
}

// Inst is one instruction.
type Inst struct {
	Op Op
	Operand
	InMemory bool   // Operand is of memory
	To, From Reg    // 0: none, or not a general register
	Second   Reg    // the other register of a Load or Store of two, for the 8 bytes behind
	Value    uint64 // of Constant
	Target   uint64 // of Call and Jump, a link-time address; 0: it is not in the instruction
	End      uint64 // link-time address behind the instruction

	writes uint32 // registers that it may change, rather too many than too few
	stores bool   // it may write to its operand in memory
}

// Writes reports whether an instruction may change a register; rather too often than too seldom.
func (i *Inst) Writes(r Reg) bool { return i.writes&r.bit() != 0 }

// Stored reports whether an instruction may write the memory at base+offset by that very name.
func (i *Inst) Stored(l Read) bool {
	const widest = 16 // bytes of a vector
	return i.stores && i.Base == l.Base && i.Offset > l.Offset-int64(max(i.Size, widest)) && i.Offset < l.Offset+8
}

// Machine is a processor, with the registers of its calling convention.
type Machine struct {
	Arguments []Reg // of the first four arguments
	Result    Reg
	Stack     Reg // the stack pointer
	Frame     Reg // the frame pointer

	instructions func(b []byte, at uint64) iter.Seq[Inst]
	importCalls  func(all []code, slots []uint64) []uint64
}

// For returns the machine whose code a file contains; nil when it is not known.
func For(m elf.Machine) *Machine {
	switch m {
	case elf.EM_X86_64:
		return &x86
	case elf.EM_AARCH64:
		return &arm64
	}
	return nil
}

// Instructions decodes code at a link-time address. Addresses that the code puts together from several instructions are followed as if
// it ran in a straight line.
func (m *Machine) Instructions(b []byte, at uint64) iter.Seq[Inst] { return m.instructions(b, at) }

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

// ImportCalls lists the link-time addresses of the calls of imported functions whose name begins with prefix: through a
// PLT entry, which jumps through the function's slot, or through the slot itself. Jumps, that is tail calls, are not listed.
func ImportCalls(f *symbolize.File, prefix string) []uint64 {
	m, slots := For(f.Machine()), f.ImportSlots(prefix)
	if m == nil || len(slots) == 0 {
		return nil
	}
	calls := m.importCalls(codeOf(f), slots)
	return calls[:min(len(calls), maxCallSites)]
}

// Path is instructions in the order of their addresses.
type Path []Inst

// PathTo decodes the function around a call from its start up to the call, which is left out. end is the address behind
// the call. ok is false when the call is not an instruction of a function with a frame description.
func PathTo(f *symbolize.File, call uint64) (p Path, end uint64, ok bool) {
	m := For(f.Machine())
	start, _, ok := f.Frames().Bounds(call)
	if m == nil || !ok || call-start > MaxFunction-maxInstruction {
		return nil, 0, false
	}
	b, ok := f.Text(start, int(call-start)+maxInstruction)
	if !ok {
		return nil, 0, false
	}
	at := start
	for inst := range m.instructions(b, start) {
		if at >= call {
			return p, inst.End, at == call && inst.Op == Call
		}
		p = append(p, inst)
		at = inst.End
	}
	return nil, 0, false
}

// Decode reads the first n instructions; fewer when there are no more.
func (m *Machine) Decode(b []byte, at uint64, n int) Path {
	var p Path
	for inst := range m.instructions(b, at) {
		if len(p) == n {
			break
		}
		p = append(p, inst)
	}
	return p
}

// Read is a 64-bit read of memory at base+offset, by the instruction at index of the path.
type Read struct {
	Base   Reg
	Offset int64 // bytes
	Index  int
}

// LoadOf finds the read that gave a register the value that it has at the end of the path. ok is false when the value
// came otherwise, or cannot be followed. Jumps into the path are not looked for: what is found is what holds when the
// code ran in a straight line.
func (p Path) LoadOf(r Reg) (l Read, ok bool) {
	for range maxCopies {
		i := p.lastWrite(r)
		if i < 0 {
			return Read{}, false
		}
		switch inst := &p[i]; {
		case inst.Op == Load && inst.Index == 0 && inst.Size == 8 && inst.To == r:
			return Read{Base: inst.Base, Offset: inst.Offset, Index: i}, true
		case inst.Op == Load && inst.Size == 16 && inst.Second == r:
			return Read{Base: inst.Base, Offset: inst.Offset + 8, Index: i}, true
		case inst.Op == Load && inst.Size == 16 && inst.To == r:
			return Read{Base: inst.Base, Offset: inst.Offset, Index: i}, true
		case inst.Op == Copy:
			p, r = p[:i], inst.From
		default:
			return Read{}, false
		}
	}
	return Read{}, false
}

// barriers end a straight line.
var barriers = []Op{Jump, Return, Trap, Unknown}

// lastWrite is the index of the last instruction that may write a register, -1 when there is none in the straight line
// that ends the path.
func (p Path) lastWrite(r Reg) int {
	for i := len(p) - 1; i >= 0 && len(p)-i <= maxBackward; i-- {
		switch inst := &p[i]; {
		case slices.Contains(barriers, inst.Op):
			return -1
		case inst.Writes(r):
			return i
		}
	}
	return -1
}
