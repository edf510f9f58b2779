// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package mapped tracks the code that a process has mapped: its files, each opened once, their unwind tables, and their
// regions of memory.
package mapped

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/symbolize"
	"github.com/gputrace/gputrace/unwind"
)

// File is one file that the target executes. It is opened once, and stays usable after the target has ended.
type File struct {
	Symbols *symbolize.File
	Path    string // path as the target sees it
	Err     error  // why the file or its unwind information is missing
	RowLo   uint32 // its rows in the kernel: [RowLo, RowHi)
	RowHi   uint32
	code    uint64 // bytes of mapped code
	ID      process.FileID

	blockSites []inspect.BlockSite // for an allocator's library, once searched
}

// Key identifies a file while it is mapped; all its mappings have the same key. A file created later can have the same
// inode number and path.
type Key struct {
	device string
	inode  uint64
	path   string
}

// KeyOf returns the key of a mapped file.
func KeyOf(m *process.Mapping) Key { return Key{m.Device, m.Inode, m.Path} }

// Region is one executable mapping of the target, with its file.
type Region struct {
	process.Mapping
	File   *File
	Module *event.Module
	Bias   uint64
	Since  uint64 // number of the code change at which it replaced other code; 0: it did not
}

// Files keeps every file that was ever mapped executable.
type Files struct {
	target *process.Process
	cache  *unwind.Cache
	rows   tableStore               // of all processes
	files  map[process.FileID]*File // of all processes
	byKey  map[Key]*File
	Cached int     // number of tables that came from the cache
	failed []error // why unwind information of a file is not in the kernel
}

// maxVDSO limits how much is read as the vdso; Linux's has two pages.
const maxVDSO = 64 << 10

// NewFiles returns the files of a process; files has those of other processes. Unwind tables are cached in cacheDir.
func NewFiles(p *process.Process, cacheDir string, rows tableStore, files map[process.FileID]*File) *Files {
	return &Files{target: p, cache: &unwind.Cache{Dir: cacheDir}, rows: rows, files: files, byKey: map[Key]*File{}}
}

// tableStore stores unwind tables, in the kernel.
type tableStore interface {
	Add(table *unwind.Table) (lo, hi uint32, err error)
}

// Regions lists the executable mappings, opens new files, and builds their unwind tables on all cores.
func (o *Files) Regions(maps []process.Mapping) []Region {
	var out []Region
	var fresh []*File
	for _, m := range maps {
		if !m.Exec || m.Path == "[vsyscall]" {
			continue
		}
		key, id := KeyOf(&m), o.target.FileID(&m)
		obj := o.byKey[key]
		if obj == nil || obj.ID != id {
			if obj = o.shared(id); obj == nil {
				obj = o.Open(&m)
				obj.Path, obj.code, obj.ID = m.Path, m.End-m.Start, id
				fresh = append(fresh, obj)
			}
			o.byKey[key] = obj
			o.files[id] = obj
		}
		out = append(out, NewRegion(m, obj))
	}
	o.build(fresh)
	return out
}

// shared returns a file that another process has mapped too; nil: none has.
func (o *Files) shared(id process.FileID) *File {
	if id == (process.FileID{}) {
		return nil
	}
	return o.files[id]
}

// NewRegion returns the region of a mapping of a file.
func NewRegion(m process.Mapping, obj *File) Region {
	r := Region{Mapping: m, File: obj, Module: &event.Module{Path: m.Path, Start: m.Start, Limit: m.End, Offset: m.Offset}}
	if obj.Symbols == nil {
		return r
	}
	r.Module.BuildID = obj.Symbols.BuildID()
	bias, ok := obj.Symbols.Bias(m.Start, m.Offset)
	if !ok {
		r.File = &File{Err: fmt.Errorf("%s: no segment at file offset %#x", m.Path, m.Offset)}
		return r
	}
	r.Bias = bias
	return r
}

// Open opens the file of a mapping, or records in it why that failed.
func (o *Files) Open(m *process.Mapping) *File {
	if m.Path == "[vdso]" {
		image := make([]byte, min(m.End-m.Start, maxVDSO))
		if _, err := o.target.ReadAt(image, m.Start); err != nil {
			return &File{Err: err}
		}
		file, err := symbolize.OpenBytes(image, m.Path)
		return &File{Symbols: file, Err: err}
	}
	if m.Inode == 0 {
		return &File{Err: fmt.Errorf("%x-%x: code without a file", m.Start, m.End)}
	}
	f, err := o.target.OpenFile(m)
	if err != nil {
		return &File{Err: err}
	}
	defer f.Close()
	file, err := symbolize.Open(f, m.Path)
	if err == nil {
		file.DebugFrom(o.target.OpenPath, openOurs)
	}
	return &File{Symbols: file, Err: err}
}

// debugFiles is the only folder in the tracer's own file system that is searched for debug files: other paths of a
// target in a container refer to other files here.
const debugFiles = "/usr/lib/debug/"

// openOurs opens a debug file in the tracer's own file system, where debug files are installed if the target runs in a container.
func openOurs(path string) (*os.File, error) {
	if !strings.HasPrefix(filepath.Clean(path), debugFiles) {
		return nil, fmt.Errorf("open %s: not in %s", path, debugFiles)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe without a writer must not block
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("open %s: not a regular file", path)
	}
	return f, nil
}

// built is the result of building an unwind table.
type built struct {
	object *File
	table  *unwind.Table // nil: no unwind information
	hit    bool          // it came from the cache
	err    error
}

// build builds the unwind tables of new files, the largest first so that all cores finish together. Each table is
// written to the kernel as soon as it is built, so that they are never in memory together.
func (o *Files) build(fresh []*File) {
	work, done := make(chan *File), make(chan built)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for obj := range work {
				table, hit, err := o.cache.Table(obj.Symbols.Frames())
				obj.Symbols.Release()
				done <- built{obj, table, hit, err}
			}
		})
	}
	go func() {
		slices.SortStableFunc(fresh, func(a, b *File) int { return cmp.Compare(b.code, a.code) })
		for _, obj := range fresh {
			if obj.Symbols != nil {
				work <- obj
			}
		}
		close(work)
		wg.Wait()
		close(done)
	}()
	for b := range done {
		o.keep(b)
	}
}

// keep writes a table to the kernel.
func (o *Files) keep(b built) {
	if b.err != nil {
		b.object.Err = b.err
	}
	if b.hit {
		o.Cached++
	}
	if b.table == nil {
		return
	}
	lo, hi, err := o.rows.Add(b.table)
	if err != nil {
		o.failed = append(o.failed, fmt.Errorf("%s: stacks stop there: %w", b.object.Path, err))
		return
	}
	b.object.RowLo, b.object.RowHi = lo, hi
}

// Prepare builds the unwind tables of the libraries that a process has mapped and stores them in dir
// (Options.CacheDir), where an attach finds them. For an unknown program this takes seconds, during which an attach
// would not read the ring. It may run concurrently with everything else. It ignores errors, which the attach reports.
func Prepare(p *process.Process, dir string) {
	maps, err := p.Maps()
	if err != nil || dir == "" {
		return
	}
	o, cache, done := &Files{target: p}, &unwind.Cache{Dir: dir}, map[process.FileID]bool{}
	for i := range maps {
		m := &maps[i]
		if id := p.FileID(m); !m.Exec || m.Inode == 0 || done[id] {
			continue
		} else if id != (process.FileID{}) {
			done[id] = true
		}
		if file := o.Open(m).Symbols; file != nil {
			_, _, _ = cache.Table(file.Frames())
			file.Release()
		}
	}
}

// TakeFailed returns, each one once, the reasons why unwind information of a file is not in the kernel.
func (o *Files) TakeFailed() []error {
	failed := o.failed
	o.failed = nil
	return failed
}

// BlockSites returns the places in an allocator's library from which blocks are reported; none for an unknown build.
func (o *File) BlockSites() []inspect.BlockSite {
	if o.blockSites == nil {
		o.blockSites, _ = inspect.BlockSites(o.Symbols)
	}
	return o.blockSites
}

// Release frees the memory that is needed only while names are looked up.
func (o *Files) Release() {
	for _, obj := range o.byKey {
		if obj.Symbols != nil {
			obj.Symbols.Release()
		}
	}
}

// Find returns the mapping of a pc, among regions sorted by address.
func Find(regions []Region, pc uint64) *Region {
	i, found := slices.BinarySearchFunc(regions, pc, func(r Region, pc uint64) int {
		switch {
		case pc >= r.End:
			return -1
		case pc < r.Start:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &regions[i]
}

// First selects at most the given number of mappings, for the kernel's limited table: usually all of them, otherwise
// the program, which is below all libraries, and those at the highest addresses, because Linux puts new mappings below
// existing ones. Programs with so many mappings have compiled thousands of small libraries at run time. Stacks stop in
// the mappings that are left out, and say so.
func First(regions []Region, most int) []Region {
	if len(regions) <= most {
		return regions
	}
	program := 1
	for program < most && regions[program].Path == regions[0].Path {
		program++
	}
	return slices.Concat(regions[:program], regions[len(regions)-most+program:])
}

// Overlapping returns the regions of a sorted list that overlap a region.
func Overlapping(sorted []Region, r *Region) []Region {
	from, _ := slices.BinarySearchFunc(sorted, r.Start, func(s Region, start uint64) int {
		if s.End <= start {
			return -1
		}
		return 1
	})
	to := from
	for to < len(sorted) && sorted[to].Start < r.End {
		to++
	}
	return sorted[from:to]
}

// Same reports whether the executable mappings equal the regions.
func Same(regions []Region, maps []process.Mapping) bool {
	i := 0
	for _, m := range maps {
		if !m.Exec || m.Path == "[vsyscall]" {
			continue
		}
		if i == len(regions) || regions[i].Mapping != m {
			return false
		}
		i++
	}
	return i == len(regions)
}
