// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"
)

// elsewhere marks a register that does not point into the stack.
const elsewhere = math.MaxInt32

// slot is what the verifier keeps track of the stack in, bytes (BPF_REG_SIZE).
const slot = 8

// bottom ends a loop that lowers a pointer: deeper slots are treated as one.
const bottom = -4096

// pointers holds for each register how far from the frame pointer it points at the least, or elsewhere.
type pointers [asm.R10 + 1]int32

// deepest follows every pointer into the function's stack on all ways through it and returns the deepest place that is read,
// written, or pointed to, in bytes, whole slots. Pointers are followed in registers: one that is put by and read back counts
// as deep as it was made, which is as deep as compilers use it. The verifier counts only what is reached with the constants of
// its load.
func (f *body) deepest() (int, error) {
	targets, err := jumps(f.insns)
	if err != nil {
		return 0, err
	}
	state := make([]pointers, len(f.insns))
	for i := range state {
		for r := range state[i] {
			state[i][r] = elsewhere
		}
	}
	state[0][asm.R10] = 0
	lowest := int32(0)
	again, seen := []int{0}, make([]bool, len(f.insns))
	for len(again) > 0 {
		i := again[len(again)-1]
		again = again[:len(again)-1]
		seen[i] = true
		after := state[i]
		lowest = min(lowest, after.step(&f.insns[i]))
		for _, next := range targets[i] {
			if state[next].join(after) || !seen[next] {
				again = append(again, next)
			}
		}
	}
	return (int(-lowest) + slot - 1) / slot * slot, nil
}

// join takes the lower of two pointers and tells if anything changed.
func (p *pointers) join(other pointers) bool {
	before := *p
	for r := range p {
		p[r] = max(min(p[r], other[r]), bottom)
	}
	return *p != before
}

// step is what an instruction does to the pointers, and the lowest place of the stack that it touches or begins to point to.
func (p *pointers) step(ins *asm.Instruction) int32 {
	op := ins.OpCode
	switch class := op.Class(); {
	case class == asm.LdXClass:
		touched := at(p[ins.Src], ins.Offset)
		p[ins.Dst] = elsewhere
		return touched
	case class == asm.StClass, class == asm.StXClass:
		return at(p[ins.Dst], ins.Offset)
	case class == asm.LdClass, class == asm.ALUClass:
		p[ins.Dst] = elsewhere
	case class == asm.ALU64Class:
		return p.compute(ins)
	case op.JumpOp() == asm.Call:
		for r := asm.R0; r <= asm.R5; r++ {
			p[r] = elsewhere
		}
	}
	return 0
}

// compute follows arithmetic on pointers: the compiler copies the frame pointer and adds a negative constant.
func (p *pointers) compute(ins *asm.Instruction) int32 {
	register := ins.OpCode.Source() == asm.RegSource
	dst := &p[ins.Dst]
	switch op := ins.OpCode.ALUOp(); {
	case op == asm.Mov && register && ins.Offset == 0:
		*dst = p[ins.Src]
	case op == asm.Add && register: // an index, on either side
		*dst = min(*dst, p[ins.Src])
	case op == asm.Sub && register:
	case op == asm.Add && *dst != elsewhere:
		*dst += int32(ins.Constant)
	case op == asm.Sub && *dst != elsewhere:
		*dst -= int32(ins.Constant)
	default:
		*dst = elsewhere
	}
	return at(*dst, 0)
}

// at is the place in the stack at an offset from a pointer; 0 when it is not in this function's stack.
func at(pointer int32, offset int16) int32 {
	if pointer == elsewhere {
		return 0
	}
	return min(pointer+int32(offset), 0)
}

// jumps lists for each instruction those that may follow it.
func jumps(insns asm.Instructions) ([][]int, error) {
	byOffset, byLabel := map[int64]int{}, map[string]int{}
	iter := insns.Iterate()
	for iter.Next() {
		byOffset[int64(iter.Offset)] = iter.Index
		if s := iter.Ins.Symbol(); s != "" {
			byLabel[s] = iter.Index
		}
	}
	out := make([][]int, len(insns))
	iter = insns.Iterate()
	for iter.Next() {
		i, op := iter.Index, iter.Ins.OpCode
		jumps := op.Class().IsJump() && op.JumpOp() != asm.Call && op.JumpOp() != asm.Exit
		if jumps {
			target, ok := byLabel[iter.Ins.Reference()]
			if iter.Ins.Reference() == "" {
				target, ok = byOffset[int64(iter.Offset)+1+distance(iter.Ins)]
			}
			if !ok {
				return nil, fmt.Errorf("instruction %d jumps out of the function", i)
			}
			out[i] = append(out[i], target)
		}
		ends := op.Class().IsJump() && (op.JumpOp() == asm.Exit || op.JumpOp() == asm.Ja)
		if ends {
			continue
		}
		if i+1 == len(insns) {
			return nil, fmt.Errorf("instruction %d is the last and does not end the function", i)
		}
		out[i] = append(out[i], i+1)
	}
	return out, nil
}

// distance is how far an instruction jumps; an unconditional jump of the 32-bit class keeps it in its constant.
func distance(ins *asm.Instruction) int64 {
	if ins.OpCode.Class() == asm.Jump32Class && ins.OpCode.JumpOp() == asm.Ja {
		return ins.Constant
	}
	return int64(ins.Offset)
}
