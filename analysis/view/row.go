// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Row is memory in use that has one origin: of a view, a Sample; of a table, all that the table has in one row. Every table, page,
// profile and difference of lines, stacks, holders and the like is made of these.
type Row struct {
	Name   string // "gpt.py:38", a native symbol, or stacks.BeforeAttach and its like; of a table by layer or device, that
	Func   string // of Python, the function; else empty
	File   string // of Python, the whole path; else empty
	Line   int    // of a Python line; 0: unknown
	Source string // text of the line, trimmed; empty: unknown
	Layer  string // empty in a table, but in one by layer, where it is Name
	Device string // likewise
	Stack  []Call // leaf first; nil in tables, but those by stack
	Bytes  int64  // negative only for stacks.LostEvents
	Blocks uint64 // 0 where only the bytes are known

	Share float64 // of a Table: of View.Total, 0 to 1; 0 when that is 0
	// Set by View.SumBy: the row in one line of printable text, and what was allocated since the first event, or in the range.
	Text        string
	AllocBytes  int64
	AllocBlocks uint64

	// Set in samples of a recording; empty in tables, where the Name says them, and in samples of profiles.
	Phase    string // one of phases.Phases
	Module   string // as stacks.Module
	Operator string // as stacks.Operator
	StackID  event.StackID
	// Set in samples of a view that was selected with Selection.Detail; else empty.
	Category string // one of phases.Categories
	Step     string // "step 12", or NoStep
	Holder   string // as HeldSite.Name; NoHolder, or HolderFreed

	// Inner is, in a table by line, what a line with a large part of the memory calls: the innermost calls outside PyTorch's core, by
	// bytes, the largest first. They are part of the row. nil: the line itself says enough.
	Inner []Row

	inner *Call // of a sample; nil: there is none
}

// Names of what has no step or holder.
const (
	NoStep      = "[before the first step]"
	HolderFreed = "[freed before the end]" // the holders are known at the end of the recording only
)

// Call is a frame of a row's stack.
type Call struct {
	Name string // "gpt.py:38", or the native symbol
	Func string // of Python, the function; else empty
	File string // of Python, the whole path; else empty
	Line int    // of Python; 0: unknown
}

// Text is "gpt.py:38 Block.forward", or the native symbol.
func (c *Call) Text() string {
	if c.Func == "" || c.Func == c.Name {
		return c.Name
	}
	return c.Name + " " + c.Func
}

// CallOf describes a frame.
func CallOf(f *event.Frame) Call {
	if f.Kind != event.FramePython {
		return Call{Name: f.Label()}
	}
	return Call{Name: stacks.Position(f), Func: f.Func, File: f.File, Line: max(0, f.Line)}
}

// Rows is what is in use, a sample each. They add up to Total.
func (v *View) Rows() []Row { return v.RowsOf(InUse) }

// RowsOf is what a view has of a measure, a sample each; with Selection.Detail there is one for each part of it.
func (v *View) RowsOf(m Measure) []Row {
	var out []Row
	for p := range v.Samples(m, nil) {
		out = v.appendRows(out, &p, m)
	}
	v.readSources(out)
	return out
}

// row is the line of a sample, with what that calls.
func (v *View) row(p *Sample) Row {
	out := Row{Name: p.Name, Bytes: p.Bytes, Blocks: p.Objects}
	if s := p.Site; s != nil && s.isPython() && !s.Own.Unread() {
		out.Func, out.File, out.Line = s.Own.Func, s.Own.File, max(0, s.Own.Line)
		if out.Name = stacks.Position(s.Own); s.Backward {
			out.Name = stacks.BackwardOf + " " + out.Name
		}
		out.inner = v.innerCall(s)
	}
	return out
}

// setShare sets what part of a total the row is, and what it calls.
func (e *Row) setShare(total int64) {
	if total > 0 {
		e.Share = float64(e.Bytes) / float64(total)
	}
	for i := range e.Inner {
		e.Inner[i].setShare(total)
	}
}

// appendRows adds the rows of a sample.
func (v *View) appendRows(out []Row, p *Sample, m Measure) []Row {
	e := v.row(p)
	e.Layer, e.Device = p.Layer.String(), p.Device.String()
	e.Phase, e.Module, e.Operator = string(phases.Unknown), stacks.NoModule, stacks.NoOperator
	if p.Site != nil {
		e.Phase = string(v.Phase(p.Site))
		e.StackID = p.Site.Site.Stack
		if st := p.Site.Stack; st != nil {
			e.Module, e.Operator = stacks.Module(st.Frames, v.options.Library), stacks.Operator(st.Frames)
		}
	}
	frames := p.Frames()
	for i := range frames {
		e.Stack = append(e.Stack, CallOf(&frames[i]))
	}
	if !v.detailed {
		return append(out, e)
	}
	if p.Site == nil {
		return v.appendUnseen(out, p, e)
	}
	for i := range p.Site.Parts {
		part := &p.Site.Parts[i]
		count := part.Inuse
		if m == Allocated {
			count = part.Alloc
		}
		if count.Objects > 0 {
			out = append(out, part.row(e, count))
		}
	}
	return out
}

// appendUnseen adds the rows of a sample without a site. What was allocated before the first event is split by its known blocks, as
// far as there are any.
func (v *View) appendUnseen(out []Row, p *Sample, e Row) []Row {
	rest := e
	rest.Category, rest.Step, rest.Holder = string(phases.NoCategory), NoStep, NoHolder
	if p.Name != stacks.BeforeAttach {
		return append(out, rest)
	}
	var parts []Row
	for i := range v.Sites {
		s := &v.Sites[i]
		if s.Layer != event.LayerAllocator || s.Origin != heap.OriginBefore || s.PID != p.PID || s.Device != p.Device {
			continue
		}
		for j := range s.Parts {
			if count := s.Parts[j].Inuse; count.Objects > 0 {
				parts = append(parts, s.Parts[j].row(e, count))
				rest.Bytes, rest.Blocks = rest.Bytes-int64(count.Bytes), rest.Blocks-min(rest.Blocks, count.Objects)
			}
		}
	}
	if rest.Bytes < 0 { // the blocks are not those of the total
		rest.Bytes, rest.Blocks = e.Bytes, e.Blocks
		parts = nil
	}
	if rest.Bytes > 0 {
		parts = append(parts, rest)
	}
	return append(out, parts...)
}

// row is that of a part of the site of e.
func (p *SitePart) row(e Row, count heap.Count) Row {
	e.Bytes, e.Blocks = int64(count.Bytes), count.Objects
	e.Category, e.Step, e.Holder = string(p.Category), NoStep, cmp.Or(p.Holder, HolderFreed)
	if p.Step > 0 {
		e.Step = fmt.Sprintf("step %d", p.Step)
	}
	return e
}

func (v *View) readSources(rows []Row) {
	places := make([]stacks.Place, len(rows))
	for i := range rows {
		places[i] = stacks.Place{File: rows[i].File, Line: rows[i].Line}
	}
	text := v.SourceLines(places)
	for i := range rows {
		rows[i].Source = text[places[i]]
	}
}

// RowKind is what of the memory in use makes a row of a table.
type RowKind uint8

const (
	ByLine     RowKind = iota // the program's own Python line, or the native symbol where there is none
	ByFunction                // the function of that line, or the native symbol
	ByStack                   // the whole stack
	ByLayer                   // torch, device
	ByDevice                  // "cuda:0"
	ByPhase                   // the part of the step: Row.Phase
	ByModule                  // the module of PyTorch's that is called: Row.Module
	ByOperator                // the operator of PyTorch's that is called: Row.Operator
	ByCategory                // what the memory is for: Row.Category
	ByHolder                  // what holds it: Row.Holder
	ByStep                    // the step of the allocation: Row.Step
)

// RecordedRowKindNames are the kinds, by their numbers. Those behind ByDevice need a recording.
var RecordedRowKindNames = []string{
	"line", "function", "stack", "layer", "device", "phase", "module", "op", "category", "holder", "step",
}

// RowKindNames are the kinds that profiles have too, by their numbers.
var RowKindNames = RecordedRowKindNames[:ByDevice+1]

// Detailed says whether the kind needs Selection.Detail.
func (k RowKind) Detailed() bool { return k >= ByCategory }

// FindRowKind is the kind of a name.
func FindRowKind(name string) (RowKind, error) {
	i := slices.Index(RecordedRowKindNames, name)
	if i < 0 {
		return 0, fmt.Errorf("rows by %q: not one of %s", name, strings.Join(RecordedRowKindNames, ", "))
	}
	return RowKind(i), nil
}

// String is its name.
func (k RowKind) String() string { return RecordedRowKindNames[k] }

// GroupRows is the rows of a table, by bytes, largest first. They add up to the same.
func GroupRows(rows []Row, by RowKind) []Row {
	total := int64(0)
	for i := range rows {
		total += rows[i].Bytes
	}
	return groupRows(rows, by, total)
}

// groupRows is GroupRows of a part of a total.
func groupRows(rows []Row, by RowKind, total int64) []Row {
	index := map[string]int{}
	var out []Row
	members := map[string][]*Row{}
	for i := range rows {
		e := rows[i].as(by)
		key := e.key(func(file string) string { return file }, true)
		members[key] = append(members[key], &rows[i])
		at, ok := index[key]
		if !ok {
			at = len(out)
			index[key] = at
			out = append(out, e)
			continue
		}
		out[at].Bytes += e.Bytes
		out[at].Blocks += e.Blocks
		out[at].Source = cmp.Or(out[at].Source, e.Source)
	}
	if by == ByLine {
		for i := range out {
			out[i].addInner(members[out[i].key(func(file string) string { return file }, true)], total)
		}
	}
	sorts.Func(out, compareSize)
	return out
}

// compareSize puts the largest first.
func compareSize(x, y Row) int {
	return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Blocks, x.Blocks), compareRow(&x, &y))
}

// compareRow orders rows by what they are called.
func compareRow(x, y *Row) int {
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Func, y.Func),
		slices.CompareFunc(x.Stack, y.Stack, compareCall))
}

func compareCall(x, y Call) int {
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Func, y.Func), cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line))
}

// as keeps of a row what a row of that kind has.
func (e Row) as(by RowKind) Row {
	out := Row{Name: e.Name, Func: e.Func, File: e.File, Bytes: e.Bytes, Blocks: e.Blocks}
	switch by {
	case ByLine:
		out.Line, out.Source = e.Line, e.Source
	case ByFunction:
		if e.Func != "" {
			out.Name = stacks.BackwardPrefix(e.Name) + e.Func
		}
	case ByStack:
		out.Line, out.Source, out.Stack = e.Line, e.Source, e.Stack
	case ByLayer:
		out.Name, out.Func, out.File, out.Layer = e.Layer, "", "", e.Layer
	case ByDevice:
		out.Name, out.Func, out.File, out.Device = e.Device, "", "", e.Device
	default:
		out.Name, out.Func, out.File = e.named(by), "", ""
	}
	return out
}

// named is what a row is called in rows that have nothing else.
func (e *Row) named(by RowKind) string {
	switch by {
	case ByPhase:
		return e.Phase
	case ByModule:
		return e.Module
	case ByOperator:
		return e.Operator
	case ByCategory:
		return e.Category
	case ByHolder:
		return e.Holder
	}
	return e.Step
}

// key tells rows of one kind apart. Files are what file makes of them; without lines, rows that differ by lines only are the
// same.
func (e *Row) key(file func(string) string, lines bool) string {
	var b strings.Builder
	part := func(name, function, path string, line int) {
		if path == "" {
			fmt.Fprintf(&b, "%q\n", name)
			return
		}
		if !lines {
			line = 0
		}
		fmt.Fprintf(&b, "%q %q %d\n", file(path), function, line)
	}
	b.WriteString(stacks.BackwardPrefix(e.Name))
	part(e.Name, e.Func, e.File, e.Line)
	for i := range e.Stack {
		c := &e.Stack[i]
		part(c.Name, c.Func, c.File, c.Line)
	}
	return b.String()
}
