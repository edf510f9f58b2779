// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"cmp"
	"container/list"
	"debug/dwarf"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/gputrace/gputrace/internal/elfimage"
)

const (
	// maxUnitBytes bounds the debug information of a unit that is read.
	maxUnitBytes = 64 << 20
	// maxIndexFields, maxUnitFields and maxCallFields bound what is read to find the units, the functions of one, and the calls
	// at one address; debug/dwarf reads some 10 million fields a second.
	maxIndexFields = 1 << 24
	maxUnitFields  = 1 << 24
	maxCallFields  = 1 << 20
	// lineBudget bounds what the units that were read last keep, rows and functions.
	lineBudget = 2 << 20
	// maxInlineDepth bounds how deep functions are inlined into each other.
	maxInlineDepth = 256
	// maxOrigins bounds the way from an inlined call to the entry that has its name.
	maxOrigins = 8
)

// lineTable names addresses by debug information. What is in it of the units that were asked for is bounded: the ones asked
// for last stay.
type lineTable struct {
	code  func(vaddr uint64) bool
	data  *dwarf.Data
	lines lineSections
	units []unitRange

	mu     sync.Mutex
	loaded map[dwarf.Offset]*list.Element
	recent list.List // of *unit, the last used first
	held   int       // rows and functions of them
}

// unitRange is [start, end) of a compile unit.
type unitRange struct {
	start, end uint64
	root       dwarf.Offset
}

// unit is what is kept of a compile unit.
type unit struct {
	root      dwarf.Offset
	functions []functionRange
	rows      []lineRow
	program   *lineProgram // for the files; nil without a line program
	compDir   string
}

// functionRange is [start, end) of a function's code; it can have several.
type functionRange struct {
	start, end uint64
	entry      dwarf.Offset
}

// lineRow says where the code from an address on is from. file is -1 behind the end of a sequence.
type lineRow struct {
	addr       uint64
	file, line int32
}

// debugLines is the file's own debug information, or that of the separate file; nil when there is none.
func (f *File) debugLines() *lineTable {
	f.linesMu.Lock()
	defer f.linesMu.Unlock()
	if f.haveLines {
		return f.lines
	}
	f.haveLines = true
	if f.lines = f.openLines(f); f.lines == nil {
		if d := f.debugFile(); d != nil {
			f.lines = f.openLines(d)
		}
	}
	return f.lines
}

// openLines opens the debug information of a file that describes f's code.
func (f *File) openLines(d *File) (t *lineTable) {
	defer elfimage.OnFault(func(error) { t = nil })()
	info, err := d.debugInfo()
	if info == nil || err != nil {
		return nil
	}
	t = &lineTable{code: f.isCode, data: info.data, lines: info.lines, loaded: map[dwarf.Offset]*list.Element{}}
	t.units = t.findUnits(info.units)
	return t
}

// findUnits lists the ranges of the compile units, sorted by start.
func (t *lineTable) findUnits(units []unitHeader) []unitRange {
	var out []unitRange
	w := t.walk(0, maxIndexFields)
	for _, u := range units {
		if !u.compile || u.size > maxUnitBytes {
			continue
		}
		e := w.at(u.root)
		if e == nil || e.Tag != dwarf.TagCompileUnit {
			continue
		}
		for _, g := range w.ranges(e) {
			if g[0] < g[1] && t.code(g[0]) {
				out = append(out, unitRange{g[0], g[1], u.root})
			}
		}
	}
	slices.SortFunc(out, func(a, b unitRange) int { return cmp.Compare(a.start, b.start) })
	return out
}

// names is the calls at an address, innermost first; nil when the debug information does not cover it.
func (t *lineTable) names(vaddr uint64) (names []Name) {
	if t == nil {
		return nil
	}
	defer elfimage.OnFault(func(error) { names = nil })()
	i := sort.Search(len(t.units), func(i int) bool { return t.units[i].start > vaddr }) - 1
	if i < 0 || vaddr >= t.units[i].end {
		return nil
	}
	t.mu.Lock() // debug/dwarf reads lazily too
	defer t.mu.Unlock()
	u := t.unit(t.units[i].root)
	file, line := u.line(vaddr)
	calls := t.calls(u.function(vaddr), vaddr)
	if len(calls) == 0 && line == 0 {
		return nil
	}
	if len(calls) == 0 {
		return []Name{{File: file, Line: line}}
	}
	names = make([]Name, 0, len(calls))
	for i := len(calls) - 1; i >= 0; i-- {
		c := &calls[i]
		if c.name != "" || i == 0 { // a name can be in a file that debug information shares, which is not read
			names = append(names, Name{Linkage: c.name, File: file, Line: line, StartLine: c.declared})
		}
		file, line = u.file(c.callFile), c.callLine
	}
	return names
}

// unit reads a compile unit, or returns the one that is kept. One that cannot be read is empty.
func (t *lineTable) unit(root dwarf.Offset) *unit {
	if e := t.loaded[root]; e != nil {
		t.recent.MoveToFront(e)
		return e.Value.(*unit)
	}
	u, err := t.readUnit(root)
	if err != nil {
		u = &unit{root: root} // not tried again soon
	}
	t.loaded[root] = t.recent.PushFront(u)
	for t.held += u.weight(); t.held > lineBudget && t.recent.Len() > 1; {
		last := t.recent.Remove(t.recent.Back()).(*unit)
		delete(t.loaded, last.root)
		t.held -= last.weight()
	}
	return u
}

func (u *unit) weight() int { return 1 + len(u.rows) + len(u.functions) }

func (t *lineTable) readUnit(root dwarf.Offset) (*unit, error) {
	w := t.walk(root, maxUnitFields)
	e := w.next()
	if e == nil {
		return nil, fmt.Errorf("unit at %#x: %w", root, elfimage.ErrFormat)
	}
	u := &unit{root: root}
	if err := t.readRows(u, e); err != nil {
		return nil, err
	}
	w.readFunctions(u)
	return u, nil
}

// readRows reads the unit's line program. A unit without one has no lines.
func (t *lineTable) readRows(u *unit, root *dwarf.Entry) error {
	off, ok := root.Val(dwarf.AttrStmtList).(int64)
	if !ok || off < 0 {
		return nil
	}
	p, err := t.lines.open(uint64(off))
	if err != nil {
		return err
	}
	u.compDir, _ = root.Val(dwarf.AttrCompDir).(string)
	u.rows = p.run(lineBudget, t.code)
	p.code = elfimage.Reader{}
	u.program = p
	return nil
}

// compareRows sorts the end of a sequence before the start of the next.
func compareRows(a, b lineRow) int {
	return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(min(a.file, 0), min(b.file, 0)))
}

// functionScopes are what functions are in. Types have only declarations, but for those inside of a function.
var functionScopes = map[dwarf.Tag]bool{
	dwarf.TagNamespace: true, dwarf.TagModule: true, dwarf.TagSubprogram: true, dwarf.TagLexDwarfBlock: true,
	dwarf.TagStructType: false, dwarf.TagClassType: false, dwarf.TagUnionType: false,
}

// readFunctions lists the unit's functions.
func (w *walker) readFunctions(u *unit) {
	inside := 0 // depth of the function that is being read, 0: none
	for depth := 1; depth > 0 && len(u.functions) < lineBudget; {
		e := w.next()
		if e == nil {
			break
		}
		if e.Tag == 0 {
			if depth--; depth < inside {
				inside = 0
			}
			continue
		}
		if e.Tag == dwarf.TagSubprogram {
			w.addFunction(u, e)
		}
		always, ever := functionScopes[e.Tag]
		if !always && !(ever && inside > 0) {
			w.skip(e)
			continue
		}
		if e.Children {
			depth++
		}
		if e.Tag == dwarf.TagSubprogram && e.Children && inside == 0 {
			inside = depth
		}
	}
	slices.SortFunc(u.functions, func(a, b functionRange) int { return cmp.Compare(a.start, b.start) })
}

func (w *walker) addFunction(u *unit, e *dwarf.Entry) {
	for _, g := range w.ranges(e) {
		if g[0] < g[1] && w.table.code(g[0]) {
			u.functions = append(u.functions, functionRange{g[0], g[1], e.Offset})
		}
	}
}

// function is the entry of the function at an address, 0 for none.
func (u *unit) function(vaddr uint64) dwarf.Offset {
	i := sort.Search(len(u.functions), func(i int) bool { return u.functions[i].start > vaddr }) - 1
	if i < 0 || vaddr >= u.functions[i].end {
		return 0
	}
	return u.functions[i].entry
}

// line is the row of the line table that covers an address.
func (u *unit) line(vaddr uint64) (file string, line int) {
	i := sort.Search(len(u.rows), func(i int) bool { return u.rows[i].addr > vaddr }) - 1
	if i < 0 || u.rows[i].file < 0 {
		return "", 0
	}
	return u.file(int64(u.rows[i].file)), int(u.rows[i].line)
}

func (u *unit) file(number int64) string {
	if u.program == nil {
		return ""
	}
	return u.program.path(number, u.compDir)
}

// inlineCall is a function, or a call of one that was inlined.
type inlineCall struct {
	name     string
	declared int
	callFile int64 // where it was called
	callLine int
}

// calls is the function of an entry and what was inlined into it at an address, outermost first.
func (t *lineTable) calls(entry dwarf.Offset, vaddr uint64) []inlineCall {
	if entry == 0 {
		return nil
	}
	w := t.walk(entry, maxCallFields)
	e := w.next()
	if e == nil {
		return nil
	}
	calls := []inlineCall{t.call(e)}
	// Entries that cover the address are entered, all others are skipped: the way down is the way of the calls.
	for down := e.Children; down && len(calls) < maxInlineDepth; {
		e := w.next()
		if e == nil || e.Tag == 0 {
			break
		}
		if !w.covers(e, vaddr) {
			w.skip(e)
			continue
		}
		if e.Tag == dwarf.TagInlinedSubroutine {
			calls = append(calls, t.call(e))
		}
		down = e.Children
	}
	return calls
}

// covers reports whether a block or an inlined call has the address.
func (w *walker) covers(e *dwarf.Entry, vaddr uint64) bool {
	if e.Tag != dwarf.TagInlinedSubroutine && e.Tag != dwarf.TagLexDwarfBlock {
		return false
	}
	return slices.ContainsFunc(w.ranges(e), func(g [2]uint64) bool { return g[0] <= vaddr && vaddr < g[1] })
}

// call reads where an entry was called, and its name, which may be with the entry that it is an instance of.
func (t *lineTable) call(e *dwarf.Entry) inlineCall {
	var c inlineCall
	c.callFile, _ = e.Val(dwarf.AttrCallFile).(int64)
	line, _ := e.Val(dwarf.AttrCallLine).(int64)
	c.callLine = lineNumber(line)
	plain := ""
	for range maxOrigins {
		if c.name == "" {
			c.name, _ = e.Val(dwarf.AttrLinkageName).(string)
		}
		if plain == "" {
			plain, _ = e.Val(dwarf.AttrName).(string)
		}
		if declared, ok := e.Val(dwarf.AttrDeclLine).(int64); ok && c.declared == 0 {
			c.declared = lineNumber(declared)
		}
		origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			origin, ok = e.Val(dwarf.AttrSpecification).(dwarf.Offset)
		}
		if !ok {
			break
		}
		if e = t.walk(origin, 1).next(); e == nil {
			break
		}
	}
	c.name = cmp.Or(c.name, plain)
	return c
}

// lineNumber is a line as it is in a file; 0 for what cannot be one.
func lineNumber(n int64) int {
	if n < 0 || n > math.MaxInt32 {
		return 0
	}
	return int(n)
}
