// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"fmt"
	"path"
	"slices"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// Limits of a unit's line program. debug/dwarf has none: it allocates what a header claims, and a path for each file.
const (
	maxLineFiles = 1 << 18
	maxPath      = 4096 // PATH_MAX (Linux, include/uapi/linux/limits.h)
)

// lineProgram is the header of a line number program (DWARF 5, section 6.2.4). Names are views of the file.
type lineProgram struct {
	version   uint16
	wide      bool // offsets have 8 bytes
	step      uint64
	lineBase  int8
	lineRange byte
	lengths   []byte // operands of the standard opcodes, from 1 on
	dirs      [][]byte
	files     []lineFile
	code      elfimage.Reader
}

type lineFile struct {
	name []byte
	dir  uint64
}

// lineSections are what a line program's header refers to.
type lineSections struct{ line, str, lineStr []byte }

// open reads the header at an offset of .debug_line.
func (s *lineSections) open(off uint64) (*lineProgram, error) {
	if off > uint64(len(s.line)) {
		return nil, fmt.Errorf("line program at %#x of %d bytes: %w", off, len(s.line), elfimage.ErrFormat)
	}
	p := &lineProgram{}
	r := elfimage.Reader{B: s.line[off:]}
	length := uint64(r.U32())
	if p.wide = length == 0xffffffff; p.wide {
		length = r.U64()
	}
	r = elfimage.Reader{B: r.Take(length)}
	p.version = r.U16()
	if p.version >= 5 {
		r.U16() // sizes of an address and of a segment selector
	}
	header := elfimage.Reader{B: r.Take(p.offset(&r))}
	p.code = elfimage.Reader{B: r.B[r.Off:]}
	if r.Bad || p.version < 2 || p.version > 5 {
		return nil, fmt.Errorf("line program at %#x of version %d: %w", off, p.version, elfimage.ErrFormat)
	}
	p.step = uint64(header.U8())
	operations := byte(1)
	if p.version >= 4 {
		operations = header.U8()
	}
	header.U8() // default_is_stmt
	p.lineBase, p.lineRange = int8(header.U8()), header.U8()
	p.lengths = header.Take(max(1, uint64(header.U8())) - 1)
	if p.version >= 5 {
		p.dirs = paths(p.entries(&header, s))
		p.files = p.entries(&header, s)
	} else {
		p.oldEntries(&header)
	}
	if header.Bad || p.lineRange == 0 || operations != 1 {
		return nil, fmt.Errorf("header of the line program at %#x: %w", off, elfimage.ErrFormat)
	}
	return p, nil
}

func paths(files []lineFile) (out [][]byte) {
	for i := range files {
		out = append(out, files[i].name)
	}
	return out
}

// oldEntries reads the directories and files of versions 2 to 4; the first of each is not there.
func (p *lineProgram) oldEntries(r *elfimage.Reader) {
	p.dirs, p.files = append(p.dirs, nil), append(p.files, lineFile{})
	for dir := r.CString(); len(dir) > 0 && len(p.dirs) < maxLineFiles; dir = r.CString() {
		p.dirs = append(p.dirs, dir)
	}
	for name := r.CString(); len(name) > 0 && len(p.files) < maxLineFiles; name = r.CString() {
		p.files = append(p.files, lineFile{name, r.ULEB()})
		r.ULEB() // time
		r.ULEB() // size
	}
}

// Content types and forms of version 5 (DWARF 5, tables 7.27 and 7.6).
const (
	contentPath = 1
	contentDir  = 2

	formBlock    = 0x09
	formString   = 0x08
	formStrp     = 0x0e
	formUdata    = 0x0f
	formLineStrp = 0x1f
)

// fixedForms are the sizes of the forms that always have the same, bytes.
var fixedForms = map[uint64]uint64{0x0b: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1e: 16}

// entries reads a table of version 5: what its entries have, how many there are, and they.
func (p *lineProgram) entries(r *elfimage.Reader, s *lineSections) (out []lineFile) {
	format := make([][2]uint64, r.U8())
	for i := range format {
		format[i] = [2]uint64{r.ULEB(), r.ULEB()}
	}
	count := r.ULEB()
	if len(format) == 0 && count > 0 || count > maxLineFiles {
		r.Bad = true
	}
	for i := uint64(0); i < count && !r.Bad; i++ {
		var e lineFile
		for _, f := range format {
			text, number := p.value(r, f[1], s)
			switch f[0] {
			case contentPath:
				e.name = text
			case contentDir:
				e.dir = number
			}
		}
		out = append(out, e)
	}
	return out
}

// value reads a value of a form.
func (p *lineProgram) value(r *elfimage.Reader, form uint64, s *lineSections) (text []byte, number uint64) {
	switch form {
	case formString:
		return r.CString(), 0
	case formLineStrp:
		return textAt(s.lineStr, p.offset(r)), 0
	case formStrp:
		return textAt(s.str, p.offset(r)), 0
	case formUdata:
		return nil, r.ULEB()
	case formBlock:
		r.Take(r.ULEB())
		return nil, 0
	}
	size, ok := fixedForms[form]
	if !ok {
		r.Bad = true
	}
	for i, b := range r.Take(size) {
		if i < 8 {
			number |= uint64(b) << (8 * i)
		}
	}
	return nil, number
}

// offset reads an offset, as wide as the program's are.
func (p *lineProgram) offset(r *elfimage.Reader) uint64 {
	if p.wide {
		return r.U64()
	}
	return uint64(r.U32())
}

func textAt(tab []byte, off uint64) []byte {
	if off > 1<<32-1 {
		return nil
	}
	return elfimage.CStringAt(tab, uint32(off), maxPath)
}

// path is a file's path; compDir is the folder that the compiler ran in. "" for a number without a file.
func (p *lineProgram) path(number int64, compDir string) string {
	if number < 0 || number >= int64(len(p.files)) {
		return ""
	}
	f := p.files[number]
	if len(f.name) == 0 || len(f.name) > maxPath {
		return ""
	}
	name := string(f.name)
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	dir := ""
	if f.dir < uint64(len(p.dirs)) && len(p.dirs[f.dir]) <= maxPath {
		dir = string(p.dirs[f.dir])
	}
	if !path.IsAbs(dir) {
		dir = path.Join(compDir, dir)
	}
	return path.Join(dir, name)
}

// Opcodes (DWARF 5, tables 7.25 and 7.26).
const (
	lnsExtended       = 0
	lnsCopy           = 1
	lnsAdvancePC      = 2
	lnsAdvanceLine    = 3
	lnsSetFile        = 4
	lnsConstAddPC     = 8
	lnsFixedAdvancePC = 9

	lneEndSequence = 1
	lneSetAddress  = 2
)

// lineMachine runs a line program.
type lineMachine struct {
	p        *lineProgram
	row      lineRow
	sequence []lineRow
	rows     []lineRow
	keep     func(addr uint64) bool
}

// run returns the rows of the sequences that keep wants, by their first addresses, sorted by address. Of a program that
// breaks off, or has more than limit rows, the first ones are given.
func (p *lineProgram) run(limit int, keep func(addr uint64) bool) []lineRow {
	m := lineMachine{p: p, row: lineRow{file: 1, line: 1}, keep: keep}
	for r := &p.code; !r.Bad && r.Off < len(r.B) && len(m.rows)+len(m.sequence) < limit; {
		m.step(r)
	}
	slices.SortStableFunc(m.rows, compareRows)
	return m.rows
}

func (m *lineMachine) step(r *elfimage.Reader) {
	op := r.U8()
	if int(op) > len(m.p.lengths) {
		m.advance(op)
		m.row.line += int32(m.p.lineBase) + int32(m.special(op)%m.p.lineRange)
		m.emit()
		return
	}
	switch op {
	case lnsExtended:
		m.extended(elfimage.Reader{B: r.Take(r.ULEB())})
	case lnsCopy:
		m.emit()
	case lnsAdvancePC:
		m.row.addr += m.p.step * r.ULEB()
	case lnsAdvanceLine:
		m.row.line += int32(r.SLEB())
	case lnsSetFile:
		m.row.file = int32(min(r.ULEB(), maxLineFiles))
	case lnsConstAddPC:
		m.advance(255)
	case lnsFixedAdvancePC:
		m.row.addr += uint64(r.U16())
	default: // columns and marks; the header tells the operands of those that are not known
		for range m.p.lengths[op-1] {
			r.Leb()
		}
	}
}

// special is a special opcode's number.
func (m *lineMachine) special(op byte) byte { return op - byte(len(m.p.lengths)) - 1 }

func (m *lineMachine) advance(op byte) {
	m.row.addr += m.p.step * uint64(m.special(op)/m.p.lineRange)
}

func (m *lineMachine) extended(r elfimage.Reader) {
	switch r.U8() {
	case lneEndSequence:
		m.end()
		m.row = lineRow{file: 1, line: 1}
	case lneSetAddress:
		m.row.addr = r.U64()
	}
}

// emit adds a row. The last one at an address counts.
func (m *lineMachine) emit() {
	if n := len(m.sequence); n > 0 && m.sequence[n-1].addr == m.row.addr {
		m.sequence = m.sequence[:n-1]
	}
	m.sequence = append(m.sequence, m.row)
}

// end closes a sequence, one stretch of code.
func (m *lineMachine) end() {
	rows := m.sequence
	for len(rows) > 0 && rows[len(rows)-1].addr >= m.row.addr {
		rows = rows[:len(rows)-1]
	}
	if len(rows) > 0 && m.keep(rows[0].addr) {
		m.rows = append(append(m.rows, rows...), lineRow{addr: m.row.addr, file: -1})
	}
	m.sequence = m.sequence[:0]
}
