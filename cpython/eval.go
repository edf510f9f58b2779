// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/unwind"
)

// evalLoop is the function that runs Python frames. To 3.9 each call of it runs one, and leaves nothing on the C stack that
// the interpreter's own list of frames points to.
const evalLoop = "_PyEval_EvalFrameDefault"

const (
	maxEvalParts = 4       // ranges that the kernel side compares with
	maxEvalCode  = 1 << 20 // bytes of code that are looked through; the loop has 35 KiB
	textRead     = 1 << 15
)

// evalRanges are the addresses of the eval loop in the process: the function, and what the compiler split off it.
func (l *located) evalRanges(p *process.Process) ([]Range, error) {
	entry, ok := l.file.find(evalLoop)
	if !ok {
		return nil, fmt.Errorf("no symbol %s: Python frames cannot be placed among native ones", evalLoop)
	}
	f, err := p.OpenFile(&l.mapping)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	file, err := symbolize.Open(f, l.mapping.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parts, err := splitParts(file, entry.addr)
	if err != nil {
		return nil, fmt.Errorf("find the parts of %s: %w", evalLoop, err)
	}
	if cold, ok := l.file.find(evalLoop + ".cold"); ok && cold.size > 0 {
		parts = addPart(parts, Range{cold.addr, cold.addr + cold.size})
	}
	if len(parts) > maxEvalParts {
		return nil, fmt.Errorf("%s is in %d parts, want at most %d", evalLoop, len(parts), maxEvalParts)
	}
	for i := range parts {
		parts[i].Start += l.bias
		parts[i].Limit += l.bias
	}
	return parts, nil
}

// splitParts are the link-time addresses of a function and of the parts that were split off it. A stripped file does not
// name them, but the function jumps to them, and at the target the unwind information goes on with the frame as it was at
// the jump. At the target of a tail call it begins with that of a fresh call.
func splitParts(file *symbolize.File, entry uint64) ([]Range, error) {
	start, limit, ok := file.Frames().Bounds(entry)
	if !ok {
		return nil, fmt.Errorf("no unwind information at %#x", entry)
	}
	table, err := file.Frames().Table()
	if err != nil {
		return nil, err
	}
	entryCFA, jumps := int64(8), decodeJumps
	if file.Machine() == elf.EM_AARCH64 {
		entryCFA, jumps = 0, decodeJumpsArm64
	}
	fresh := unwind.NewRule(unwind.RuleSP, entryCFA, unwind.SavedFP{})
	parts := []Range{{start, limit}}
	for i := 0; i < len(parts) && len(parts) <= maxEvalParts; i++ {
		for _, j := range jumpsOf(file, parts[i], jumps) {
			rule := table.Lookup(j.to)
			start, limit, ok := file.Frames().Bounds(j.to)
			if ok && rule != fresh && rule == table.Lookup(j.from) {
				parts = addPart(parts, Range{start, limit})
			}
		}
	}
	return parts, nil
}

func addPart(parts []Range, r Range) []Range {
	if slices.ContainsFunc(parts, func(p Range) bool { return r.Start < p.Limit && p.Start < r.Limit }) {
		return parts
	}
	return append(parts, r)
}

// jump is a direct jump, with the link-time addresses of the instruction and of its target.
type jump struct {
	from, to uint64
}

// decoder lists direct jumps as decodeJumps does.
type decoder func(code []byte, at uint64, last bool) (found []jump, used int)

// jumpsOf lists the direct jumps out of a range of code.
func jumpsOf(file *symbolize.File, r Range, decode decoder) []jump {
	var out []jump
	for at := r.Start; at < r.Limit && at-r.Start < maxEvalCode; {
		code, ok := file.Text(at, int(min(r.Limit-at, textRead)))
		if !ok {
			break
		}
		found, used := decode(code, at, len(code) == int(r.Limit-at))
		for _, j := range found {
			if j.to < r.Start || j.to >= r.Limit {
				out = append(out, j)
			}
		}
		at += uint64(used)
	}
	return out
}

// maxInstruction is how long an x86 instruction can be, bytes.
const maxInstruction = 15

// decodeJumps lists the direct jumps in code that lies at an address, and how many bytes it went through: when the code goes
// on, an instruction at its end is left for the next piece. What is no instruction is passed over byte by byte.
func decodeJumps(code []byte, at uint64, last bool) (found []jump, used int) {
	for used < len(code) && (last || used == 0 || len(code)-used >= maxInstruction) {
		inst, err := x86asm.Decode(code[used:], 64)
		if err != nil || inst.Len == 0 {
			used++
			continue
		}
		if rel, ok := inst.Args[0].(x86asm.Rel); ok && inst.Op != x86asm.CALL {
			from := at + uint64(used)
			found = append(found, jump{from, from + uint64(inst.Len) + uint64(int64(rel))})
		}
		used += inst.Len
	}
	return found, used
}

// decodeJumpsArm64 is decodeJumps for arm64 (Arm ARM, C6.2: B, B.cond, CBZ, CBNZ, TBZ, TBNZ): instructions of 4 bytes.
func decodeJumpsArm64(code []byte, at uint64, _ bool) (found []jump, used int) {
	for ; used+4 <= len(code); used += 4 {
		from := at + uint64(used)
		if distance, ok := jumpDistance(binary.LittleEndian.Uint32(code[used:])); ok {
			found = append(found, jump{from, from + uint64(distance)})
		}
	}
	return found, len(code)
}

// jumpDistance is how far an instruction jumps, bytes: its signed field of 26, 19 or 14 bits counts instructions.
func jumpDistance(word uint32) (bytes int64, ok bool) {
	switch {
	case word>>26 == 0x05: // B
		return int64(int32(word<<6)>>6) * 4, true
	case word>>24 == 0x54, word>>25&0x3f == 0x1a: // B.cond; CBZ, CBNZ
		return int64(int32(word<<8)>>13) * 4, true
	case word>>25&0x3f == 0x1b: // TBZ, TBNZ
		return int64(int32(word<<13)>>18) * 4, true
	}
	return 0, false
}
