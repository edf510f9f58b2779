// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/sorts"
)

// The parts of a report of holders.
type (
	Report = scan.Report
	Block  = scan.Block
	Path   = scan.Path
	Step   = scan.Step
	Tensor = scan.Tensor
)

// Index is who holds the blocks of a process's caching allocator, for people. It does not change; safe for concurrent use.
type Index struct {
	Report *scan.Report // shared
	Bytes  uint64       // of the live blocks
	Blocks uint64
	// Changing is what is not in Report.Blocks, because it changed while it was read, of all devices together; its low
	// figures are part of Bytes and Blocks. nil: nothing did.
	Changing *inspect.Changing

	owners []string       // of each block and then of each place, the name of its group
	index  map[uint64]int // number of the block at an address
	places placeIndex
}

// Names of the rows of blocks that have not what a grouping asks for.
const (
	NoTensor     = "[no tensor]"
	NoModule     = "[no module]"
	UnknownDType = "[unknown dtype]"
	UnknownShape = "[unknown shape]"
)

// Row is blocks that are shown together.
type Row struct {
	Name string
	// Where and Holder are the two parts of Name: the frame in which it is a local variable, "train.py:108 train()", and the
	// rest, "kept[0..11]". Where is empty, and Holder is Name, when it begins in a module, or is no path.
	Where, Holder string
	// What the blocks are: their category, or several with a comma between them.
	What string
	// Tensors is the shape and dtype of the blocks' tensors when they are all the same, else what they have in common;
	// empty when nothing is known.
	Tensors string
	Bytes   uint64
	Blocks  uint64
	Share   float64 // of Index.Bytes, 0 to 1; 0 when that is 0
	Of      []int   // which blocks of the report, largest first; what changed has none
}

// Table is the largest rows.
type Table struct {
	Rows   []Row  // by bytes, largest first; by category: in the order of scan.Categories, those without a block too
	More   int    // rows left out
	Bytes  uint64 // of all rows, also of those left out
	Blocks uint64
}

// New groups a report. The report must not change afterwards: it is shared.
func New(r *scan.Report) *Index {
	h := &Index{Report: r, Blocks: uint64(len(r.Blocks)), index: map[uint64]int{}, places: newPlaces(r.Places)}
	h.owners = ownerNames(slices.Concat(r.Blocks, h.places.blocks))
	for i := range r.Blocks {
		h.Bytes += r.Blocks[i].Size
		h.index[r.Blocks[i].Addr] = i
	}
	for i := range r.Devices {
		h.addChanging(r.Devices[i].Changing)
	}
	return h
}

func (h *Index) addChanging(c *inspect.Changing) {
	if c == nil {
		return
	}
	if h.Changing == nil {
		h.Changing = &inspect.Changing{}
	}
	sum := h.Changing
	sum.BlocksLow, sum.BlocksHigh = sum.BlocksLow+c.BlocksLow, sum.BlocksHigh+c.BlocksHigh
	sum.BytesLow, sum.BytesHigh = sum.BytesLow+c.BytesLow, sum.BytesHigh+c.BytesHigh
	sum.Ranges, sum.RangeBytes = sum.Ranges+c.Ranges, sum.RangeBytes+c.RangeBytes
	h.Bytes, h.Blocks = h.Bytes+c.BytesLow, h.Blocks+c.BlocksLow
}

// Only reports whether all memory of the report is of one allocator.
func (h *Index) Only(a allocator.Allocator) bool {
	other := func(d scan.Device) bool { return d.Allocator != a }
	return len(h.Report.Devices) > 0 && !slices.ContainsFunc(h.Report.Devices, other)
}

// Owner is the name of the group that block i of the report belongs to by owner.
func (h *Index) Owner(i int) string { return h.owners[i] }

// At is the number of the live block that contains a device address; ok is false when there is none. The addresses of all
// devices of a process are different (unified virtual addressing).
func (h *Index) At(addr uint64) (i int, ok bool) {
	i = slices.IndexFunc(h.Report.Blocks, func(b scan.Block) bool { return b.Addr <= addr && addr-b.Addr < b.Size })
	return i, i >= 0
}

// Find is the number in the report of a block of the allocator's map. It must be the same block there, by its address, sizes,
// stream and state; ok is false when it is not, or was read at another moment.
func (h *Index) Find(b *inspect.Block) (i int, ok bool) {
	i, ok = h.index[b.Addr]
	return i, ok && h.Report.Blocks[i].Block == *b
}

// By groups the blocks. n limits the rows; 0: all.
func (h *Index) By(g Grouping, n int) Table {
	rows := map[string]*Row{}
	for i := range h.Report.Blocks {
		name := h.groupName(g, i)
		r := rows[name]
		if r == nil {
			r = &Row{Name: name}
			rows[name] = r
		}
		r.Of = append(r.Of, i)
		r.Bytes, r.Blocks = r.Bytes+h.Report.Blocks[i].Size, r.Blocks+1
	}
	if c := h.Changing; c != nil && c.BytesLow > 0 {
		name := scan.CategoryChanging.String()
		r := rows[name]
		if r == nil {
			r = &Row{Name: name}
			rows[name] = r
		}
		r.Bytes, r.Blocks = r.Bytes+c.BytesLow, r.Blocks+c.BlocksLow
	}
	t := Table{Bytes: h.Bytes, Blocks: h.Blocks}
	if g == ByCategory {
		t.Rows = h.categories(rows)
		return t
	}
	for _, r := range rows {
		t.Rows = append(t.Rows, h.complete(r))
	}
	sorts.Func(t.Rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Blocks, x.Blocks), cmp.Compare(x.Name, y.Name))
	})
	if n > 0 && len(t.Rows) > n {
		t.More = len(t.Rows) - n
		t.Rows = t.Rows[:n]
	}
	return t
}

// categories lists all categories, empty ones included.
func (h *Index) categories(rows map[string]*Row) []Row {
	var out []Row
	for _, c := range scan.Categories() {
		if r := rows[c.String()]; r != nil {
			out = append(out, h.complete(r))
		} else {
			out = append(out, Row{Name: c.String(), Holder: c.String()})
		}
	}
	return out
}

// complete sets what follows from a row's blocks.
func (h *Index) complete(r *Row) Row {
	slices.SortStableFunc(r.Of, func(x, y int) int {
		return cmp.Compare(h.Report.Blocks[y].Size, h.Report.Blocks[x].Size)
	})
	if h.Bytes > 0 {
		r.Share = float64(r.Bytes) / float64(h.Bytes)
	}
	r.What, r.Tensors = h.what(r.Of), h.tensors(r.Of)
	if len(r.Of) == 0 { // only of what changed
		r.Holder = r.Name
		return *r
	}
	r.Where, r.Holder = splitName(r.Name, h.Report.Blocks[r.Of[0]].Path)
	return *r
}

// splitName takes the frame off a name.
func splitName(name string, path scan.Path) (where, rest string) {
	if len(path) < 2 || path[0].Kind != scan.StepFrame {
		return "", name
	}
	where = path[:1].String()
	rest, ok := strings.CutPrefix(name, where+" ")
	if !ok {
		return "", name
	}
	return where, strings.TrimPrefix(rest, "local ")
}

func (h *Index) groupName(g Grouping, i int) string {
	b := &h.Report.Blocks[i]
	switch g {
	case ByModule:
		return moduleName(b)
	case ByDType:
		return dtypeName(b)
	case ByShape:
		return shapeName(b)
	case ByCategory:
		return b.Category.String()
	}
	return h.owners[i]
}

// what joins the categories of some blocks, the one with the most bytes first.
func (h *Index) what(of []int) string {
	bytes := map[scan.Category]uint64{}
	for _, i := range of {
		bytes[h.block(i).Category] += h.block(i).Size
	}
	var all []scan.Category
	for c := range bytes {
		all = append(all, c)
	}
	sorts.Func(all, func(x, y scan.Category) int { return cmp.Or(cmp.Compare(bytes[y], bytes[x]), cmp.Compare(x, y)) })
	var names []string
	for _, c := range all {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

// tensors is what the tensors of some blocks have in common.
func (h *Index) tensors(of []int) string {
	shapes, dtypes := map[string]bool{}, map[string]bool{}
	for _, i := range of {
		b := &h.Report.Blocks[i]
		if len(b.Tensors) > 0 {
			shapes[shapeName(b)] = true
			dtypes[dtypeName(b)] = true
		}
	}
	switch {
	case len(shapes) == 0:
		return ""
	case len(shapes) == 1:
		return only(shapes)
	case len(dtypes) == 1:
		return only(dtypes)
	}
	return fmt.Sprintf("%d dtypes", len(dtypes))
}

func only(set map[string]bool) string {
	for s := range set {
		return s
	}
	return ""
}

func dtypeName(b *scan.Block) string {
	switch {
	case len(b.Tensors) == 0:
		return NoTensor
	case b.Tensors[0].DType == "":
		return UnknownDType
	}
	return b.Tensors[0].DType
}

func shapeName(b *scan.Block) string {
	switch {
	case len(b.Tensors) == 0:
		return NoTensor
	case b.Tensors[0].Shape == nil:
		return UnknownShape
	}
	return ShapeText(b.Tensors[0].Shape) + " " + dtypeName(b)
}

// ShapeText is a shape as PyTorch prints it: "[8, 512, 768]", "[]" of a scalar.
func ShapeText(shape []int64) string {
	var dims []string
	for _, d := range shape {
		dims = append(dims, strconv.FormatInt(d, 10))
	}
	return "[" + strings.Join(dims, ", ") + "]"
}

// moduleName is the module that a block works for: as a parameter or buffer of it, or as the gradient or the optimizer's
// state of one.
func moduleName(b *scan.Block) string {
	if name, ok := moduleOf(b.Path); ok {
		return name
	}
	for i := range b.Path {
		if name, ok := moduleOf(b.Path[i].KeyPath); ok {
			return name
		}
	}
	return NoModule
}

func moduleOf(p scan.Path) (string, bool) {
	if n := len(p); n > 0 && p[n-1].Kind == scan.StepGrad {
		p = p[:n-1]
	}
	root, name, ok := p.Module()
	switch {
	case !ok:
		return "", false
	case name == "":
		return root, true
	}
	return root + "." + name, true
}

// UnknownReason is blocks of which a holder is not known for one reason.
type UnknownReason struct {
	Why    string
	Bytes  uint64
	Blocks uint64
}

// Moved returns the bytes of the blocks whose holders are not known because the process ran while they were read. A
// process that was stopped has none.
func (h *Index) Moved() (bytes uint64) {
	for i := range h.Report.Blocks {
		if b := &h.Report.Blocks[i]; b.Category == scan.CategoryChanging && h.Report.Stats.Frozen == 0 {
			bytes += b.Size
		}
	}
	return bytes
}

// Unknown says why blocks have no known holder, the most bytes first.
func (h *Index) Unknown() []UnknownReason {
	reasons := map[string]*UnknownReason{}
	for i := range h.Report.Blocks {
		b := &h.Report.Blocks[i]
		if !unnamed(b) {
			continue
		}
		why := cmp.Or(b.Why, "nothing that is known refers to it")
		if reasons[why] == nil {
			reasons[why] = &UnknownReason{Why: why}
		}
		reasons[why].Bytes += b.Size
		reasons[why].Blocks++
	}
	var out []UnknownReason
	for _, r := range reasons {
		out = append(out, *r)
	}
	sorts.Func(out, func(x, y UnknownReason) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Why, y.Why))
	})
	return out
}

// unnamed reports whether the holder of a block is not known.
func unnamed(b *scan.Block) bool {
	return b.Category == scan.CategoryUnknown || b.Category == scan.CategoryChanging
}

// Completeness says of how many blocks with tensors all holders were found, and of how many the path was proved.
type Completeness struct {
	All     uint64 // blocks of which the reference counts prove it
	Some    uint64 // blocks that have holders which were not found
	Missing uint64 // how many holders those are
	Unknown uint64 // blocks of which the reference counts tell nothing
	Named   uint64 // blocks with a path
	Proved  uint64 // of Named: each path by itself. The others were read twice, and have the shape of such
}

// Completeness adds up what the reference counts say, and what was proved.
func (h *Index) Completeness() Completeness {
	var out Completeness
	for i := range h.Report.Blocks {
		b := &h.Report.Blocks[i]
		if len(b.Path) > 0 {
			out.Named++
			if !b.ByShape {
				out.Proved++
			}
		}
		switch {
		case len(b.Tensors) == 0:
		case b.Complete == scan.Yes:
			out.All++
		case b.Complete == scan.No:
			out.Some++
			out.Missing += uint64(b.Missing)
		default:
			out.Unknown++
		}
	}
	return out
}

// stepNames are what programs call the kinds of step.
var stepNames = map[scan.StepKind]string{
	scan.StepModule: "module", scan.StepFrame: "frame", scan.StepException: "exception", scan.StepThreadState: "thread_state",
	scan.StepGarbage: "garbage", scan.StepNative: "native", scan.StepOwnHook: "own_hook",
	scan.StepLocal: "local", scan.StepTemporary: "temporary", scan.StepAttribute: "attribute", scan.StepIndex: "index",
	scan.StepKey: "key", scan.StepKeyItself: "key_itself", scan.StepCell: "cell", scan.StepDict: "dict",
	scan.StepSuspended: "suspended", scan.StepFrameObject: "frame_object", scan.StepSlot: "slot",
	scan.StepGrad: "grad", scan.StepGradFn: "grad_fn", scan.StepNext: "next", scan.StepSaved: "saved",
	scan.StepVariable: "variable", scan.StepBase: "base", scan.StepHook: "hook", scan.StepContext: "context", scan.StepNode: "node",
	scan.StepStorage: "storage", scan.StepElided: "elided",
}

// StepName is what programs call the kind of a step.
func StepName(s *Step) string {
	return cmp.Or(stepNames[s.Kind], fmt.Sprintf("step %d", s.Kind))
}

// keyNames are what programs call the kinds of key.
var keyNames = map[scan.KeyKind]string{scan.KeyNone: "", scan.KeyString: "string", scan.KeyInt: "int", scan.KeyObject: "object"}

// KeyName is what programs call the kind of a step's key; empty for a step without one.
func KeyName(s *Step) string { return keyNames[s.KeyKind] }
