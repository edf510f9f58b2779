// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect/holders/internal/arrays"
	"github.com/gputrace/gputrace/inspect/holders/internal/handles"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/objgraph"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/inspect/internal/present"
	"github.com/gputrace/gputrace/process"
)

// reading is one report while it is made.
type reading struct {
	ctx        context.Context // of the call that it is made for
	p          system
	options    Options
	report     *Report
	code       *torchlayout.Code // nil: the code of the process is not read
	pages      uint64            // that were present before the copy
	im         *memory.Image
	heap       *pyobject.Heap // nil: there is no interpreter that can be read
	unread     bool           // there is one, and it could not be read
	leaves     *memory.Leaves
	objects    *torchlayout.Objects // nil: they are to be looked for in the copy
	arrays     *arrays.Reader       // nil: the program has no CuPy
	handles    *handles.Reader      // nil: the program has neither TensorFlow nor JAX, or its allocators are not known
	torch      *torchlayout.Reader
	attributes *torchlayout.Attributes
	graph      *objgraph.Graph
	targets    []target
	first      *liveBlocks // the allocator state right behind the copy
	frozen     bool        // the copy and the allocator state are of one moment
	// keyPath is where an object is found that is the key of a dictionary; empty when that is not known.
	keyPath func(key uint64, depth int) Path
	moves   func(n uint32) *objgraph.Move // see objgraph.Way; nil: no second reading knows of any
	cells   map[string]string             // how a person knows the files of cells
	metrics map[uint64]bool               // by address of a class: whether it has the methods of a metric
	limits  *pyobject.Limits              // nil: none was looked for
}

// target is a tensor, a storage without one, or an array, whose memory lies in a segment of an allocator.
type target struct {
	impl    uint64 // 0 for a storage and for an array
	object  uint64 // Python object of the tensor or storage, or the array; 0: it has none
	storage uint64 // of an array the object that keeps the block
	data    uint64 // address of the memory
	goal    uint32
	array   bool
	handle  bool // it is an array of TensorFlow or JAX
}

func read(ctx context.Context, p system, code *torchlayout.Code, report *Report, o *Options) (*Report, error) {
	start := time.Now()
	r := &reading{ctx: ctx, p: p, report: report, code: code}
	if o != nil {
		r.options = *o
	}
	if r.options.MaxCopy == 0 {
		r.options.MaxCopy = DefaultMaxCopy
	}
	if r.options.MaxHeld == 0 {
		r.options.MaxHeld = DefaultMaxHeld
	}
	live, err := r.copy()
	if r.im != nil {
		defer r.im.Close()
	}
	if err != nil {
		return nil, err
	}
	r.first = live
	if r.objects == nil {
		r.heap = r.python()
	}
	r.analyse(live, r.p.threadIDs())
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if !r.frozen {
		if live, err = r.live(lastTimeout); err != nil {
			return nil, err
		}
	}
	if err := r.assemble(live); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // what could not be read any more is missing
		return nil, context.Cause(ctx)
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
	l, err := r.p.live(r.ctx, mapTimeout)
	if err != nil {
		return nil, err
	}
	r.addBFC(l, mapTimeout)
	if r.arrays == nil {
		return l, nil
	}
	return l, r.addArrays(l)
}

// copy reads the memory and then, in one burst, the allocator state; while the process is stopped, if that was asked for.
func (r *reading) copy() (live *liveBlocks, err error) {
	l, err := r.prepare()
	if err != nil {
		return nil, err
	}
	if r.options.Freeze > 0 {
		return r.p.freeze(r)
	}
	r.im.PopulateAhead()
	r.begin(l)
	return r.copyListed()
}

// prepare lists the pages that are present, and makes room for a copy of them, with some to spare for what the process takes meanwhile.
func (r *reading) prepare() (l listing, err error) {
	if l, err = r.list(); err != nil {
		return l, err
	}
	const spare = 1 << 14 // pages
	r.pages = present.Pages(l.present)
	if r.options.Freeze == 0 {
		r.im, err = memory.NewRing(r.ctx, r.p, nil, r.held())
		return l, err
	}
	r.im, err = memory.New(r.ctx, r.p, nil, min(r.pages+r.pages/4+spare, r.options.MaxCopy>>memory.PageShift))
	return l, err
}

// held is how many pages of a process that runs are held at once.
func (r *reading) held() uint64 { return r.options.MaxHeld >> memory.PageShift }

// copyNow copies the memory of a running process, and looks at it while it is copied.
func (r *reading) copyNow() (*liveBlocks, error) {
	l, err := r.list()
	if err != nil {
		return nil, err
	}
	r.begin(l)
	return r.copyListed()
}

// copyListed copies the pages that the copy was begun with.
func (r *reading) copyListed() (*liveBlocks, error) {
	start := time.Now()
	r.heap = r.python()
	r.findObjects()
	live, err := r.live(firstTimeout)
	r.report.Stats.Copy = time.Since(start)
	return live, err
}

// listing is what of a process may be read at one moment.
type listing struct {
	maps    []process.Mapping
	regions []memory.Region
	present []memory.Run
	notes   []string
}

func (r *reading) list() (l listing, err error) {
	if l.maps, err = r.p.Maps(); err != nil {
		return l, err
	}
	l.regions = present.Regions(l.maps)
	l.present, l.notes, err = r.p.present(l.regions)
	return l, err
}

// begin starts a copy of what was listed.
func (r *reading) begin(l listing) {
	if r.code != nil {
		r.code.SetMaps(l.maps)
	}
	r.report.Notes = append(r.report.Notes, l.notes...)
	r.im.Reset(l.regions, l.present)
}

// limit drops what is beyond the limit of the copy.
func (r *reading) limit(runs []memory.Run) []memory.Run {
	left := r.im.Room()
	dropped := uint64(0)
	for i := range runs {
		keep := min(runs[i].Pages, left)
		dropped += runs[i].Pages - keep
		runs[i].Pages = keep
		left -= keep
	}
	if dropped > 0 {
		r.note("%d MiB of memory were left out: more than the limit of %d MiB", dropped>>8, r.im.Room()>>8)
	}
	return runs
}

// analyse finds the layouts and walks over the objects. tids are the threads of the process, see threadIDs.
func (r *reading) analyse(live *liveBlocks, tids map[uint64]bool) {
	if r.objects == nil {
		r.findObjects()
		r.addCopied(live)
	}
	if r.ctx.Err() != nil {
		return
	}
	t, notes := torchlayout.NewReader(r.objects, r.heap, r.code, live)
	if !live.without(allocator.Torch) {
		r.report.Notes = append(r.report.Notes, notes...)
	}
	r.report.Stats.Native = r.objects.Total()
	r.torch, r.graph = t, objgraph.New(t, tids, r.leaves)
	r.findTargets(live)
	if r.heap == nil {
		r.attributes = torchlayout.NewAttributes(t, 0)
		return
	}
	steps := []func(){
		r.renewRegions, func() { r.graph.Roots(r.threads()) }, r.graph.Run, r.graph.Adrift, r.dropStale, func() { r.graph.FindLost(r.lostGoals) },
	}
	for _, step := range steps {
		if r.ctx.Err() != nil {
			return
		}
		step()
	}
	r.attributes = torchlayout.NewAttributes(t, r.graph.ModuleNamed("torch._C"))
	if t.Unsized() {
		r.note("malloc does not say how large objects of C++ are: what autograd graphs keep is not named")
	}
	if r.im.Full() {
		r.note("what was needed is more than the limit of %d MiB: some objects were not looked at", r.im.Room()>>8)
	}
	if r.graph.Cut() {
		r.note("more than %d objects: some were not looked at", objgraph.MaxObjects)
	}
	r.report.Stats.Objects = r.graph.Len()
}

// renewRegions has what a running process has mapped since its memory was copied be read too: the elements of a long list move there.
func (r *reading) renewRegions() {
	if r.frozen || r.im.Whole() {
		return
	}
	r.im.OnRenew(func() ([]memory.Region, []memory.Run, bool) {
		l, err := r.list()
		return l.regions, l.present, err == nil
	})
	r.im.Renew()
}

// threads lists the threads of the interpreter: as they are now or, if it was stopped, in the copy.
func (r *reading) threads() []pyobject.ThreadState {
	if r.frozen {
		return r.heap.ThreadStates(r.im)
	}
	threads, read := objgraph.ThreadsNow(r.ctx, r.p, r.heap, r.im.Regions())
	r.report.Stats.BytesRead += read
	return threads
}

// probePages bounds what is read to find the interpreter and its types, 64 MiB.
const probePages = 1 << 14

// newLeaves prepares to note numbers and text.
func (r *reading) newLeaves() *memory.Leaves {
	if r.heap == nil {
		return memory.NewLeaves(nil, 0)
	}
	im, done := r.probe()
	defer done()
	return memory.NewLeaves(r.heap.LeafTypes(im), r.heap.HeadShift())
}

// probe reads what is asked for before the memory is copied, without keeping it: in the copy it would be older than the rest. A
// copy that is there already is taken.
func (r *reading) probe() (im *memory.Image, done func()) {
	if r.im.Copied() {
		return r.im, func() {}
	}
	im, err := memory.New(r.ctx, r.p, r.im.Regions(), probePages)
	if err != nil {
		return r.im, func() {}
	}
	return im, func() {
		r.report.Stats.BytesRead += im.BytesRead()
		im.Close()
	}
}

// python finds the interpreter; nil with a note when there is none that can be read.
func (r *reading) python() *pyobject.Heap {
	h, err := r.proved()
	for n := 0; n < collections && errors.Is(err, pyobject.ErrCollecting) && !r.im.Copied() && r.ctx.Err() == nil; n++ {
		time.Sleep(collectionPause)
		h, err = r.proved()
	}
	var unknown *cpython.UnknownVersionError
	r.unread = errors.As(err, &unknown) || errors.Is(err, pyobject.ErrEnding) || errors.Is(err, pyobject.ErrObjects)
	switch {
	case err == nil:
		r.report.Python, r.report.NoPython = h.Version.String(), ""
		return h
	case errors.As(err, &unknown):
		r.note("Python %s is not supported: holders in Python are not known", unknown.Version)
		r.report.NoPython = fmt.Sprintf("Python %s is not supported", unknown.Version)
	case errors.Is(err, pyobject.ErrCollecting):
		r.note("no Python to read: %v", err)
		r.report.NoPython = "Python was collecting garbage, or ending, while they were read"
	case errors.Is(err, pyobject.ErrEnding):
		r.note("no Python to read: %v", err)
		r.report.NoPython = "the program was ending when they were read"
	default:
		r.note("no Python to read: %v", err)
		r.report.NoPython = fmt.Sprintf("the Python interpreter cannot be read: %v", err)
	}
	return nil
}

// A program in a full collection is looked at again, as collections of large programs take a tenth of a second.
const (
	collections     = 20
	collectionPause = 50 * time.Millisecond
)

// proved is the interpreter, if its objects are where they should be.
func (r *reading) proved() (*pyobject.Heap, error) {
	im, done := r.probe()
	defer done()
	h, err := r.p.interpreter()
	if err == nil {
		err = h.Prove(im)
	}
	return h, err
}

// findTargets makes goals of the tensors and storages whose memory lies in the allocator's segments.
func (r *reading) findTargets(live *liveBlocks) {
	r.findArrays(live)
	r.findHandles(live)
	t := r.torch
	if !t.KnowsTensors() {
		return
	}
	t.Tensors(func(impl, storage, data uint64) {
		if live.segment(data) {
			g := target{impl: impl, object: t.Object(impl), storage: storage, data: data, goal: r.graph.Goal(t.Known(impl))}
			r.targets = append(r.targets, g)
		}
	})
	t.Storages(func(storage, data uint64) {
		if live.segment(data) {
			g := target{object: t.StorageObject(storage), storage: storage, data: data}
			known := g.object
			if known == 0 {
				known = storage
			}
			g.goal = r.graph.Goal(known)
			r.targets = append(r.targets, g)
		}
	})
}

// dropStale forgets tensors that are none any more: memory that was given back may still look like one. A storage counts its
// tensors; when there seem to be more, those that nothing was found to hold are none.
func (r *reading) dropStale() {
	held := r.graph.IsHeld()
	tensors := map[uint64]int{}
	for i := range r.targets {
		if r.targets[i].impl != 0 {
			tensors[r.targets[i].storage]++
		}
	}
	r.targets = slices.DeleteFunc(r.targets, func(g target) bool {
		count := r.torch.ReferenceCount(g.storage)
		if g.impl == 0 || g.object != 0 || held[g.goal] || tensors[g.storage] <= count {
			return false
		}
		tensors[g.storage]--
		return true
	})
}

// lostGoals are the goals that no path leads to, of storages to which none does: their tensors or, without one, themselves.
func (r *reading) lostGoals() map[uint64]uint32 {
	covered, withTensor := map[uint64]bool{}, map[uint64]bool{}
	for i := range r.targets {
		g := &r.targets[i]
		covered[g.storage] = covered[g.storage] || r.graph.Reached(g.goal)
		withTensor[g.storage] = withTensor[g.storage] || g.impl != 0
	}
	out := map[uint64]uint32{}
	for i := range r.targets {
		if g := &r.targets[i]; !covered[g.storage] && (g.impl != 0 || !withTensor[g.storage]) {
			out[r.graph.Addr(g.goal)] = g.goal
		}
	}
	return out
}
