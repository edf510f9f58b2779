// SPDX-License-Identifier: Apache-2.0

package symbolize

import "debug/dwarf"

// walker reads entries of debug information up to a number of fields. debug/dwarf's own way to skip what is below an entry
// is a recursion without a bound, and follows a link back.
type walker struct {
	table  *lineTable
	reader *dwarf.Reader
	fields int // that may still be read
}

// walk begins at an entry.
func (t *lineTable) walk(at dwarf.Offset, fields int) *walker {
	w := &walker{table: t, reader: t.data.Reader(), fields: fields}
	w.reader.Seek(at)
	return w
}

// next is the next entry; nil at the end, where it cannot be read, and when the fields are used up. Tag 0 ends the entries
// below one.
func (w *walker) next() *dwarf.Entry {
	if w.fields <= 0 {
		return nil
	}
	e, err := w.reader.Next()
	if err != nil || e == nil {
		return nil
	}
	const textPerField = 64 // bytes of a string that take as long as a field
	w.fields -= 1 + len(e.Field)
	for i := range e.Field {
		if s, ok := e.Field[i].Val.(string); ok {
			w.fields -= len(s) / textPerField
		}
	}
	return e
}

// at is the entry at an offset.
func (w *walker) at(off dwarf.Offset) *dwarf.Entry {
	w.reader.Seek(off)
	return w.next()
}

// skip goes behind what is below an entry, which is the one that next gave.
func (w *walker) skip(e *dwarf.Entry) {
	for depth := 0; e != nil; e = w.next() {
		sibling, ok := e.Val(dwarf.AttrSibling).(dwarf.Offset)
		switch {
		case e.Tag == 0:
			depth--
		case e.Children && ok && sibling > e.Offset:
			w.reader.Seek(sibling)
		case e.Children:
			depth++
		}
		if depth == 0 {
			return
		}
	}
}

// ranges is the code of an entry; nil when there is none.
func (w *walker) ranges(e *dwarf.Entry) [][2]uint64 {
	if e.Val(dwarf.AttrLowpc) == nil && e.Val(dwarf.AttrRanges) == nil {
		return nil
	}
	ranges, err := w.table.data.Ranges(e)
	if err != nil {
		return nil
	}
	w.fields -= len(ranges)
	return ranges
}
