//go:build linux

package tracer

import (
	"cmp"
	"encoding/binary"
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
)

// object is one file that the target executes, opened once. It stays usable after the target has gone.
type object struct {
	file  *symbolize.File
	table *symbolize.Table // nil: no unwind information; dropped once the rows are in the kernel
	err   error            // why file or table is missing
	rowLo uint32           // its rows in the kernel: [rowLo, rowHi)
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
}

// objects keeps every file that was ever mapped executable.
type objects struct {
	target *process.Process
	cache  *symbolize.Cache
	byKey  map[objectKey]*object
	hits   int // tables that came from the cache
}

// maxVDSO bounds what is read as the vdso; Linux's has two pages.
const maxVDSO = 64 << 10

func newObjects(p *process.Process, cacheDir string) *objects {
	return &objects{target: p, cache: &symbolize.Cache{Dir: cacheDir}, byKey: map[objectKey]*object{}}
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
			obj = o.open(&m)
			obj.code, obj.id = m.End-m.Start, id
			o.byKey[key] = obj
			fresh = append(fresh, obj)
		}
		out = append(out, newRegion(m, obj))
	}
	o.build(fresh)
	return out
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

// build makes the unwind tables of new files, the largest first so that the cores end together.
func (o *objects) build(fresh []*object) {
	work := make(chan *object)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for obj := range work {
				table, hit, err := o.cache.Table(obj.file)
				obj.file.Release()
				obj.table = table
				if err != nil {
					obj.err = err
				}
				if hit {
					mu.Lock()
					o.hits++
					mu.Unlock()
				}
			}
		})
	}
	slices.SortStableFunc(fresh, func(a, b *object) int { return cmp.Compare(b.code, a.code) })
	for _, obj := range fresh {
		if obj.file != nil {
			work <- obj
		}
	}
	close(work)
	wg.Wait()
}

// ruleTable numbers the different unwind rules of all files. The kernel holds it as one array.
type ruleTable struct {
	index map[uint64]uint32
	rules []uint64
}

func (t *ruleTable) number(rule uint64) (uint32, bool) {
	if n, ok := t.index[rule]; ok {
		return n, true
	}
	if len(t.rules) == maxRules {
		return 0, false
	}
	if t.index == nil {
		t.index = map[uint64]uint32{}
	}
	n := uint32(len(t.rules))
	t.index[rule] = n
	t.rules = append(t.rules, rule)
	return n, true
}

// encode gives the rows of a file as the kernel wants them: the rule indexes are those of the common table.
func (t *ruleTable) encode(table *symbolize.Table) ([]byte, error) {
	global := make([]uint64, len(table.Rules))
	for i, rule := range table.Rules {
		n, ok := t.number(rule)
		if !ok {
			return nil, fmt.Errorf("more than %d different unwind rules in the process", maxRules)
		}
		global[i] = uint64(n) << 32
	}
	out := make([]byte, 0, len(table.Rows)*8)
	for _, row := range table.Rows {
		out = binary.LittleEndian.AppendUint64(out, row&0xffffffff|global[row>>32])
	}
	return out, nil
}
