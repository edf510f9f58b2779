// SPDX-License-Identifier: Apache-2.0

package cpython

// CodeParts are what a process copied from a code object of its own.
type CodeParts struct {
	Minor        int // of Python 3
	FreeThreaded bool
	Address      uint64 // of the code object
	Qualname     string // co_qualname; the name before 3.11
	Name, File   string
	FirstLine    int
	LineTable    []byte // co_linetable; co_lnotab to 3.9
}

// NewCode makes a code object of its parts. ok is false when the version is not known.
func NewCode(p *CodeParts) (c *Code, ok bool) {
	l, ok := layoutOf(Version{Major: 3, Minor: p.Minor, FreeThreaded: p.FreeThreaded})
	if !ok {
		return nil, false
	}
	c = &Code{Name: p.Name, Qualname: p.Qualname, Filename: p.File, FirstLine: max(0, p.FirstLine), inBytes: l.lines == lineOldPairs}
	if l.desc.CodeStart != NoField {
		c.start = p.Address + uint64(l.desc.CodeStart)
	}
	c.runs = l.lines.decode(p.LineTable, c.FirstLine)
	c.Hidden = c.trampoline()
	return c, true
}
