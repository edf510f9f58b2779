// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"debug/elf"
	"os"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// Name is what is known of one call at an address: the function, and where in its source.
type Name struct {
	// Linkage is the name as the symbol table or the debug information has it, mangled; "" when only the line is known.
	Linkage string
	File    string // path as the compiler was given it; "" when there is no debug information
	// Line is the line that the address belongs to; of a function into which another was inlined, the line of that call.
	// 0: unknown.
	Line      int
	StartLine int // where the function is declared; 0: unknown
}

// Names names a link-time address: the functions that were inlined there, innermost first, and last the function whose
// code it is. Nil: nothing is known, and no neighbour's name is taken instead. The function's name is that of .symtab or
// .dynsym, else of .gnu_debugdata, else of a separate debug file, else of the debug information; lines and inlined calls
// are from the file's own debug information, else from the separate file's. What it costs is in docs/measured/stacks.md: keep the
// result.
func (f *File) Names(vaddr uint64) []Name {
	names := f.debugLines().names(vaddr)
	sym, ok := f.anySymbol(vaddr)
	if !ok {
		return names
	}
	if len(names) == 0 {
		return []Name{{Linkage: sym.Name}}
	}
	names[len(names)-1].Linkage = sym.Name
	return names
}

// anySymbol is SymbolAt in all files that have symbols of this one.
func (f *File) anySymbol(vaddr uint64) (Symbol, bool) {
	if sym, ok := f.SymbolAt(vaddr); ok {
		return sym, true
	}
	for _, other := range []func() *File{f.miniFile, f.debugFile} {
		if o := other(); o != nil {
			if sym, ok := o.SymbolAt(vaddr); ok {
				return sym, true
			}
		}
	}
	return Symbol{}, false
}

// DebugFrom says how to open what may be a separate debug file, by its path; without it there are none. Each of the
// functions sees another file system: the target's, the tracer's own. They are asked in this order, at the first call of
// Names, and must give regular files only. Call it before the first call of Names.
func (f *File) DebugFrom(open ...func(path string) (*os.File, error)) { f.openDebug = open }

// debugFile is the separate debug file; nil when there is none.
func (f *File) debugFile() *File {
	f.debugOnce.Do(func() { f.debug.Store(f.findDebug()) })
	return f.debug.Load()
}

// miniFile is what .gnu_debugdata holds: an ELF file with a .symtab of the functions that .dynsym lacks. nil when the file
// has none.
func (f *File) miniFile() *File {
	f.miniOnce.Do(func() {
		defer elfimage.OnFault(func(error) { f.mini = nil })()
		s := f.Section(".gnu_debugdata")
		if s == nil {
			return
		}
		image, err := unxz(s.Data, maxMini)
		if err != nil {
			return
		}
		if mini, err := OpenBytes(image, f.Path); err == nil {
			f.adopt(mini)
			f.mini = mini
		}
	})
	return f.mini
}

// adopt makes a file one that only adds names: its addresses are this file's, its code is not there.
func (f *File) adopt(other *File) {
	other.main = f
	if other.Machine() != f.Machine() {
		other.Sections, other.Segments = nil, nil
	}
}

// bounds is Frames.Bounds of the file that has the code.
func (f *File) bounds(vaddr uint64) (start, end uint64, ok bool) {
	if f.main != nil {
		return f.main.frames.Bounds(vaddr)
	}
	return f.frames.Bounds(vaddr)
}

// isCode reports whether a link-time address lies in an executable segment. What a linker left out keeps its debug
// information, at address 0.
func (f *File) isCode(vaddr uint64) bool {
	s := f.Loaded(vaddr)
	return vaddr != 0 && s != nil && s.Flags&elf.PF_X != 0
}
