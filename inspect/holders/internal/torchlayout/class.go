// SPDX-License-Identifier: Apache-2.0

// Package torchlayout reads the objects of PyTorch in C++: it finds them by their classes, finds where their classes keep what
// matters, and follows the references between them and to their Python objects. No table of versions is behind it.
package torchlayout

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/symbolize"
)

// A C++ object with virtual functions begins with the address of its class's table of them. Before the table are the
// offset to the whole object's beginning, 0, and the address of the class's typeinfo; that has its own table, the mangled
// name, and the bases (Itanium C++ ABI, 2.5.2 and 2.9.5). So the class of an object is known without any symbol.
const (
	vtableTop      = 16 // before the table
	vtableType     = 8
	typeInfoName   = 8
	typeInfoBase   = 16 // __si_class_type_info: its one base
	typeInfoCount  = 20 // __vmi_class_type_info: how many bases
	typeInfoBases  = 24 // the bases, 16 bytes each
	singleBaseType = "N10__cxxabiv120__si_class_type_infoE"
	manyBasesType  = "N10__cxxabiv121__vmi_class_type_infoE"
	notUnique      = 1 << 63 // of the address of a name: there may be several of it (libc++ on arm64)
	maxClassName   = 4096
	maxClassDepth  = 16
	maxClassBases  = 16
	maxClasses     = 1 << 20
)

// role is what a C++ class is here for.
type role uint8

const (
	roleOther role = iota
	roleStorage
	roleTensor
	roleUndefined // the tensor that stands for none
	roleMeta
	roleNode
	roleHook
	roleSavedHooks // what stands for a saved tensor that hooks have packed
	roleCount
)

// roles are classes by their mangled name; a class has the role of the first of its bases that has one.
var roles = map[string]role{
	"N3c1011StorageImplE":                roleStorage,
	"N3c1010TensorImplE":                 roleTensor,
	"N3c1019UndefinedTensorImplE":        roleUndefined,
	"N5torch8autograd12AutogradMetaE":    roleMeta,
	"N5torch8autograd4NodeE":             roleNode,
	"N5torch8autograd15FunctionPreHookE": roleHook, "N5torch8autograd16FunctionPostHookE": roleHook,
	"N5torch8autograd32PostAccumulateGradHookE": roleHook, "N5torch8autograd18SavedVariableHooksE": roleSavedHooks,
}

const (
	accumulateClass = "N5torch8autograd14AccumulateGradE"
	nodeClass       = "N5torch8autograd4NodeE" // of an object of no other class: one that is being destroyed
	copySlicesClass = "N5torch8autograd10CopySlicesE"
	pythonNodeClass = "N5torch8autograd6PyNodeE"
	viewMetaClass   = "N5torch8autograd22DifferentiableViewMetaE"
)

// class is a C++ class that has an object.
type class struct {
	vtable uint64
	name   string // mangled
	bases  []string
	role   role
	count  int      // objects that were found
	sizes  []uint64 // see classSizes
	sized  bool     // they were looked for
	// text is the name for people, once it was asked for.
	text string
}

// is reports whether a class is another one or derives from it.
func (c *class) is(name string) bool {
	if c == nil || c.name == name {
		return c != nil
	}
	for _, b := range c.bases {
		if b == name {
			return true
		}
	}
	return false
}

// counted reports whether objects of a class count their references behind their table.
func (c *class) counted() bool {
	shared := func(base string) bool { return strings.HasPrefix(base, sharedBase) }
	return c.is("N3c1020intrusive_ptr_targetE") || slices.ContainsFunc(c.bases, shared)
}

// title is the name for people, with its namespaces. An object that std::make_shared made has the class of its count: the
// name is that of what it holds.
func (c *class) title() string {
	if c.text != "" {
		return c.text
	}
	c.text = symbolize.Demangle("_Z" + withoutStar(c.name))
	if strings.HasPrefix(c.name, sharedClass) {
		full, err := demangle.ToString("_ZTS"+c.name, demangle.MaxLength(maxTitleLog))
		if _, inner, ok := strings.Cut(full, "<"); ok && err == nil {
			c.text, _, _ = strings.Cut(inner, ",")
		}
	}
	return c.text
}

const (
	sharedClass = "St23_Sp_counted_ptr_inplaceI"
	sharedBase  = "St16_Sp_counted_base"
	maxTitleLog = 12 // log2 of the bytes after which a demangled name is cut
)

// short is the name without namespaces, as Python shows that of a graph node.
func (c *class) short() string {
	s := c.title()
	return s[strings.LastIndex(s, ":")+1:]
}

// A name that begins with a star is compared by address (GCC, for local types).
func withoutStar(name string) string { return strings.TrimPrefix(name, "*") }

// classTable is the classes of a process by their tables, however often its memory is read.
type classTable struct {
	low, high uint64 // all tables lie in between
	// pages has a bit for each page in which a table may lie, by 512 GiB and GiB: libraries lie in one or two of them.
	pages [memory.MaxAddress >> topShift]*[1 << (topShift - spanShift)]*[spanPages / 64]uint64
	ids   *memory.Table // table -> number in list + 1, 0: none
	list  []*class
	// sizesAsked: malloc was asked for the sizes, see Malloc; unsized: it says none.
	sizesAsked, unsized bool
}

// classes tells the classes of the objects in an image.
type classes struct {
	im    *memory.Image
	fixed bool   // the table is not added to
	text  []byte // of one name, as it is read
	*classTable
}

const (
	spanShift = 30 // of what is one part of classTable.pages: 1 GiB
	spanPages = 1 << (spanShift - memory.PageShift)
	topShift  = 39 // of what is one part of all, 512 GiB
)

func newClasses(im *memory.Image) *classes {
	c := &classes{im: im, classTable: &classTable{ids: memory.NewTable()}}
	for _, r := range im.Regions() {
		if !mayHaveTables(&r) {
			continue
		}
		if c.high == 0 {
			c.low = r.Start
		}
		c.high = r.End
		for at := r.Start; at < r.End; at += memory.PageSize {
			c.note(at)
		}
	}
	return c
}

// note notes a page in which a table may lie.
func (t *classTable) note(at uint64) {
	part := &t.pages[at>>topShift]
	if *part == nil {
		*part = new([1 << (topShift - spanShift)]*[spanPages / 64]uint64)
	}
	span := &(*part)[at>>spanShift&(1<<(topShift-spanShift)-1)]
	if *span == nil {
		*span = new([spanPages / 64]uint64)
	}
	p := at >> memory.PageShift & (spanPages - 1)
	(*span)[p/64] |= 1 << (p % 64)
}

// mayHaveTables reports whether tables of classes may lie in a region: constant or initialised data of a library.
func mayHaveTables(r *memory.Region) bool { return r.File != "" && !r.Exec }

// maybe tells addresses that can be that of a class's table.
func (c *classes) maybe(w uint64) bool {
	if w&7 != 0 || w >= memory.MaxAddress {
		return false
	}
	part := c.pages[w>>topShift]
	if part == nil {
		return false
	}
	span := part[w>>spanShift&(1<<(topShift-spanShift)-1)]
	p := w >> memory.PageShift & (spanPages - 1)
	return span != nil && span[p/64]>>(p%64)&1 != 0
}

// of is the class of the object at an address; nil when there is none.
func (c *classes) of(object uint64) *class {
	if object&7 != 0 {
		return nil
	}
	w := c.im.Word(object)
	if !c.maybe(w) {
		return nil
	}
	return c.byTable(w)
}

// byTable is the class of a table.
func (c *classes) byTable(vtable uint64) *class {
	if id, ok := c.ids.Get(vtable); ok {
		if id == 0 {
			return nil
		}
		return c.list[id-1]
	}
	if c.fixed {
		return nil
	}
	found := c.read(vtable)
	if c.ids.Len() >= maxClasses {
		return found
	}
	if found == nil {
		c.ids.Set(vtable, 0)
		return nil
	}
	c.list = append(c.list, found)
	c.ids.Set(vtable, uint32(len(c.list)))
	return found
}

func (c *classes) read(vtable uint64) *class {
	if c.im.Word(vtable-vtableTop) != 0 {
		return nil
	}
	info := c.im.Word(vtable - vtableType)
	if !c.maybe(info) {
		return nil
	}
	out := &class{vtable: vtable, name: c.infoName(info)}
	if !mangled(out.name) {
		return nil
	}
	out.bases = c.infoBases(nil, info, maxClassDepth)
	if out.name == nodeClass {
		return out // without a role
	}
	for _, name := range append([]string{out.name}, out.bases...) {
		if r, ok := roles[name]; ok {
			out.role = r
			break
		}
	}
	return out
}

// infoName is the name of a typeinfo.
func (c *classes) infoName(info uint64) string {
	at := c.im.Word(info+typeInfoName) &^ notUnique
	if c.text == nil {
		c.text = make([]byte, maxClassName)
	}
	b := c.text
	for n := 64; n <= maxClassName; n *= 8 {
		got, _ := c.im.ReadAt(b[:n], at)
		if end := bytes.IndexByte(b[:got], 0); end >= 0 {
			return withoutStar(string(b[:end]))
		}
		if got < n {
			break
		}
	}
	return ""
}

// mangled tells names of types in the mangling of the C++ ABI: a nested name, one of std, or a length and a name.
func mangled(name string) bool {
	if name == "" || name[0] != 'N' && name[0] != 'S' && (name[0] < '1' || name[0] > '9') && name[0] != 'Z' {
		return false
	}
	for i := range len(name) {
		if name[i] <= ' ' || name[i] > '~' {
			return false
		}
	}
	return len(name) > 2
}

// infoBases appends the names of the bases of a class, and theirs. The kind of a typeinfo is the class of its own table.
func (c *classes) infoBases(out []string, info uint64, depth int) []string {
	if depth == 0 || len(out) > maxClassBases {
		return out
	}
	kind := c.im.Word(info)
	if !c.maybe(kind) {
		return out
	}
	switch c.infoName(c.im.Word(kind - vtableType)) {
	case singleBaseType:
		return c.appendBase(out, c.im.Word(info+typeInfoBase), depth)
	case manyBasesType:
		var n [4]byte
		if _, err := c.im.ReadAt(n[:], info+typeInfoCount); err != nil {
			return out
		}
		for i := range uint64(min(binary.LittleEndian.Uint32(n[:]), maxClassBases)) {
			out = c.appendBase(out, c.im.Word(info+typeInfoBases+16*i), depth)
		}
	}
	return out
}

func (c *classes) appendBase(out []string, info uint64, depth int) []string {
	if !c.maybe(info) {
		return out
	}
	name := c.infoName(info)
	if !mangled(name) {
		return out
	}
	return c.infoBases(append(out, name), info, depth-1)
}

// Objects are the C++ objects of a process that matter, by role, sorted by address.
type Objects struct {
	*classes
	code   *Code // nil: sizes of classes are not known
	abi    ABI
	byRole [roleCount][]uint64
	total  int
}

// Find looks for objects in the pages of the process's own memory, and notes the leaves among Python's objects. also looks at each page
// too, and reports whether it has objects that matter.
func Find(im *memory.Image, l *memory.Leaves, abi ABI, also ...func(addr uint64, page []byte) bool) *Objects {
	n := &Objects{classes: newClasses(im), abi: abi}
	im.EachPage(func(addr uint64, page []byte) uint64 {
		found := n.scan(addr, page)
		for _, scan := range also {
			found = scan(addr, page) || found
		}
		if found {
			im.Keep(addr, page)
		}
		l.Scan(addr, page)
		return im.Buffer(addr, page)
	})
	return n
}

// Total is how many objects of C++ classes were found, those that do not matter too.
func (n *Objects) Total() int { return n.total }

// ABI is what differs between the systems that a process can run on.
type ABI struct {
	align  int    // bytes that addresses of objects are multiples of
	malloc Malloc // is asked for sizes; nil: malloc keeps the size of a piece before it
}

// GNU is that of Linux: malloc aligns everything to 16 that is larger than a pointer (max_align_t; glibc, jemalloc, tcmalloc),
// and std::make_shared puts an object 16 bytes behind what malloc gave.
var GNU = ABI{align: 16}

// Apple is that of macOS, where std::make_shared puts it 24 bytes behind (libc++, __shared_ptr_emplace).
func Apple(m Malloc) ABI { return ABI{8, m} }

// scan looks for objects in a page, and reports whether there are some that matter.
func (n *Objects) scan(addr uint64, page []byte) (found bool) {
	low, span := n.low, n.high-n.low
	for i := 0; i+8 <= len(page); i += n.abi.align {
		w := binary.LittleEndian.Uint64(page[i:])
		if w-low >= span || !n.maybe(w) {
			continue
		}
		if c := n.byTable(w); c != nil {
			c.count++
			n.total++
			if c.role != roleOther {
				n.byRole[c.role] = append(n.byRole[c.role], addr+uint64(i))
				found = true
			}
		}
	}
	return found
}

// role is that of the object at an address.
func (n *Objects) role(object uint64) role {
	if c := n.of(object); c != nil {
		return c.role
	}
	return roleOther
}
