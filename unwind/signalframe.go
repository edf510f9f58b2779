// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"bytes"
	"debug/elf"
	"slices"

	"github.com/gputrace/gputrace/process"
)

// fromSignal goes on to the code that a signal interrupted. Where libraries describe their trampoline at all, not all do so
// rightly; the kernel's frame is the same everywhere.
func (w *unwinding) fromSignal(m *machine) (WalkEnd, bool) {
	sp := w.regs.value[m.sp]
	next := registerValues{}
	for i, n := range m.signalRegisters {
		v, err := process.Uint64(w.Stack, sp+m.signalBase+8*uint64(i))
		if err != nil {
			return WalkNoMemory, true
		}
		next.value[n] = v
	}
	w.regs, w.caller = next, false
	return WalkDone, false
}

// maxUndescribed is how much code is searched for a trampoline without a description, bytes. arm64's lies in the vdso, which has 4 KiB.
const maxUndescribed = 64 << 10

// addTrampoline adds the rows of a signal trampoline that no description covers: arm64's vdso has one, which some kernels do not
// describe (arch/arm64/kernel/vdso/sigreturn.S). They begin before it, because a return address is looked up one byte earlier.
func (f *Frames) addTrampoline(t *Table, m *machine) *Table {
	if !m.linked {
		return t
	}
	for i := range f.Image.Segments {
		s := &f.Image.Segments[i]
		if s.Kind != elf.PT_LOAD || s.Flags&elf.PF_X == 0 || len(s.Data) > maxUndescribed {
			continue
		}
		if at := bytes.Index(s.Data, m.trampoline); at > 0 {
			from := s.Addr + uint64(at)
			if t == nil {
				t = &Table{Rules: []uint64{0}}
			}
			if t.Lookup(from-1).Kind() == RuleNone && t.Lookup(from).Kind() == RuleNone {
				t.insertSignal(uint32(from-1), uint32(from)+uint32(len(m.trampoline)))
			}
		}
	}
	return t
}

// insertSignal adds a RuleSignal for [from, to), where the table has none.
func (t *Table) insertSignal(from, to uint32) {
	number := uint64(len(t.Rules))
	t.Rules = append(t.Rules, uint64(RuleSignal))
	at, _ := slices.BinarySearchFunc(t.Rows, from, func(row uint64, pc uint32) int { return int(int64(uint32(row)) - int64(pc)) })
	rows := []uint64{number<<32 | uint64(from)}
	if at == len(t.Rows) || uint32(t.Rows[at]) > to {
		rows = append(rows, uint64(to)) // rule 0 is RuleNone
	}
	t.Rows = slices.Insert(t.Rows, at, rows...)
}
