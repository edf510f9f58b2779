// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
)

// pointRows are the probes of OpenTelemetry's contract for memory (design document 00003 of its eBPF profiler): alloc(address,
// bytes, weight) on a sampled allocation, free(address) on the free of one that was sampled. weight is the number of allocated
// bytes that the sample represents. An allocator that reports every allocation passes its bytes as weight.
var pointRows = []Row{
	point("alloc", event.KindAlloc, arg(2), arg(1)),
	point("free", event.KindFree),
}

// Unplaced is the type of the device of an allocator that names none.
const Unplaced event.DeviceType = 31

func point(name string, kind event.Kind, dims ...Operand) Row {
	r := Row{
		Library: OTel, Symbol: name, Title: OTel.Provider + ":" + name, Program: Point, Allocator: allocator.OTel,
		Layer: event.LayerAllocator, Kind: kind, DeviceType: Unplaced,
		Pointer: None, Size: None, Allocated: None, Reserved: None, Device: None,
		Addr: arg(0), Dims: dims,
	}
	if len(dims) > 1 {
		r.Requested = 1
	}
	return r
}

// At returns the row for one place of a probe that a library defines, whose arguments are at operands.
func (r *Row) At(operands []Operand) (Row, error) {
	at := *r
	at.Dims = make([]Operand, len(r.Dims))
	for to, from := range map[*Operand]Operand{&at.Addr: r.Addr, &at.Handle: r.Handle, &at.Ordinal: r.Ordinal, &at.Guard: r.Guard} {
		if err := place(to, from, operands); err != nil {
			return Row{}, fmt.Errorf("%s: %w", r.Label(), err)
		}
	}
	for i, d := range r.Dims {
		if err := place(&at.Dims[i], d, operands); err != nil {
			return Row{}, fmt.Errorf("%s: %w", r.Label(), err)
		}
	}
	return at, nil
}

func place(to *Operand, from Operand, operands []Operand) error {
	switch {
	case from.From == FromNone:
	case int(from.Arg) >= len(operands):
		return fmt.Errorf("%d arguments, argument %d is needed", len(operands), from.Arg+1)
	default:
		*to = operands[from.Arg]
	}
	return nil
}

// widthShift is the first bit of an operand's width in Operand.Arg, above the register; signedWidth marks a signed value.
const (
	widthShift  = 5
	signedWidth = 4
)

// sites match the operands of a probe: N@OPERAND, N the number of bytes, negative if signed. Arm's memory operands contain spaces.
var (
	sites      = regexp.MustCompile(`(\S*?)@(\[[^\]]*\]|\S+)`)
	x86Memory  = regexp.MustCompile(`^(-?(?:0x)?[0-9a-f]*)\(%(\w+)\)$`)
	armMemory  = regexp.MustCompile(`^\[(\w+)(?:, *#?(-?\d+))?\]$`)
	widthCodes = map[string]uint8{
		"1": 0, "2": 1, "4": 2, "8": 3, "-1": signedWidth, "-2": signedWidth + 1, "-4": signedWidth + 2, "-8": signedWidth + 3,
	}
)

// ParseOperands reads the operands of a probe's note (symbolize.Point.Args) for a processor, GOARCH.
func ParseOperands(args, processor string) ([]Operand, error) {
	var out []Operand
	for _, m := range sites.FindAllStringSubmatch(args, -1) {
		width, ok := widthCodes[m[1]]
		if !ok {
			return nil, fmt.Errorf("operand %q has no known width", m[0])
		}
		parse := parseX86
		if processor == "arm64" {
			parse = parseArm
		}
		o, ok := parse(m[2])
		if !ok {
			return nil, fmt.Errorf("operand %q is of no known form", m[0])
		}
		if o.From != FromConstant {
			o.Arg |= width << widthShift
		}
		out = append(out, o)
	}
	return out, nil
}

func parseX86(text string) (Operand, bool) {
	if number, ok := strings.CutPrefix(text, "$"); ok {
		return constant(number)
	}
	if name, ok := strings.CutPrefix(text, "%"); ok {
		return register(FromRegister, x86Register(name), 0)
	}
	if m := x86Memory.FindStringSubmatch(text); m != nil {
		return memory(x86Register(m[2]), m[1])
	}
	return Operand{}, false
}

func parseArm(text string) (Operand, bool) {
	if m := armMemory.FindStringSubmatch(text); m != nil {
		return memory(armRegister(m[1]), m[2])
	}
	if n := armRegister(text); n >= 0 {
		return register(FromRegister, n, 0)
	}
	return constant(text)
}

func memory(n int, offset string) (Operand, bool) {
	at := int64(0)
	if offset != "" {
		var err error
		if at, err = strconv.ParseInt(offset, 0, 16); err != nil {
			return Operand{}, false
		}
	}
	return register(FromMemory, n, uint16(at))
}

func register(from From, n int, offset uint16) (Operand, bool) {
	return Operand{From: from, Arg: uint8(n), Offset: offset}, n >= 0
}

// constant stores a number as 16 bits and a shift; a negative one and one with more significant bits has no form.
func constant(text string) (Operand, bool) {
	n, err := strconv.ParseUint(text, 0, 64)
	shift := uint8(0)
	for n > 0xffff && n&1 == 0 {
		n, shift = n>>1, shift+1
	}
	return Operand{From: FromConstant, Arg: shift, Offset: uint16(n)}, err == nil && n <= 0xffff
}

// x86Registers are the registers whose parts have names of their own, by DWARF number.
var x86Registers = []string{"ax", "dx", "cx", "bx", "si", "di", "bp", "sp"}

// x86Register returns the DWARF number of a general register or of its low part, or -1.
func x86Register(name string) int {
	for n, short := range x86Registers {
		low := short + "l" // sil, dil, bpl, spl
		if short[1] == 'x' {
			low = short[:1] + "l"
		}
		if name == "r"+short || name == "e"+short || name == short || name == low {
			return n
		}
	}
	number, ok := strings.CutPrefix(strings.TrimRight(name, "dwb"), "r")
	if n, err := strconv.Atoi(number); ok && err == nil && n >= 8 && n <= 15 {
		return n
	}
	return -1
}

// armStack is the DWARF number of sp.
const armStack = 31

// armRegister returns the DWARF number of a general register or of its low half, or -1.
func armRegister(name string) int {
	if name == "sp" {
		return armStack
	}
	if len(name) < 2 || name[0] != 'x' && name[0] != 'w' {
		return -1
	}
	if n, err := strconv.Atoi(name[1:]); err == nil && n >= 0 && n < armStack {
		return n
	}
	return -1
}
