// SPDX-License-Identifier: Apache-2.0

// Package unwind says how stacks are unwound: rows for the kernel from the frame descriptions of ELF objects (.eh_frame), kept in a
// cache on disk, and a walker outside the kernel for what those rows cannot say.
package unwind

import (
	"debug/elf"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// MaxRules bounds the different rules of one file. libtorch_cpu 2.15 has 1,409.
const MaxRules = 1 << 16

// Table is the unwind rules of a file, by link-time address. A rule holds from its row's pc up to the next row's.
type Table struct {
	// Rows hold a pc in their low 32 bits and an index into Rules in their high 32 bits; sorted by pc, each pc once.
	Rows []uint64
	// Rules are Rule values, each once. The first is RuleNone.
	Rules []uint64
}

// Lookup is the rule at a link-time address. For a return address look up the byte before it.
func (t *Table) Lookup(vaddr uint64) Rule {
	if t == nil || vaddr > math.MaxUint32 {
		return Rule(RuleNone)
	}
	i := sort.Search(len(t.Rows), func(i int) bool { return uint64(uint32(t.Rows[i])) > vaddr })
	if i == 0 {
		return Rule(RuleNone)
	}
	return Rule(t.Rules[t.Rows[i-1]>>32])
}

// Table builds the table from .eh_frame. It is nil, without an error, when that describes no function. Errors wrap
// ErrFormat: code above 4 GiB, an unknown architecture, damaged records, more than MaxRules rules.
//
// Where descriptions overlap, the one that starts later wins, as in the binary search of libgcc's unwinder.
func (f *Frames) Table() (t *Table, err error) {
	defer elfimage.OnFault(func(e error) { t, err = nil, fmt.Errorf("unwind table of %s: %w", f.Image.Path, e) })()
	sec, err := f.frameSection()
	if err == nil && sec == nil {
		return f.addTrampoline(nil, machines[f.Image.Machine()]), nil
	}
	if err == nil {
		err = f.checkRange()
	}
	if err == nil {
		t, err = f.buildTable(sec)
	}
	if err == nil {
		t = f.addTrampoline(t, sec.machine)
	}
	if err != nil {
		return nil, fmt.Errorf("unwind table of %s: %w", f.Image.Path, err)
	}
	return t, nil
}

// checkRange makes sure that every pc fits a row.
func (f *Frames) checkRange() error {
	for i := range f.Image.Segments {
		s := &f.Image.Segments[i]
		if s.Kind == elf.PT_LOAD && s.Flags&elf.PF_X != 0 && s.Addr+s.MemSize > math.MaxUint32 {
			return fmt.Errorf("code up to %#x, want below 4 GiB: %w", s.Addr+s.MemSize, elfimage.ErrFormat)
		}
	}
	return nil
}

func (f *Frames) buildTable(sec *frameSection) (*Table, error) {
	frames, err := f.scanFrames(sec)
	if err != nil {
		return nil, err
	}
	if len(frames) == 0 {
		return nil, nil
	}
	b := newTableBuilder(len(sec.data))
	cies := cieCache{section: sec}
	x := interpreter{section: sec}
	x.emit = func(loc uint64, s *cfiState) error { return b.add(uint32(loc), s.rule(sec.machine, x.cie.signal)) }
	for i, fr := range frames {
		end := fr.end
		if i+1 < len(frames) && frames[i+1].start < end {
			fr.end = frames[i+1].start
		}
		if err := x.record(&cies, fr); err != nil {
			return nil, err
		}
		if fr.end == end && (i+1 == len(frames) || frames[i+1].start > end) {
			if err := b.add(end, Rule(RuleNone)); err != nil {
				return nil, err
			}
		}
	}
	return b.table(), nil
}

// record runs the description that scanFrames found, cut to the range that the caller left of it.
func (x *interpreter) record(cies *cieCache, fr frame) error {
	rec, err := x.section.record(int(fr.off))
	if err != nil {
		return err
	}
	c := cies.get(rec.cie)
	_, program, ok := x.section.readFDE(rec, c)
	if !ok {
		return fmt.Errorf("frame description at %#x changed: %w", fr.off, elfimage.ErrFormat)
	}
	base := x.section.addr + uint64(rec.pos+len(rec.body)-len(program))
	return x.frame(c, fr, program, base)
}

// tableBuilder collects rows and numbers the rules: equal rules have one number.
type tableBuilder struct {
	rows  []uint64
	rules []uint64
	last  Rule // of the last row
	index map[Rule]uint32
	// recent remembers numbers by a hash of the rule: a function uses the same few again and again.
	recent [1 << recentBits]struct {
		rule   Rule
		number uint32
	}
}

const recentBits = 10

func newTableBuilder(sectionSize int) *tableBuilder {
	const bytesPerRow = 6 // PyTorch 2.15: 6.0 to 6.7; libpython 5
	b := &tableBuilder{index: map[Rule]uint32{0: 0}, rules: []uint64{0}}
	b.rows = make([]uint64, 0, sectionSize/bytesPerRow)
	return b
}

// add appends a row unless the rule already holds there. Rows come in order.
func (b *tableBuilder) add(pc uint32, rule Rule) error {
	if rule == b.last {
		return nil // before the first row RuleNone holds
	}
	n, err := b.number(rule)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, uint64(n)<<32|uint64(pc))
	b.last = rule
	return nil
}

func (b *tableBuilder) number(rule Rule) (uint32, error) {
	const multiplier = 0x9e3779b97f4a7c15 // 2^64 / golden ratio: spreads all bits to the top
	slot := &b.recent[uint64(rule)*multiplier>>(64-recentBits)]
	if slot.rule == rule {
		return slot.number, nil // an empty slot is right for rule 0, whose number is 0
	}
	n, ok := b.index[rule]
	if !ok {
		if len(b.rules) == MaxRules {
			return 0, fmt.Errorf("more than %d different rules: %w", MaxRules, elfimage.ErrFormat)
		}
		n = uint32(len(b.rules))
		b.rules = append(b.rules, uint64(rule))
		b.index[rule] = n
	}
	slot.rule, slot.number = rule, n
	return n, nil
}

// table trims the rows: the guess of their number may be far too high.
func (b *tableBuilder) table() *Table {
	if cap(b.rows)-len(b.rows) > len(b.rows)/8 {
		b.rows = slices.Clone(b.rows)
	}
	return &Table{Rows: b.rows, Rules: b.rules}
}
