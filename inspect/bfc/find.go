// SPDX-License-Identifier: Apache-2.0

package bfc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/tracer/hook"
)

// Errors on which callers branch.
var (
	// ErrNoAllocator means that a process has no BFC allocator; the error's text is the reason.
	ErrNoAllocator = errors.New("no BFC allocator")
	// ErrNotLoaded is an ErrNoAllocator of a process that has loaded no library with such an allocator.
	ErrNotLoaded = fmt.Errorf("%w: neither TensorFlow nor JAX with a GPU is loaded", ErrNoAllocator)
	// ErrUnproved means that a process has allocators, and none of them could be proved.
	ErrUnproved = errors.New("not proved")
)

// typeInfo is the symbol of the run-time type information of tsl::BFCAllocator. TensorFlow exports it; JAX's plugin has it in its table of
// local symbols.
const typeInfo = "_ZTIN3tsl12BFCAllocatorE"

// Limits of a search.
const (
	maxTables     = 64      // classes
	maxCandidates = 4096    // words that look like an object
	scanBytes     = 1 << 20 // read at once
	// proofTime limits how long candidates are looked at. One that cannot be an allocator takes microseconds.
	proofTime = 5 * time.Second
	// scanTime limits how long memory is searched; a gigabyte takes a fraction of a second.
	scanTime = 10 * time.Second
)

// Pool is a BFC allocator that was found in a process, and proved. It is not safe for concurrent use.
type Pool struct {
	*Allocator
	Name   string // such as "GPU_0_bfc"; empty: it was not found
	Device int    // as the program numbers it; 0 if Host
	Host   bool   // the memory is the host's
}

// Object returns the address of the allocator's object.
func (a *Allocator) Object() uint64 { return a.object }

// Map is Allocator.Map with the allocator's name and device.
func (p *Pool) Map(ctx context.Context, now func() uint64, timeout time.Duration) (*inspect.DeviceMap, error) {
	m, err := p.Allocator.Map(ctx, now, timeout)
	if err != nil {
		return nil, err
	}
	m.Name, m.DeviceTotals.Device, m.Host = p.Name, p.Device, p.Host
	return m, nil
}

// Found is what a search of a process found.
type Found struct {
	Pools []*Pool // by name
	// Unproved are the names of allocators that were not proved: their layout is not known, or they were too busy, or they have taken no
	// memory yet and no other one shows where that is written.
	Unproved []string
	// Cut: the search ended early, because the process has too much memory or too many words that look like an allocator.
	Cut bool
}

// Find searches the memory of a running process for its BFC allocators, without a probe: for objects of the class and of those derived
// from it, each of which must then be proved as Read does. now is the clock of the readings. Errors wrap ErrNoAllocator,
// ErrUnproved, an error of package process or, if ctx ended the search, its cause.
func Find(ctx context.Context, p *process.Process, now func() uint64) (*Found, error) {
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	tables, err := classTables(p, maps)
	if err != nil {
		return nil, fmt.Errorf("find the BFC allocators of pid %d: %w", p.PID, err)
	}
	runs, notes, err := present.Runs(p, heapOf(maps))
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, scanTime)
	defer cancel()
	s := &search{memory: p, tables: tables, proofTime: proofTime}
	s.scan(bounded, runs)
	out := s.prove(ctx, now)
	out.Cut = out.Cut || len(notes) > 0
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case len(out.Pools) == 0 && len(out.Unproved) == 0:
		return nil, fmt.Errorf("find the BFC allocators of pid %d: %w: TensorFlow or JAX is loaded, and has none", p.PID, ErrNoAllocator)
	case len(out.Pools) == 0:
		return nil, fmt.Errorf("find the BFC allocators of pid %d: %w: %s", p.PID, ErrUnproved, strings.Join(out.Unproved, ", "))
	}
	return out, nil
}

// heapOf returns the regions in which objects are allocated.
func heapOf(maps []process.Mapping) []present.Region {
	return slices.DeleteFunc(present.Regions(maps), func(r present.Region) bool { return !r.Heap || r.Stack || r.File != "" })
}

// classTables returns the words that objects begin with: the addresses of the virtual function tables of BFCAllocator and its derived
// classes.
func classTables(p *process.Process, maps []process.Mapping) ([]uint64, error) {
	why := ErrNotLoaded
	for i := range maps {
		m := &maps[i]
		if !m.Exec || m.Inode == 0 || !hook.BFC.Matches(m.Path) {
			continue
		}
		info, err := findInfo(p, m)
		if err != nil {
			return nil, err
		}
		if info == 0 {
			why = fmt.Errorf("%w: %s has no such class", ErrNoAllocator, m.Base())
			continue
		}
		if tables := tablesOf(p, constants(maps, path.Dir(m.Path)), info); len(tables) > 0 {
			return tables, nil
		}
		why = fmt.Errorf("%w: %s has no virtual functions of it", ErrNoAllocator, m.Base())
	}
	return nil, why
}

// findInfo returns the address of the class's type information in the process; 0: the library has none.
func findInfo(p *process.Process, m *process.Mapping) (uint64, error) {
	file, err := p.OpenFile(m)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	f, err := symbolize.Open(file, m.Path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	symbol, ok := f.Find(typeInfo)
	bias, placed := f.Bias(m.Start, m.Offset)
	if !ok || !placed {
		return 0, nil
	}
	return symbol.Addr + bias, nil
}

// constants lists the mappings with the constants that the dynamic linker has relocated, of the libraries in a folder: a mapping that is
// written, and the one in front of it, which was.
func constants(maps []process.Mapping, folder string) (out []present.Region) {
	for i := range maps {
		m := &maps[i]
		if m.Inode == 0 || m.Exec || m.Shared || path.Dir(m.Path) != folder || !strings.Contains(m.Base(), ".so") {
			continue
		}
		written := m.Writable || i+1 < len(maps) && maps[i+1].Path == m.Path && maps[i+1].Writable
		if written {
			out = append(out, present.Region{Start: m.Start, End: m.End, File: m.Path})
		}
	}
	return out
}

// tablesOf searches constants for the virtual function tables of a class, by the address of its type information, and of its derived
// classes (Itanium C++ ABI, 2.5.2 and 2.9.5):
//
//	a table:           0, type information, functions ...      an object points to the functions
//	type information:  table, name, type information of the base class
func tablesOf(m process.Memory, in []present.Region, info uint64) (tables []uint64) {
	for infos, done := []uint64{info}, 0; done < len(infos) && len(infos) < maxTables; done++ {
		eachWord(m, in, infos[done], func(at, before uint64) {
			switch {
			case before == 0 && len(tables) < maxTables:
				tables = append(tables, at+8)
			case before != 0 && isName(m, before):
				infos = append(infos, at-16)
			}
		})
	}
	return tables
}

// isName reports whether the mangled name of a class is at an address.
func isName(m process.Memory, addr uint64) bool {
	b := make([]byte, 3)
	_, err := m.ReadAt(b, addr)
	return err == nil && (b[0] == 'N' || b[0] >= '1' && b[0] <= '9')
}

// eachWord calls visit with each place of a word, and the word before it.
func eachWord(m process.Memory, in []present.Region, wanted uint64, visit func(at, before uint64)) {
	buffer := make([]byte, scanBytes)
	for _, r := range in {
		before := uint64(0)
		for at := r.Start; at < r.End; at += scanBytes {
			n, _ := m.ReadAt(buffer[:min(scanBytes, r.End-at)], at)
			for off := 0; off+8 <= n; off += 8 {
				w := word(buffer, off)
				if w == wanted {
					visit(at+uint64(off), before)
				}
				before = w
			}
		}
	}
}

// search looks for objects by their first word.
type search struct {
	memory     process.Memory
	tables     []uint64
	proofTime  time.Duration
	candidates []uint64
	cut        bool
}

// scan notes the addresses at which an object may begin.
func (s *search) scan(ctx context.Context, runs []present.Run) {
	low, high := slices.Min(s.tables), slices.Max(s.tables)
	buffer := make([]byte, scanBytes)
	for _, r := range runs {
		for at, end := r.Addr, r.Addr+r.Pages<<present.PageShift; at < end; at += scanBytes {
			if ctx.Err() != nil {
				s.cut = true
				return
			}
			n, _ := s.memory.ReadAt(buffer[:min(scanBytes, end-at)], at)
			for b, off := buffer[:n&^7], uint64(0); len(b) >= 8; b, off = b[8:], off+8 {
				w := binary.LittleEndian.Uint64(b)
				if w-low <= high-low && slices.Contains(s.tables, w) {
					s.note(at + off)
				}
			}
		}
	}
}

func (s *search) note(addr uint64) {
	if len(s.candidates) == maxCandidates {
		s.cut = true
		return
	}
	s.candidates = append(s.candidates, addr)
}

// prove reads the candidates. One that lies in front of an allocator, such as what is left of an older object, leads to the fields of that
// one, too: the candidate that is closest to them is the allocator.
func (s *search) prove(ctx context.Context, now func() uint64) *Found {
	out := &Found{Cut: s.cut}
	heads, unproved := map[uint64]bool{}, []*Pool{}
	for begun, i := time.Now(), len(s.candidates)-1; i >= 0; i-- {
		if ctx.Err() != nil || time.Since(begun) > s.proofTime {
			out.Cut = true
			break
		}
		a := New(s.memory, s.candidates[i])
		_, err := a.attempt(now, false)
		name, _ := Name(s.memory, a.object)
		if errors.Is(err, ErrChanged) && name != "" {
			_, err = a.Read(ctx, now)
		}
		if head := a.object + a.known.head; err == nil && !heads[head] {
			heads[head] = true
			device, gpu := GPU(name)
			out.Pools = append(out.Pools, &Pool{Allocator: a, Name: name, Device: device, Host: !gpu})
		} else if err != nil && name != "" {
			unproved = append(unproved, &Pool{Allocator: a, Name: name})
		}
	}
	for _, u := range unproved {
		if !slices.ContainsFunc(out.Pools, func(p *Pool) bool { return u.empty(p.known) }) {
			out.Unproved = append(out.Unproved, u.Name)
		}
	}
	slices.SortStableFunc(out.Pools, func(x, y *Pool) int { return strings.Compare(x.Name, y.Name) })
	slices.Sort(out.Unproved)
	return out
}

// empty reports whether an allocator has taken no memory yet, if its fields are at a place.
func (a *Allocator) empty(l layout) bool {
	h, err := a.head(l)
	return err == nil && h.regions().bytes() == 0 && h.chunks().bytes() == 0 && h.inUse(l) == 0 && h.nextID(l) == 1
}
