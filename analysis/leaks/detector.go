// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/gputrace/gputrace/analysis/leaks/internal/ages"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// place is a layer of a process's device.
type place struct {
	layer  event.Layer
	device event.Device
	pid    uint32
}

// line is a line at which the program allocates: the innermost frame of its own code, as in stacks.OwnFrame.
type line struct {
	file     string // Python file; otherwise empty
	line     int
	function string // function, or native symbol
	backward bool   // the memory is allocated in the backward pass of the line
}

// name returns the line for people.
func (l *line) name() string {
	f := event.Frame{Kind: event.FrameNative, Func: l.function}
	if l.file != "" {
		f = event.Frame{Kind: event.FramePython, Func: l.function, File: l.file, Line: l.line}
	}
	if l.backward {
		return stacks.BackwardOf + " " + stacks.FrameName(&f)
	}
	return stacks.FrameName(&f)
}

// siteKey identifies a site and a size class.
type siteKey struct {
	place place
	stack event.StackID
	class uint8 // exponent of the requested bytes, rounded up to a power of two
}

// lineKey identifies all sites of a line.
type lineKey struct {
	place place
	line  line
}

// forwardKey is a line that calls a module, by one way: a program that calls it for training and for something else does so by two.
type forwardKey struct {
	line  line
	outer uint64 // as source.outer
}

// source is what is known of a stack.
type source struct {
	line    line
	forward line   // the outermost line of the program that calls a module's forward; zero: none
	outer   uint64 // hash of the calls that lead to forward
	below   *int64 // number of blocks allocated below forward by way of outer; nil: no forward
	stack   *event.Stack
}

// site counts the blocks of a site and size class, and refers to the sums that include them.
type site struct {
	series
	source      *source
	line, total *series // series of its line and its device
	latest      uint64  // number of allocations and frees before its latest allocation
	active      int     // step of its latest allocation
	stretches   int     // number of stretches of steps in which it allocated
	ages        ages.Ages
}

// recentSites is the size of the cache of sites, which are found without a map.
const recentSites = 1 << 10

// recentSite is the last site whose key has certain bits.
type recentSite struct {
	key  siteKey
	site *site // nil: none so far
}

// detector follows the memory in use by site, size class and line, step by step. Its size depends on the number of
// these, but not on the number of steps or events.
type detector struct {
	library []string
	resolve func(event.StackID) *event.Stack
	blind   bool // the requested bytes of some PyTorch block were not known, so no such figure is exact

	step     int
	changes  ages.Changes
	origin   uint64                // time of the first allocation; 0: no block was seen
	begins   [2 * longLived]uint64 // begins of the latest steps; step i at i % len; 0: not known
	sources  map[event.StackID]*source
	trained  bool // a stack of sources runs a backward pass or an optimizer
	sites    map[siteKey]*site
	recent   []recentSite // cache of sites by the low bits of the stack and the class: most blocks need no hash
	lines    map[lineKey]*series
	totals   map[place]*series
	forwards map[forwardKey]*int64 // number of blocks allocated below a line that calls a module
	// allocs and frees count PyTorch's blocks, otherAllocs and otherFrees all others.
	allocs, frees           uint64
	otherAllocs, otherFrees uint64
	// before and otherBefore count the frees before the latest allocation, because frees at the end of a program do not
	// describe its steps.
	before, otherBefore uint64
	// complete is the churn when the step that runs began; nil: none has. It does not count what comes after the last step, such as the first
	// request to a model whose layers were loaded one by one.
	complete *turnoverCount
	// unsized has the live PyTorch blocks that are counted by block size: their requested bytes can become known before
	// they are freed.
	unsized  map[heap.BlockKey]bool
	held     heldSites       // nil: not known
	turning  map[string]bool // lines whose blocks may come and go: see turnsOver
	cleared  cleared
	level    *level
	slopes   slopes
	turnover *turnover
	sizes    map[sizeKey][]*site // by the bytes of their first block
	leaving  []leaving
	order    uint64 // number of allocations and frees so far

	classifier *phases.Classifier  // nil, as ends, when phases are not followed
	ends       *phases.Ends[*site] // phases in which blocks are freed
}

func newDetector(library []string, resolve func(event.StackID) *event.Stack) *detector {
	return &detector{
		library: library, resolve: resolve, sources: map[event.StackID]*source{}, sites: map[siteKey]*site{},
		recent: make([]recentSite, recentSites),
		lines:  map[lineKey]*series{}, totals: map[place]*series{}, forwards: map[forwardKey]*int64{},
		unsized: map[heap.BlockKey]bool{}, level: &level{}, turnover: &turnover{}, sizes: map[sizeKey][]*site{},
	}
}

// counts reports whether a block is judged: PyTorch's blocks, pinned memory, and device memory outside PyTorch are.
func counts(b *heap.Block) bool {
	switch b.Layer {
	case event.LayerAllocator:
	case event.LayerHost, event.LayerDevice:
		if b.Segment || b.Size == event.Unknown {
			return false
		}
	default:
		return false
	}
	return b.Origin == heap.OriginEvent && b.Stack != 0
}

// allocated adds a block that joins the live set.
func (d *detector) allocated(b *heap.Block) {
	if !counts(b) {
		return
	}
	if b.Layer == event.LayerAllocator {
		d.allocs++
		if b.Requested == event.Unknown {
			d.unsized[b.Key()], d.blind = true, true
		}
	} else {
		d.otherAllocs++
	}
	f, s := d.find(b)
	if s.source.below != nil {
		*s.source.below++
	}
	s.add(d.step, f)
	s.line.add(d.step, f)
	s.total.add(d.step, f)
	d.before, d.otherBefore = d.frees, d.otherFrees
	d.order++
	if s.stretches == 0 || d.step-s.active > longLived {
		s.stretches++
	}
	s.latest, s.active = d.order, d.step
	if d.origin == 0 {
		d.origin = b.Time
	}
	d.changes.Note(&s.ages, ages.Added, d.since(b.Time))
	if len(d.leaving) > 0 {
		d.replaced(sizeKey{place{b.Layer, b.Device, b.PID}, sizeClass(b.Size)}, s)
	}
}

// goTo advances to a step that began at a time.
func (d *detector) goTo(step int, time uint64) {
	for i := max(d.step+1, step-len(d.begins)+1); i <= step; i++ {
		d.begins[i%len(d.begins)] = time
	}
	if step != d.step {
		d.changes.Apply()
		d.complete = d.counted()
	}
	d.step = step
}

// freed removes a block that leaves the live set.
func (d *detector) freed(b *heap.Block) {
	s := d.removed(b)
	if s != nil && d.step >= longLived && b.Time < d.begins[(d.step-longLived)%len(d.begins)] {
		s.countGone(d.step)
		s.line.countGone(d.step)
		d.changes.Note(&s.ages, ages.Lost, d.since(b.Time))
		if d.leaves(s) && b.Layer == event.LayerAllocator && b.Size != event.Unknown {
			d.departed(departure{size: sizeKey{place{b.Layer, b.Device, b.PID}, sizeClass(b.Size)}, bytes: int64(b.Size)})
		}
	}
}

// since is the time since the first block was allocated, nanoseconds.
func (d *detector) since(time uint64) uint64 { return time - min(time, d.origin) }

// moved replaces a block by another one.
func (d *detector) moved(from, to *heap.Block) {
	d.removed(from)
	d.allocated(to)
}

// removed stops counting a block, and returns its site; nil: it was not counted.
func (d *detector) removed(b *heap.Block) *site {
	if !counts(b) {
		return nil
	}
	f, s := d.find(b)
	d.order++
	s.remove(d.step, f)
	s.line.remove(d.step, f)
	s.total.remove(d.step, f)
	d.changes.Note(&s.ages, ages.Freed, d.since(b.Time))
	if b.Layer == event.LayerAllocator {
		d.frees++
		if len(d.unsized) > 0 {
			delete(d.unsized, b.Key())
		}
	} else {
		d.otherFrees++
	}
	return s
}

// key returns the amount for which a block counts, and the key of its site.
func (d *detector) key(b *heap.Block) (floor, siteKey) {
	f := floor{Blocks: 1, Requested: int64(b.Requested), Bytes: int64(b.Size)}
	if b.Layer != event.LayerAllocator || d.blind && d.unsized[b.Key()] || b.Device.Allocator().Sampled() {
		f.Requested = f.Bytes
	}
	return f, siteKey{place{b.Layer, b.Device, b.PID}, b.Stack, sizeClass(uint64(max(0, f.Requested)))}
}

// find returns the amount for which a block counts, and its site.
func (d *detector) find(b *heap.Block) (floor, *site) {
	f, k := d.key(b)
	at := &d.recent[(uint64(k.stack)^uint64(k.class))%recentSites]
	if at.site == nil || at.key != k {
		*at = recentSite{k, d.lookUp(k, b.Size)}
	}
	return f, at.site
}

// lookUp returns the site with a key, creating it for a block of the given size.
func (d *detector) lookUp(k siteKey, bytes uint64) *site {
	s := d.sites[k]
	if s == nil {
		from := d.source(k.stack)
		s = &site{source: from, line: entry(d.lines, lineKey{k.place, from.line}), total: entry(d.totals, k.place)}
		d.sites[k] = s
		size := sizeKey{k.place, sizeClass(bytes)}
		d.sizes[size] = append(d.sizes[size], s)
	}
	return s
}

// entry returns a map's value for a key, and adds a zero value if there is none.
func entry[K comparable, V any](m map[K]*V, k K) *V {
	v := m[k]
	if v == nil {
		v = new(V)
		m[k] = v
	}
	return v
}

// source returns what is known of a stack.
func (d *detector) source(id event.StackID) *source {
	s := d.sources[id]
	if s == nil {
		s = &source{line: line{function: stacks.UnknownStack}}
		d.sources[id] = s
		d.learn(id, s)
	}
	return s
}

// learn inspects a stack, whose frames can become known after its first event.
func (d *detector) learn(id event.StackID, s *source) {
	if s.stack != nil {
		return
	}
	if s.stack = d.resolve(id); s.stack == nil {
		return
	}
	d.noteTraining(s.stack)
	s.line = d.ownLine(s.stack.Frames)
	s.forward, s.outer = d.forwardLine(stacks.Ran(s.stack.Frames))
	if s.forward == (line{}) {
		return
	}
	s.below = entry(d.forwards, forwardKey{s.forward, s.outer})
}

func (d *detector) ownLine(frames []event.Frame) line {
	i := stacks.OwnFrame(frames, d.library)
	if i < 0 {
		return line{function: stacks.UnknownStack}
	}
	l := lineOf(&frames[i])
	l.backward = stacks.IsBackward(frames, i)
	return l
}

func lineOf(f *event.Frame) line {
	if f.Kind != event.FramePython {
		return line{function: f.Label()}
	}
	return line{file: f.File, line: max(0, f.Line), function: f.Func}
}

// forwardLine returns the outermost line of the program that calls a module (torch/nn/modules/module.py). What a hook of the program
// allocates, which a module calls beside its forward, is not the forward's: then it returns the zero line. outer is a hash of the calls
// that lead to the line.
func (d *detector) forwardLine(frames []event.Frame) (out line, outer uint64) {
	at := 0
	called, own, forward := false, false, false // own, forward: of the frames that the next call of a module leads to
	for i := range frames {
		f := &frames[i]
		if f.Kind != event.FramePython {
			continue
		}
		program := !stacks.IsLibrary(f.File, d.library)
		if called && program {
			out, at = lineOf(f), i
		}
		if called = strings.HasSuffix(f.File, "torch/nn/modules/module.py"); !called {
			own, forward = own || program, forward || stacks.IsForward(f)
			continue
		}
		if own && !forward {
			return line{}, 0
		}
		own, forward = false, false
	}
	h := fnv.New64a()
	for i := at + 1; i < len(frames); i++ {
		fmt.Fprintf(h, "%s:%d\n", frames[i].File, frames[i].Line)
	}
	return out, h.Sum64()
}

// churns reports whether most of what is allocated is freed again, counting only PyTorch's blocks if there are any.
// Loading a model layer by layer also recurs, but its memory stays.
func (d *detector) churns() bool {
	c := d.complete
	if c == nil {
		c = d.counted()
	}
	allocs, frees := c.allocs, c.frees
	if allocs == 0 {
		allocs, frees = c.otherAllocs, c.otherFrees
	}
	return frees >= allocs-allocs/4
}

// turnoverCount counts allocations, and the frees before the latest of them.
type turnoverCount struct{ allocs, frees, otherAllocs, otherFrees uint64 }

func (d *detector) counted() *turnoverCount {
	return &turnoverCount{d.allocs, d.before, d.otherAllocs, d.otherBefore}
}

// forgetChurn resets the counts of allocations and frees.
func (d *detector) forgetChurn() {
	d.allocs, d.frees, d.before = 0, 0, 0
	d.otherAllocs, d.otherFrees, d.otherBefore = 0, 0, 0
	d.complete = nil
}

// end ends the last complete step in all series.
func (d *detector) end(steps int) {
	for _, s := range d.sites {
		s.advance(steps + 1)
	}
	for _, s := range d.lines {
		s.advance(steps + 1)
	}
	for _, s := range d.totals {
		s.advance(steps + 1)
	}
	d.level.advance(steps + 1)
}
