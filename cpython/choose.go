// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gputrace/gputrace/process"
)

// Other is an interpreter of the process beside the one that is read.
type Other struct {
	Version Version
	Module  string // the file that defines it, as the process's own mount namespace names it
	Threads int    // thread states; 0: it was not started, or is not laid out as known
}

// FollowsSub is the first minor version in which a thread has the state of the interpreter that it runs. From then on the frames of a
// sub-interpreter are found, and its caller's are not.
const FollowsSub = 12

// Beside lists for people whose lines are not known: other interpreters that run, and to 3.11 sub-interpreters, whose frames a
// thread does not name as its own. Empty: no one's.
func (r *Runtime) Beside(mem process.Memory) string {
	var out []string
	for i := range r.Others {
		if o := &r.Others[i]; o.Threads > 0 {
			out = append(out, fmt.Sprintf("Python %s (%s)", o.Version, path.Base(o.Module)))
		}
	}
	switch n := r.Interpreters(mem) - 1; {
	case r.Version.Minor >= FollowsSub || n < 1:
	case n == 1:
		out = append(out, "a sub-interpreter")
	default:
		out = append(out, fmt.Sprintf("%d sub-interpreters", n))
	}
	return strings.Join(out, " and ")
}

// torchBinding is the library of PyTorch that is written against Python: the interpreter that its references lead to is
// the one whose objects PyTorch makes.
const torchBinding = "libtorch_python.so"

// Binds reports whether a file is the library by which PyTorch is bound to an interpreter.
func Binds(file string) bool { return path.Base(file) == torchBinding }

// boundNames are variables of the interpreter that an extension refers to by a relocation, which the linker resolves when
// it loads it.
var boundNames = []string{"_Py_NoneStruct", "PyType_Type", "_Py_TrueStruct"}

// locateAll opens the files with an executable mapping that define _PyRuntime, the likeliest first: that which PyTorch is
// bound to, then by their names. Files whose name says nothing are opened only when no other can be read, since the symbols
// of large libraries take long.
func locateAll(p *process.Process) ([]*located, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	exe, _ := p.Exe()
	candidates := executables(maps)
	bound := boundFile(p, maps)
	isBound := func(m *process.Mapping) bool {
		return bound != nil && m.Device == bound.Device && m.Inode == bound.Inode
	}
	rank := func(m *process.Mapping) int {
		if isBound(m) {
			return -1
		}
		return unlikely(m, exe)
	}
	slices.SortStableFunc(candidates, func(a, b process.Mapping) int { return rank(&a) - rank(&b) })
	var out []*located
	var unreadable error
	for i := range candidates {
		if len(out) > 0 && rank(&candidates[i]) == nameless && anyStarted(p, out) {
			break
		}
		found, err := locateIn(p, &candidates[i])
		if found != nil {
			found.bound = isBound(&candidates[i])
			out = append(out, found)
		}
		if errors.Is(err, process.ErrPermission) {
			unreadable = err
		}
	}
	switch {
	case len(out) > 0:
		return out, nil
	case unreadable != nil: // a file that is no ELF is no interpreter; one that may not be opened could be
		return nil, fmt.Errorf("find python of pid %d: %w", p.PID, unreadable)
	}
	return nil, fmt.Errorf("find python of pid %d: %w: none of %d mapped files defines _PyRuntime", p.PID, ErrNoPython, len(candidates))
}

// locate opens the file of the interpreter that is to be read.
func locate(p *process.Process) (*located, error) {
	all, err := locateAll(p)
	if err != nil {
		return nil, err
	}
	chosen := choose(p, all)
	closeAll(slices.DeleteFunc(all, func(l *located) bool { return l == chosen }))
	return chosen, nil
}

// choose is the interpreter that PyTorch is bound to, else the first that was started, else the first.
func choose(mem process.Memory, all []*located) *located {
	if i := slices.IndexFunc(all, func(l *located) bool { return l.bound }); i >= 0 {
		return all[i]
	}
	return all[max(slices.IndexFunc(all, func(l *located) bool { return l.threads(mem) > 0 }), 0)]
}

func closeAll(all []*located) {
	for _, l := range all {
		l.file.close()
	}
}

func anyStarted(mem process.Memory, all []*located) bool {
	return slices.ContainsFunc(all, func(l *located) bool { return l.threads(mem) > 0 })
}

// others describes the interpreters beside the one that is read.
func others(mem process.Memory, all []*located, chosen *located) []Other {
	var out []Other
	for _, l := range all {
		if l == chosen {
			continue
		}
		v, err := l.version(mem)
		if err == nil {
			out = append(out, Other{Version: v, Module: l.mapping.Path, Threads: l.threads(mem)})
		}
	}
	return out
}

// threads is how many thread states an interpreter has. 0: it was not started, or its version is not known.
func (l *located) threads(mem process.Memory) int {
	v, err := l.version(mem)
	if err != nil {
		return 0
	}
	row, ok := layoutOf(v)
	if ok && row.debugOffsets {
		row, err = row.withDebugOffsets(mem, l.runtime)
	}
	if !ok || err != nil {
		return 0
	}
	threads, _ := (&Runtime{Address: l.runtime, layout: row}).Threads(mem)
	return len(threads)
}

// boundFile is the mapped file whose Python PyTorch is bound to; nil: PyTorch is not there, or what it refers to cannot be read.
func boundFile(p *process.Process, maps []process.Mapping) *process.Mapping {
	for i := range maps {
		m := &maps[i]
		if !m.Exec || m.Base() != torchBinding {
			continue
		}
		if at := boundAddress(p, m); at != 0 {
			if j := slices.IndexFunc(maps, func(m process.Mapping) bool { return at >= m.Start && at < m.End }); j >= 0 && maps[j].Inode != 0 {
				return &maps[j]
			}
		}
	}
	return nil
}

// openMapped opens a mapped file and says what to add to its addresses; nil: it cannot be read. done closes it.
func openMapped(p *process.Process, m *process.Mapping) (o *object, bias uint64, done func()) {
	f, err := p.OpenFile(m)
	if err != nil {
		return nil, 0, nil
	}
	if o, err = newObject(f); err == nil {
		if bias, ok := o.bias(m.Start, m.Offset); ok {
			return o, bias, func() { f.Close() }
		}
	}
	f.Close()
	return nil, 0, nil
}

// boundAddress is the address of one of boundNames that a mapped library refers to; 0: none.
func boundAddress(p *process.Process, m *process.Mapping) uint64 {
	o, bias, done := openMapped(p, m)
	if o == nil {
		return 0
	}
	defer done()
	for _, at := range o.references(boundNames) {
		if v, err := process.Uint64(p, at+bias); err == nil && v != 0 {
			return v
		}
	}
	return 0
}

// references are the link-time addresses of the words that the linker fills with the addresses of named symbols of other files.
func (o *object) references(names []string) []uint64 {
	symbols, rela := o.elf.SectionByType(elf.SHT_DYNSYM), o.elf.Section(".rela.dyn")
	if symbols == nil || rela == nil || int(symbols.Link) >= len(o.elf.Sections) {
		return nil
	}
	text, err := sectionData(o.elf.Sections[symbols.Link])
	if err != nil {
		return nil
	}
	table, err := sectionData(symbols)
	if err != nil {
		return nil
	}
	wanted := map[uint32]bool{}
	for _, name := range names {
		places := nameOffsets(text, name)
		for n := 0; n+elf.Sym64Size <= len(table); n += elf.Sym64Size {
			if places[binary.LittleEndian.Uint32(table[n:])] {
				wanted[uint32(n/elf.Sym64Size)] = true
			}
		}
	}
	relocations, err := sectionData(rela)
	if err != nil {
		return nil
	}
	const size = 24 // sizeof(Elf64_Rela): offset, info (symbol, type), addend
	var out []uint64
	for ; len(relocations) >= size; relocations = relocations[size:] {
		info := binary.LittleEndian.Uint64(relocations[8:])
		if o.isAddress(uint32(info)) && wanted[uint32(info>>32)] {
			out = append(out, binary.LittleEndian.Uint64(relocations))
		}
	}
	return out
}

// isAddress reports whether a relocation stores the plain address of its symbol.
func (o *object) isAddress(kind uint32) bool {
	if o.elf.Machine == elf.EM_AARCH64 {
		typ := elf.R_AARCH64(kind)
		return typ == elf.R_AARCH64_GLOB_DAT || typ == elf.R_AARCH64_ABS64
	}
	typ := elf.R_X86_64(kind)
	return typ == elf.R_X86_64_GLOB_DAT || typ == elf.R_X86_64_64
}
