// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// Code is a code object: the compiled body of a function, class, comprehension, lambda or module.
type Code struct {
	Name     string // co_name
	Qualname string // co_qualname; the name before 3.11
	Filename string // co_filename
	// FirstLine is co_firstlineno, counted from 1. Code that was made by hand may have 0.
	FirstLine int
	// Hidden marks code that the interpreter runs for its own purposes and that Python's tracebacks do not show.
	Hidden bool

	start   uint64 // address of the bytecode; 0 when frames hold an index
	inBytes bool   // the index counts bytes: to 3.9
	runs    []lineRun
}

// Bounds on what one code object makes us allocate.
const (
	maxName      = 4096    // code points of a name; a longer one is cut
	maxLineTable = 4 << 20 // bytes
)

// Code reads the code object at an address. All text is valid UTF-8. A code object exists as long as its function, so read
// it soon after its address was seen; when something else lies there now, the error says what did not fit.
func (r *Runtime) Code(mem process.Memory, code uint64) (*Code, error) {
	c, err := r.code(mem, code)
	if err != nil {
		return nil, fmt.Errorf("read code object %#x: %w", code, err)
	}
	return c, nil
}

func (r *Runtime) code(mem process.Memory, addr uint64) (*Code, error) {
	l := r.layout
	b, err := read(mem, addr, l.codeSize())
	if err != nil {
		return nil, err
	}
	if err := r.checkType(mem, b, typeCode); err != nil {
		return nil, err
	}
	c := &Code{FirstLine: max(0, int(int32(binary.LittleEndian.Uint32(b[l.codeFirstLine:]))))}
	if l.desc.CodeStart != NoField {
		c.start = addr + uint64(l.desc.CodeStart)
	}
	c.inBytes = l.lines == lineOldPairs
	for _, text := range []struct {
		name string
		at   uint16
		to   *string
	}{
		{"co_name", l.codeName, &c.Name},
		{"co_qualname", l.codeQualname, &c.Qualname},
		{"co_filename", l.codeFilename, &c.Filename},
	} {
		if text.at == NoField {
			continue
		}
		if *text.to, err = r.text(mem, binary.LittleEndian.Uint64(b[text.at:])); err != nil {
			return nil, fmt.Errorf("%s: %w", text.name, err)
		}
	}
	if l.codeQualname == NoField {
		c.Qualname = c.Name
	}
	table, err := r.bytes(mem, binary.LittleEndian.Uint64(b[l.codeLineTable:]))
	if err != nil {
		return nil, fmt.Errorf("co_linetable: %w", err)
	}
	c.runs = l.lines.decode(table, c.FirstLine)
	c.Hidden = c.trampoline()
	return c, nil
}

// trampoline tells the interpreter's own code: it has no lines at all. 3.13 runs one below each inlined __init__, with
// "__init__" for its file too (Python/specialize.c, _Py_InitCleanup).
func (c *Code) trampoline() bool {
	for _, run := range c.runs {
		if run.line != 0 {
			return false
		}
	}
	return c.FirstLine == 0 && c.Filename == c.Name
}

// codeSize is how much of a code object has all the fields that are read, bytes.
func (l *layout) codeSize() int {
	size := max(l.codeFilename, l.codeName, l.codeFirstLine, l.codeLineTable) + 8
	if l.codeQualname != NoField {
		size = max(size, l.codeQualname+8)
	}
	return int(size)
}

// CodeFields are offsets in a code object, bytes.
type CodeFields struct {
	Name, Qualname uint16 // pointers to str; Qualname is Name before 3.11
	Filename       uint16 // pointer to str
	LineTable      uint16 // pointer to bytes
	FirstLine      uint16 // int32
}

// CodeFields tells where a code object keeps what Code reads, for a reader that copies it early.
func (r *Runtime) CodeFields() CodeFields {
	l := r.layout
	f := CodeFields{Name: l.codeName, Qualname: l.codeQualname, Filename: l.codeFilename, LineTable: l.codeLineTable,
		FirstLine: l.codeFirstLine}
	if f.Qualname == NoField {
		f.Qualname = f.Name
	}
	return f
}
