// SPDX-License-Identifier: Apache-2.0

package unwind

import "fmt"

// Rule says how to get from a frame to its caller at one pc. Zero is "no information".
//
//	 63      56 55                  32 31                   8 7 6 5 4 3    0
//	+----------+----------------------+----------------------+-+-+-+-+------+
//	|    0     |  fpoff, signed       |  CFA offset, signed  |0|0|R|C| kind |
//	+----------+----------------------+----------------------+-+-+-+-+------+
//
// C: the caller's frame pointer is saved at CFA + fpoff. R: it is saved at (this frame's frame pointer) + fpoff. Neither:
// the caller has this frame's. In a rule of RulePLT the field of fpoff holds two constants instead, see PLT. The return
// address of x86-64 always lies at CFA - 8; on arm64 it lies 8 above the saved frame pointer, with C and R at CFA + fpoff while the
// frame pointer is unchanged, and with neither is still in x30. The kernel side reads the same layout.
type Rule uint64

// RuleKind says how the canonical frame address, the value of the stack pointer before the call, is computed.
type RuleKind uint8

// The kinds cross into the kernel: never renumber.
const (
	RuleNone        RuleKind = 0  // no information: between functions
	RuleSP          RuleKind = 1  // CFA = sp + offset
	RuleFP          RuleKind = 2  // CFA = fp + offset
	RulePLT         RuleKind = 3  // CFA = sp + offset + ((pc & 15) >= compare ? add : 0)
	RuleDerefFP     RuleKind = 4  // CFA = *(fp + offset): a function that realigned its stack
	RuleDerefSP     RuleKind = 5  // CFA = *(sp + offset)
	RuleSignal      RuleKind = 6  // all registers are in the rt_sigframe at sp; the caller's pc is exact, no return address
	RuleEnd         RuleKind = 7  // outermost frame: there is no caller
	RuleUnsupported RuleKind = 15 // there is information, in a form that no rule expresses
)

var ruleKindNames = map[RuleKind]string{
	RuleNone: "none", RuleSP: "sp", RuleFP: "fp", RulePLT: "plt", RuleDerefFP: "*fp", RuleDerefSP: "*sp",
	RuleSignal: "signal", RuleEnd: "end", RuleUnsupported: "unsupported",
}

func (k RuleKind) String() string {
	if s, ok := ruleKindNames[k]; ok {
		return s
	}
	return fmt.Sprintf("rule(%d)", uint8(k))
}

const (
	ruleKindMask    = 15
	ruleFPAtCFA     = 1 << 4
	ruleFPAtFP      = 1 << 5
	ruleOffsetShift = 8
	ruleFPShift     = 32
	ruleFieldBits   = 24
	ruleFieldMask   = 1<<ruleFieldBits - 1
	pltCompareShift = 32
	pltAddShift     = 40
)

// SavedFP says where the caller's frame pointer is.
type SavedFP struct {
	// Base is FPUnchanged, FPAtCFA, FPAtFP or, of arm64, ReturnAtCFA.
	Base FPBase
	// Offset from the base, bytes.
	Offset int64
}

// FPBase says from where SavedFP counts.
type FPBase uint8

// The values are the rule's bits 4 and 5.
const (
	FPUnchanged FPBase = 0 // the caller's frame pointer is still in the register
	FPAtCFA     FPBase = 1 // it is saved relative to the CFA
	FPAtFP      FPBase = 2 // it is saved relative to the current frame pointer
	ReturnAtCFA FPBase = 3 // it is still in the register; the return address is saved relative to the CFA
)

// NewRule packs a rule. When an offset does not fit its 24 bits, or the base is none of the four, the rule is of kind
// RuleUnsupported.
func NewRule(kind RuleKind, offset int64, fp SavedFP) Rule {
	if !fitsField(offset) || !fitsField(fp.Offset) || fp.Base > ReturnAtCFA {
		return Rule(RuleUnsupported)
	}
	return Rule(uint64(kind&ruleKindMask) | uint64(fp.Base)<<4 |
		uint64(offset)&ruleFieldMask<<ruleOffsetShift | uint64(fp.Offset)&ruleFieldMask<<ruleFPShift)
}

// NewPLTRule packs the rule of a procedure linkage table.
func NewPLTRule(offset int64, compare, add uint8) Rule {
	if !fitsField(offset) {
		return Rule(RuleUnsupported)
	}
	return Rule(uint64(RulePLT) | uint64(offset)&ruleFieldMask<<ruleOffsetShift |
		uint64(compare)<<pltCompareShift | uint64(add)<<pltAddShift)
}

// Kind is how the CFA is computed.
func (r Rule) Kind() RuleKind { return RuleKind(r & ruleKindMask) }

// Offset is the CFA's offset in bytes, see the kinds.
func (r Rule) Offset() int64 { return signField(uint64(r) >> ruleOffsetShift) }

// FP is where the caller's frame pointer is. It has no meaning in a rule of RulePLT.
func (r Rule) FP() SavedFP {
	return SavedFP{Base: FPBase(r >> 4 & 3), Offset: signField(uint64(r) >> ruleFPShift)}
}

// PLT is the constants of a rule of RulePLT: behind which of the 16 bytes of an entry (compare) how many bytes (add) were
// pushed.
func (r Rule) PLT() (compare, add uint8) {
	return uint8(r >> pltCompareShift), uint8(r >> pltAddShift)
}

func (r Rule) String() string {
	switch k := r.Kind(); k {
	case RuleNone, RuleSignal, RuleEnd, RuleUnsupported:
		return k.String()
	case RulePLT:
		compare, add := r.PLT()
		return fmt.Sprintf("sp%+d, +%d from byte %d", r.Offset(), add, compare)
	default:
		return fmt.Sprintf("%s%+d%s", k, r.Offset(), r.FP())
	}
}

func (s SavedFP) String() string {
	switch s.Base {
	case FPAtCFA:
		return fmt.Sprintf(" fp=*(cfa%+d)", s.Offset)
	case FPAtFP:
		return fmt.Sprintf(" fp=*(fp%+d)", s.Offset)
	case ReturnAtCFA:
		return fmt.Sprintf(" ra=*(cfa%+d)", s.Offset)
	default:
		return ""
	}
}

func fitsField(v int64) bool {
	return v >= -(1<<(ruleFieldBits-1)) && v < 1<<(ruleFieldBits-1)
}

func signField(v uint64) int64 {
	return int64(v<<(64-ruleFieldBits)) >> (64 - ruleFieldBits)
}
