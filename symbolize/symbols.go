// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"iter"
	"slices"
	"sort"

	"github.com/gputrace/gputrace/internal/elfimage"
)

const (
	// maxName bounds a name, bytes; the longest in PyTorch 2.15's libraries has 4,614.
	maxName = 1 << 20
	// maxSymbols bounds a table; libtorch_cpu 2.15 has 546,000.
	maxSymbols = 1 << 26

	sttIFunc = elf.SymType(10) // STT_GNU_IFUNC: its address is that of the function which chooses the implementation
)

// Symbol is a function or an object. Size 0 means that the table does not give it.
type Symbol struct {
	Name string // as in the table, mangled, without "@VERSION"
	Addr uint64 // link-time address
	Size uint64 // bytes
}

// cloneMarks are in the names of parts of functions (gcc) and of the old places of moved ones (BOLT): a probe there would
// miss calls.
var cloneMarks = [][]byte{[]byte(".cold"), []byte(".org"), []byte(".part")}

// FindPrefix lists the defined functions whose name begins with prefix: those of .dynsym, then those of .symtab, each
// address once. Names that contain .cold, .org or .part are left out: they are no entry points.
func (f *File) FindPrefix(prefix string) []Symbol {
	return f.FindPrefixes([]string{prefix})[0]
}

// FindPrefixes is FindPrefix for many prefixes in one pass over the tables, which takes tens of milliseconds for
// PyTorch's largest library. The result has one list for each prefix, in their order; a list may be empty.
func (f *File) FindPrefixes(prefixes []string) (found [][]Symbol) {
	defer elfimage.OnFault(func(error) { found = make([][]Symbol, len(prefixes)) })()
	found = make([][]Symbol, len(prefixes))
	seen := make([]map[uint64]bool, len(prefixes))
	for i := range seen {
		seen[i] = map[uint64]bool{}
	}
	for tab, s := range f.functions() {
		for p, prefix := range prefixes {
			if !tab.begins(s, prefix) || seen[p][s.addr] {
				continue
			}
			if name := tab.name(s); !isClone(name) {
				found[p] = append(found[p], Symbol{Name: string(name), Addr: s.addr, Size: s.size})
				seen[p][s.addr] = true
			}
		}
	}
	return found
}

// functions goes over the defined functions of both tables.
func (f *File) functions() iter.Seq2[*symbolTable, rawSymbol] {
	return func(yield func(*symbolTable, rawSymbol) bool) {
		for t := range f.tables() {
			tab := &f.symbols[t]
			for i := range tab.count() {
				if s := tab.symbol(i); s.kind == elf.STT_FUNC && !yield(tab, s) {
					return
				}
			}
		}
	}
}

func isClone(name []byte) bool {
	return slices.ContainsFunc(cloneMarks, func(m []byte) bool { return bytes.Contains(name, m) })
}

// Find looks up a defined function or object by its exact name, in .dynsym, then in .symtab. Of several versions of a
// name it is the default one. An indirect function (STT_GNU_IFUNC) is not found: its address is not that of its code.
func (f *File) Find(name string) (sym Symbol, ok bool) {
	defer elfimage.OnFault(func(error) { sym, ok = Symbol{}, false })()
	for t := range f.tables() {
		if sym, ok = f.symbols[t].find(name); ok {
			return sym, true
		}
	}
	return Symbol{}, false
}

// FindExported is Find of what other libraries can call: where a file has a .dynsym nothing else is looked at, which
// takes tens of milliseconds less of PyTorch's largest library when it is not there.
func (f *File) FindExported(name string) (sym Symbol, ok bool) {
	defer elfimage.OnFault(func(error) { sym, ok = Symbol{}, false })()
	if tables := f.tables(); tables[0].count() > 0 {
		return tables[0].find(name)
	}
	return f.Find(name)
}

// SymbolAt is the function whose code contains a link-time address, never a neighbour: a symbol without a size counts up
// to the end of the frame description that begins with it. Of several names of a function it is the global one,
// then the one with the fewest underscores in front, then the shortest. The first call sorts the symbols.
func (f *File) SymbolAt(vaddr uint64) (sym Symbol, ok bool) {
	defer elfimage.OnFault(func(error) { sym, ok = Symbol{}, false })()
	f.indexOnce.Do(func() { f.index = f.buildIndex() })
	i := sort.Search(len(f.index), func(i int) bool { return f.index[i].addr > vaddr }) - 1
	for i >= 0 {
		if sym, ok := f.bestAt(i, vaddr); ok {
			return sym, true
		}
		i = int(f.index[i].outer)
	}
	return Symbol{}, false
}

// symbolTables are .dynsym and .symtab, in this order.
type symbolTables [2]symbolTable

// symbolTable is a view of a table in the file.
type symbolTable struct {
	entries []byte
	names   []byte
	// versions has a uint16 for each entry of .dynsym (SHT_GNU_versym); nil when the file has none.
	versions []byte
	// hash is of .dynsym; without buckets when the file has none.
	hash gnuHash
}

// rawSymbol is an entry of a table. kind is STT_NOTYPE for an undefined one.
type rawSymbol struct {
	nameOff    uint32
	kind       elf.SymType
	bind       elf.SymBind
	addr, size uint64
}

func (f *File) tables() *symbolTables {
	f.symbolsOnce.Do(func() { f.symbols = f.findTables() })
	return &f.symbols
}

func (f *File) findTables() (t symbolTables) {
	for i := range f.Sections {
		s := &f.Sections[i]
		var names []byte
		if int(s.Link) < len(f.Sections) {
			names = f.Sections[s.Link].Data
		}
		switch s.Kind {
		case elf.SHT_DYNSYM:
			if f.main != nil {
				continue // of the file's own there is more
			}
			t[0].entries, t[0].names = s.Data, names
		case elf.SHT_SYMTAB:
			t[1].entries, t[1].names = s.Data, names
		case elf.SHT_GNU_VERSYM:
			t[0].versions = s.Data
		case elf.SHT_GNU_HASH:
			t[0].hash = readGNUHash(s.Data)
		}
	}
	if t[0].entries == nil && f.main == nil { // a debug file's segments are not in it, whatever its headers say
		t[0] = f.dynamicTable()
	}
	return t
}

// symSize is the size of a symbol (System V ABI, gabi chapter 4), bytes.
const symSize = 24

func (t *symbolTable) count() int { return min(len(t.entries)/symSize, maxSymbols) }

func (t *symbolTable) symbol(i int) rawSymbol {
	b := t.entries[i*symSize : (i+1)*symSize]
	s := rawSymbol{
		nameOff: binary.LittleEndian.Uint32(b),
		kind:    elf.ST_TYPE(b[4]), bind: elf.ST_BIND(b[4]),
		addr: binary.LittleEndian.Uint64(b[8:]), size: binary.LittleEndian.Uint64(b[16:]),
	}
	if section := elf.SectionIndex(binary.LittleEndian.Uint16(b[6:])); section == elf.SHN_UNDEF || section == elf.SHN_ABS {
		s.kind = elf.STT_NOTYPE
	}
	return s
}

// begins reports whether a symbol's name has a prefix; it is cheaper than finding the name's end.
func (t *symbolTable) begins(s rawSymbol, prefix string) bool {
	off := uint64(s.nameOff)
	return off+uint64(len(prefix)) <= uint64(len(t.names)) && string(t.names[off:off+uint64(len(prefix))]) == prefix
}

// is reports whether a symbol's name is this one. The end is looked at first: names of C++ begin alike, and hardly any
// other ends at that place.
func (t *symbolTable) is(s rawSymbol, name string) bool {
	end := uint64(s.nameOff) + uint64(len(name))
	return end < uint64(len(t.names)) && (t.names[end] == 0 || t.names[end] == '@') && t.begins(s, name)
}

// find is the default version of a function or object, else any.
func (t *symbolTable) find(name string) (sym Symbol, ok bool) {
	for i := range t.candidates(name) {
		s := t.symbol(i)
		if s.kind != elf.STT_FUNC && s.kind != elf.STT_OBJECT || !t.is(s, name) {
			continue
		}
		hidden := t.hidden(i)
		if !ok || !hidden {
			sym, ok = Symbol{Name: name, Addr: s.addr, Size: s.size}, true
		}
		if !hidden {
			break
		}
	}
	return sym, ok
}

// name is a symbol's name without "@VERSION" and "@@VERSION", which .symtab appends.
func (t *symbolTable) name(s rawSymbol) []byte {
	name, _, _ := bytes.Cut(elfimage.CStringAt(t.names, s.nameOff, maxName), []byte("@"))
	return name
}

// hidden reports whether a symbol is of another version than the default (bit 15 of its version).
func (t *symbolTable) hidden(i int) bool {
	return 2*i+2 <= len(t.versions) && t.versions[2*i+1]&0x80 != 0
}

// indexEntry is one function in the order of addresses. Names and sizes stay in the file: 16 bytes a symbol.
type indexEntry struct {
	addr uint64
	ref  uint32 // number in its table; indexStatic is set for .symtab
	// outer is the nearest entry of a lower address that reaches over this one's, -1 for none.
	outer int32
}

const indexStatic = 1 << 31

func (f *File) buildIndex() []indexEntry {
	var index []indexEntry
	for which, tab := range f.tables() {
		n := tab.count()
		index = slices.Grow(index, n)
		for i := range n {
			if s := tab.symbol(i); s.kind == elf.STT_FUNC || s.kind == sttIFunc {
				index = append(index, indexEntry{addr: s.addr, ref: uint32(i) | uint32(which)*indexStatic})
			}
		}
	}
	slices.SortFunc(index, func(a, b indexEntry) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.ref, b.ref))
	})
	f.nest(index)
	return slices.Clip(index)
}

// nest sets outer, so that a lookup behind the end of a nested function finds the one around it.
func (f *File) nest(index []indexEntry) {
	type open struct {
		end   uint64
		entry int32
	}
	var stack []open
	for i := 0; i < len(index); {
		addr := index[i].addr
		for len(stack) > 0 && stack[len(stack)-1].end <= addr {
			stack = stack[:len(stack)-1]
		}
		outer := int32(-1)
		if len(stack) > 0 {
			outer = stack[len(stack)-1].entry
		}
		longest := open{entry: int32(i)}
		for ; i < len(index) && index[i].addr == addr; i++ {
			index[i].outer = outer
			longest.end = max(longest.end, f.symbolEnd(f.entrySymbol(index[i])))
		}
		stack = append(stack, longest)
	}
}

func (f *File) entrySymbol(e indexEntry) rawSymbol {
	return f.tables()[e.ref/indexStatic].symbol(int(e.ref % indexStatic))
}

// symbolEnd is the first address behind a function.
func (f *File) symbolEnd(s rawSymbol) uint64 {
	if s.size != 0 {
		if end := s.addr + s.size; end > s.addr {
			return end
		}
		return s.addr
	}
	// The description of a signal trampoline begins a byte early.
	if start, end, ok := f.bounds(s.addr); ok && (start == s.addr || start+1 == s.addr) {
		return end
	}
	return s.addr
}

// bestAt chooses among the names of entry i's address those that contain vaddr.
func (f *File) bestAt(i int, vaddr uint64) (best Symbol, ok bool) {
	addr := f.index[i].addr
	for i > 0 && f.index[i-1].addr == addr {
		i--
	}
	var bestRank symbolRank
	for ; i < len(f.index) && f.index[i].addr == addr; i++ {
		s := f.entrySymbol(f.index[i])
		if f.symbolEnd(s) <= vaddr {
			continue
		}
		name := f.tables()[f.index[i].ref/indexStatic].name(s)
		rank := rankOf(s, name)
		if len(name) > 0 && (!ok || rank.compare(bestRank) < 0) {
			best, bestRank, ok = Symbol{Name: string(name), Addr: s.addr, Size: s.size}, rank, true
		}
	}
	return best, ok
}

// symbolRank orders the names of one function, the best first.
type symbolRank struct {
	sizeless, binding, underscores int
	name                           []byte
}

func rankOf(s rawSymbol, name []byte) symbolRank {
	r := symbolRank{name: name, underscores: len(name) - len(bytes.TrimLeft(name, "_"))}
	if s.size == 0 {
		r.sizeless = 1
	}
	switch s.bind {
	case elf.STB_GLOBAL:
	case elf.STB_WEAK:
		r.binding = 1
	default:
		r.binding = 2
	}
	return r
}

func (r symbolRank) compare(o symbolRank) int {
	return cmp.Or(cmp.Compare(r.sizeless, o.sizeless), cmp.Compare(r.binding, o.binding),
		cmp.Compare(r.underscores, o.underscores), cmp.Compare(len(r.name), len(o.name)), bytes.Compare(r.name, o.name))
}
