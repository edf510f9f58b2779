// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/process"
)

// reading is one report while it is made.
type reading struct {
	p           *process.Process
	options     Options
	report      *Report
	books       *inspect.Allocator
	regions     []region
	code        *codeFiles
	runs        []run
	pages       uint64 // that were present before the copy
	im          *image
	natives     *natives      // nil: they are to be looked for in the copy
	heap        *cpython.Heap // nil: there is no interpreter that can be read
	leaves      *leaves
	torch       *torch
	walk        *walk
	targets     []target
	first       *liveBlocks // the allocator state right behind the copy
	saved       map[savedField]string
	nodeClasses map[string]uint64 // see nodeTypes
	frozen      bool              // the copy and the allocator state are of one moment
	// keyPath is where an object is found that is the key of a dictionary; empty when that is not known.
	keyPath func(key uint64, depth int) Path
}

// target is a tensor, or a storage without one, whose memory lies in a segment of the allocator.
type target struct {
	impl    uint64 // 0 for a storage
	object  uint64 // Python object of the tensor or storage; 0: it has none
	storage uint64
	data    uint64 // address of the memory
	goal    uint32
}

func read(p *process.Process, o *Options) (*Report, error) {
	start := time.Now()
	r := &reading{p: p, report: &Report{PID: p.PID}, code: &codeFiles{p: p, files: map[string]*codeFile{}}}
	defer r.code.close()
	if o != nil {
		r.options = *o
	}
	if r.options.MaxCopy == 0 {
		r.options.MaxCopy = DefaultMaxCopy
	}
	books, err := inspect.Find(p)
	if err != nil {
		return nil, err
	}
	r.books = books
	live, err := r.copy()
	if r.im != nil {
		defer r.im.close()
	}
	if err != nil {
		return nil, err
	}
	r.first = live
	if r.natives == nil {
		r.heap = r.python()
	}
	r.analyse(live, r.threadIDs())
	if !r.frozen {
		if live, err = r.live(lastTimeout); err != nil {
			return nil, err
		}
	}
	if err := r.assemble(live); err != nil {
		return nil, err
	}
	r.report.Stats.Elapsed = time.Since(start)
	return r.report, nil
}

func (r *reading) note(format string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(format, args...))
}

const (
	// firstTimeout and lastTimeout are how long a quiet moment is waited for before the walk, where the map only tells
	// which addresses to look for, and behind it, where the map is the report's.
	firstTimeout = 30 * time.Millisecond
	lastTimeout  = 200 * time.Millisecond
)

// live reads the allocator's map.
func (r *reading) live(mapTimeout time.Duration) (*liveBlocks, error) {
	m, err := r.books.MapNow(mapTimeout)
	if err != nil {
		return nil, err
	}
	return newLive(m), nil
}

// copy reads the memory and then, in one burst, the allocator state; while the process is stopped, if that was asked for.
func (r *reading) copy() (live *liveBlocks, err error) {
	if err := r.prepare(); err != nil {
		return nil, err
	}
	if r.options.Freeze <= 0 {
		return r.copyNow()
	}
	return r.copyFrozen()
}

// prepare makes room for the copy, with some to spare for what the process takes meanwhile.
func (r *reading) prepare() error {
	maps, err := r.p.Maps()
	if err != nil {
		return err
	}
	runs, _, err := presentRuns(r.p, regionsOf(maps))
	if err != nil {
		return err
	}
	const spare = 1 << 14 // pages
	r.pages = countPages(runs)
	r.im, err = newImage(r.p, nil, min(r.pages+r.pages/4+spare, r.options.MaxCopy>>pageShift))
	return err
}

// copyNow looks at what goes by of a running process.
func (r *reading) copyNow() (*liveBlocks, error) {
	start := time.Now()
	runs, err := r.present()
	if err != nil {
		return nil, err
	}
	r.runs, r.im.present = runs, runs
	r.heap = r.python()
	r.leaves = r.newLeaves()
	r.natives = findNatives(r.im, runs, r.leaves)
	live, err := r.live(firstTimeout)
	r.report.Stats.Copy = time.Since(start)
	return live, err
}

// present begins a copy: it lists the pages that are there.
func (r *reading) present() ([]run, error) {
	maps, err := r.p.Maps()
	if err != nil {
		return nil, err
	}
	r.regions = regionsOf(maps)
	r.code.maps = maps
	runs, notes, err := presentRuns(r.p, r.regions)
	if err != nil {
		return nil, err
	}
	r.report.Notes = append(r.report.Notes, notes...)
	r.im.reset(r.regions)
	return runs, nil
}

// limit drops what is beyond the limit of the copy.
func (r *reading) limit(runs []run) []run {
	left := r.im.room()
	dropped := uint64(0)
	for i := range runs {
		keep := min(runs[i].pages, left)
		dropped += runs[i].pages - keep
		runs[i].pages = keep
		left -= keep
	}
	if dropped > 0 {
		r.note("%d MiB of memory were left out: more than the limit of %d MiB", dropped>>8, r.im.room()>>8)
	}
	return runs
}

// analyse finds the layouts and walks over the objects. tids are the threads of the process, see threadIDs.
func (r *reading) analyse(live *liveBlocks, tids map[uint64]bool) {
	n := r.natives
	if n == nil {
		r.leaves = r.newLeaves()
		n = findNatives(r.im, r.runs, r.leaves)
	}
	n.code = r.code
	l, notes := n.findLayout(live)
	l.findPython(n)
	r.report.Notes = append(r.report.Notes, notes...)
	r.report.Stats.Native = n.total
	r.torch = &torch{natives: n, layout: l, heap: r.heap, types: map[*cpython.Type]pythonRole{}}
	r.walk = newWalk(r.torch)
	r.walk.tids, r.walk.leaves = tids, r.leaves
	r.findTargets(live)
	if r.torch.heap == nil {
		return
	}
	r.walk.roots(r.threads())
	r.walk.run()
	r.adrift()
	r.dropStale()
	r.findLost()
	if r.im.full {
		r.note("what was needed is more than the limit of %d MiB: some objects were not looked at", r.im.room()>>8)
	}
	if r.walk.cut {
		r.note("more than %d objects: some were not looked at", maxNodes)
	}
	r.report.Stats.Objects = len(r.walk.addrs)
}

// threads lists the threads of the interpreter: as they are now or, if it was stopped, in the copy.
func (r *reading) threads() []cpython.ThreadState {
	if r.frozen {
		return r.torch.heap.ThreadStates(r.im)
	}
	return r.threadsNow(r.torch.heap, r.regions)
}

// probePages bounds what is read to find the interpreter and its types, 64 MiB.
const probePages = 1 << 14

// newLeaves prepares to note numbers and text.
func (r *reading) newLeaves() *leaves {
	if r.heap == nil {
		return newLeaves(nil)
	}
	im, done := r.probe()
	defer done()
	return newLeaves(r.heap.LeafTypes(im))
}

// probe reads what is asked for before the memory goes by, without keeping it: in the copy it would be older than the rest. A
// copy that is there already is taken.
func (r *reading) probe() (im *image, done func()) {
	if r.im.whole || r.im.cut {
		return r.im, func() {}
	}
	im, err := newImage(r.p, r.regions, probePages)
	if err != nil {
		return r.im, func() {}
	}
	return im, func() {
		r.report.Stats.BytesRead += im.bytes
		im.close()
	}
}

// python finds the interpreter; nil with a note when there is none that can be read.
func (r *reading) python() *cpython.Heap {
	im, done := r.probe()
	defer done()
	h, err := cpython.FindHeap(r.p)
	if err == nil {
		err = h.Prove(im)
	}
	var unknown *cpython.UnknownVersionError
	switch {
	case err == nil:
		r.report.Python = h.Version.String()
		return h
	case errors.As(err, &unknown):
		r.note("Python %s is not supported: holders in Python are not known", unknown.Version)
	default:
		r.note("no Python to read: %v", err)
	}
	return nil
}

// threadIDs are the threads of the process, by the numbers that they have in its own PID namespace (NSpid of proc(5)).
func (r *reading) threadIDs() map[uint64]bool {
	out := map[uint64]bool{}
	tids, _ := threads(r.p)
	for _, tid := range tids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", r.p.PID, tid))
		own := uint64(tid)
		if _, after, ok := strings.Cut(string(b), "\nNSpid:"); ok {
			line, _, _ := strings.Cut(after, "\n")
			if f := strings.Fields(line); len(f) > 0 {
				own, _ = strconv.ParseUint(f[len(f)-1], 10, 64)
			}
		}
		out[own] = true
	}
	return out
}

// findTargets makes goals of the tensors and storages whose memory lies in the allocator's segments.
func (r *reading) findTargets(live *liveBlocks) {
	t := r.torch
	if t.tensorStorage == 0 {
		return
	}
	used := map[uint64]bool{}
	for _, a := range t.byRole[roleTensor] {
		s := t.im.Word(a + t.tensorStorage)
		if t.role(s) != roleStorage || !t.alive(a) || !t.alive(s) {
			continue
		}
		if data := t.im.Word(s + t.storageData); live.segment(data) {
			used[s] = true
			g := target{impl: a, object: t.object(a), storage: s, data: data, goal: r.walk.goal(t.known(a))}
			r.targets = append(r.targets, g)
		}
	}
	for _, s := range t.byRole[roleStorage] {
		data := t.im.Word(s + t.storageData)
		if t.alive(s) && live.segment(data) {
			known := t.storageOf(s)
			g := target{object: known, storage: s, data: data}
			if known == 0 {
				known = s
			}
			g.goal = r.walk.goal(known)
			r.targets = append(r.targets, g)
		}
	}
}

// maxReferences bounds a plausible count: freed memory has others.
const maxReferences = 1 << 24

// alive reports whether the count of an object of C++ is one of a live object.
func (n *natives) alive(object uint64) bool {
	c := uint32(n.im.Word(object + countAt))
	return c > 0 && c < maxReferences
}
