// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

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

// object is one file that the target executes, opened once. It stays usable after the target has ended.
type object struct {
	file  *symbolize.File
	path  string // as the target sees it
	err   error  // why the file or its unwind information is missing
	rowLo uint32 // its rows in the kernel: [rowLo, rowHi)
	rowHi uint32
	code  uint64 // bytes of code mapped
	id    process.FileID

	blockSites []inspect.BlockSite // of an allocator's library, once looked for
}

// objectKey identifies a file while it is mapped: two mappings of one file share it. A file that is made later can have the same
// number and path.
type objectKey struct {
	device string
	inode  uint64
	path   string
}

// region is one executable mapping of the target with what is known of it.
type region struct {
	process.Mapping
	object *object
	module *event.Module
	bias   uint64
	since  uint64 // number of the change of the code at which it has taken the place of other code; 0: it has not
}

// objects keeps every file that was ever mapped executable.
type objects struct {
	target *process.Process
	cache  *unwind.Cache
	rows   *rowStore                  // of all processes
	files  map[process.FileID]*object // likewise
	byKey  map[objectKey]*object
	hits   int     // tables that came from the cache
	failed []error // why unwind information of a file is not in the kernel; the tracer takes them
}

// maxVDSO bounds what is read as the vdso; Linux's has two pages.
const maxVDSO = 64 << 10

func newObjects(p *process.Process, s *Session) *objects {
	return &objects{
		target: p, cache: &unwind.Cache{Dir: s.options.CacheDir}, rows: s.rows, files: s.files, byKey: map[objectKey]*object{},
	}
}

// regions lists the executable mappings, opens the files that are new and builds their unwind tables, all cores at work.
func (o *objects) regions(maps []process.Mapping) []region {
	var out []region
	var fresh []*object
	for _, m := range maps {
		if !m.Exec || m.Path == "[vsyscall]" {
			continue
		}
		key, id := objectKey{m.Device, m.Inode, m.Path}, o.target.FileID(&m)
		obj := o.byKey[key]
		if obj == nil || obj.id != id {
			if obj = o.shared(id); obj == nil {
				obj = o.open(&m)
				obj.path, obj.code, obj.id = m.Path, m.End-m.Start, id
				fresh = append(fresh, obj)
			}
			o.byKey[key] = obj
			o.files[id] = obj
		}
		out = append(out, newRegion(m, obj))
	}
	o.build(fresh)
	return out
}

// shared is a file that another process has mapped too; nil: none has.
func (o *objects) shared(id process.FileID) *object {
	if id == (process.FileID{}) {
		return nil
	}
	return o.files[id]
}

func newRegion(m process.Mapping, obj *object) region {
	r := region{Mapping: m, object: obj, module: &event.Module{Path: m.Path, Start: m.Start, Limit: m.End, Offset: m.Offset}}
	if obj.file == nil {
		return r
	}
	r.module.BuildID = obj.file.BuildID()
	bias, ok := obj.file.Bias(m.Start, m.Offset)
	if !ok {
		r.object = &object{err: fmt.Errorf("%s: no segment at file offset %#x", m.Path, m.Offset)}
		return r
	}
	r.bias = bias
	return r
}

func (o *objects) open(m *process.Mapping) *object {
	if m.Path == "[vdso]" {
		image := make([]byte, min(m.End-m.Start, maxVDSO))
		if _, err := o.target.ReadAt(image, m.Start); err != nil {
			return &object{err: err}
		}
		file, err := symbolize.OpenBytes(image, m.Path)
		return &object{file: file, err: err}
	}
	if m.Inode == 0 {
		return &object{err: fmt.Errorf("%x-%x: code without a file", m.Start, m.End)}
	}
	f, err := o.target.OpenFile(m)
	if err != nil {
		return &object{err: err}
	}
	defer f.Close()
	file, err := symbolize.Open(f, m.Path)
	if err == nil {
		file.DebugFrom(o.target.OpenPath, openOurs)
	}
	return &object{file: file, err: err}
}

// debugFiles is where the tracer's own file system has debug files: other paths of a target in a container mean nothing there.
const debugFiles = "/usr/lib/debug/"

// openOurs opens a debug file of the tracer's own file system, which is where a debugger's files are when the target runs in a
// container.
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

// built is an unwind table that was made, or why not.
type built struct {
	object *object
	table  *unwind.Table // nil: no unwind information
	hit    bool          // it came from the cache
	err    error
}

// build makes the unwind tables of new files, the largest first so that the cores end together. Each goes into the kernel as
// soon as it is made, so that they are never in memory together.
func (o *objects) build(fresh []*object) {
	work, done := make(chan *object), make(chan built)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for obj := range work {
				table, hit, err := o.cache.Table(obj.file.Frames())
				obj.file.Release()
				done <- built{obj, table, hit, err}
			}
		})
	}
	go func() {
		slices.SortStableFunc(fresh, func(a, b *object) int { return cmp.Compare(b.code, a.code) })
		for _, obj := range fresh {
			if obj.file != nil {
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

// keep puts a table into the kernel.
func (o *objects) keep(b built) {
	if b.err != nil {
		b.object.err = b.err
	}
	if b.hit {
		o.hits++
	}
	if b.table == nil {
		return
	}
	lo, hi, err := o.rows.add(b.table)
	if err != nil {
		o.failed = append(o.failed, fmt.Errorf("%s: stacks stop there: %w", b.object.path, err))
		return
	}
	b.object.rowLo, b.object.rowHi = lo, hi
}

// Prepare makes the unwind tables of what a process has mapped and keeps them in dir (Options.CacheDir), where Session.Add finds them:
// a program that was never seen takes seconds, in which nobody reads the ring. It may run beside anything. What goes wrong is Add's
// to report.
func Prepare(p *process.Process, dir string) {
	maps, err := p.Maps()
	if err != nil || dir == "" {
		return
	}
	o, cache, done := &objects{target: p}, &unwind.Cache{Dir: dir}, map[process.FileID]bool{}
	for i := range maps {
		m := &maps[i]
		if id := p.FileID(m); !m.Exec || m.Inode == 0 || done[id] {
			continue
		} else if id != (process.FileID{}) {
			done[id] = true
		}
		if file := o.open(m).file; file != nil {
			_, _, _ = cache.Table(file.Frames())
			file.Release()
		}
	}
}

// release gives back the memory that is only needed while names are looked up.
func (o *objects) release() {
	for _, obj := range o.byKey {
		if obj.file != nil {
			obj.file.Release()
		}
	}
}
