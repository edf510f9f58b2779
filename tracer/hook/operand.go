// SPDX-License-Identifier: Apache-2.0

package hook

// From is the location of a value of a call. The numbers are those of enum operand_from in bpf/tables.h.
type From uint8

const (
	// FromNone means that the call does not contain the value.
	FromNone From = iota
	// FromArg is the argument itself.
	FromArg
	// FromArg32 is the lower half of the argument.
	FromArg32
	// FromField is the u64 at Offset of the structure that the argument points to, read at the entry.
	FromField
	// FromField32 is the same as a u32.
	FromField32
	// FromOut is the u64 at Offset of the structure that the argument points to, read at the return.
	FromOut
	// FromReturn is the function's return value.
	FromReturn
	// FromRegister is a register: its DWARF number is in the low five bits of Arg, the width above them.
	FromRegister
	// FromMemory is what is at the address in a register plus Offset, a signed number. Arg is as for FromRegister.
	FromMemory
	// FromConstant is Offset, shifted left by Arg bits.
	FromConstant
	// FromReturned is the u64 at Offset of the structure that the returned value points to; 0 if that is 0.
	FromReturned
	// FromRequest is the size of the thread's last Request; 0: none since the last report.
	FromRequest
)

// Operand locates one value of a call. Arguments are counted from 0. On x86-64, 0 to 5 are in registers; 6 and up are
// the words on the stack above the return address (System V psABI 3.2.3). Structs of more than 16 bytes that are passed
// by value are also there, and use no register.
type Operand struct {
	From   From
	Arg    uint8
	Offset uint16 // bytes
}

func arg(n uint8) Operand                  { return Operand{From: FromArg, Arg: n} }
func arg32(n uint8) Operand                { return Operand{From: FromArg32, Arg: n} }
func field(n uint8, offset uint16) Operand { return Operand{From: FromField, Arg: n, Offset: offset} }
func field32(n uint8, offset uint16) Operand {
	return Operand{From: FromField32, Arg: n, Offset: offset}
}
func out(n uint8) Operand                     { return Operand{From: FromOut, Arg: n} }
func outField(n uint8, offset uint16) Operand { return Operand{From: FromOut, Arg: n, Offset: offset} }
func returned(offset uint16) Operand          { return Operand{From: FromReturned, Offset: offset} }

// stack returns word n of the arguments on the stack.
func stack(n uint8) Operand { return arg(6 + n) }
