// SPDX-License-Identifier: Apache-2.0

package hook

// From says where a value of a call is. The numbers are those of enum operand_from in bpf/tables.h.
type From uint8

const (
	// FromNone: the call does not tell the value.
	FromNone From = iota
	// FromArg is the argument itself.
	FromArg
	// FromArg32 is the low half of the argument.
	FromArg32
	// FromField is, at the entry, the u64 at Offset of what the argument points to.
	FromField
	// FromField32 is the same, u32.
	FromField32
	// FromOut is, at the return, the u64 at Offset of what the argument points to.
	FromOut
	// FromReturn is what the function returned.
	FromReturn
)

// Operand is one value of a call. Arguments are counted from 0. On x86-64, 0 to 5 are in registers, 6 and on are the words on
// the stack behind the return address (System V psABI 3.2.3), where structs of more than 16 bytes that are passed by value
// lie too; such a struct takes no register from the arguments behind it.
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

// stack is word n of what is passed on the stack.
func stack(n uint8) Operand { return arg(6 + n) }
