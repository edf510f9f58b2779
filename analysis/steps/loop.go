// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// Where there is neither optimizer nor backward pass, steps are the iterations of the program's outermost loop. A loop is seen by the
// lines of a function that are entered again and again:
//
//	main:30 serve          main:30 serve          main:30 serve         one line, entered once
//	 serve:12 receive       serve:14 answer        serve:12 receive      lines of one function that alternate: the loop
//	                         answer:51 layer        ...                  a loop inside
//
// A line is known by the calls that lead to it, root first: place is a hash of them.

// place is a line of a chain of calls.
type place struct {
	candidate
	parent uint64
	depth  int
	within uint64 // allocations below it
	first  bool   // the program's first thread has allocated below it
	rounds int    // between how many entries of the loop's line it was entered
	round  int    // entries of that when it was last
}

// loops finds the places that are entered again and again. What it keeps depends on the number of stacks and threads.
type loops struct {
	resolve func(event.StackID) *event.Stack
	places  map[uint64]*place
	paths   map[event.StackID][]*place // root first
	at      map[uint32][]*place        // of a thread: the path of its last allocation
	all     uint64                     // allocations with a path
	first   uint64                     // of the program's first thread
	line    *place                     // of the loop that was found; nil: none was
	fresh   []*candidate               // entered with the last event
}

func newLoops(resolve func(event.StackID) *event.Stack) *loops {
	return &loops{
		resolve: resolve, places: map[uint64]*place{}, paths: map[event.StackID][]*place{}, at: map[uint32][]*place{},
	}
}

// see takes an allocation, the n-th. It returns what was entered with it, valid until the next call.
func (l *loops) see(e *event.Event, n uint64, keep int) []*candidate {
	l.fresh = l.fresh[:0]
	path := l.path(e.Stack)
	if len(path) == 0 {
		return l.fresh
	}
	l.all++
	first := e.TID == e.PID
	if first {
		l.first++
	}
	before := l.at[e.TID]
	same := true
	for i, p := range path {
		p.within++
		p.first = p.first || first
		if same = same && i < len(before) && before[i] == p; !same {
			p.enter(n, e.Time, keep)
			l.count(p)
			l.fresh = append(l.fresh, &p.candidate)
		}
	}
	l.at[e.TID] = path
	return l.fresh
}

// count counts a line of the function of the loop that was found, in the round that runs.
func (l *loops) count(p *place) {
	if l.line != nil && p.beside(l.line) && (p.rounds == 0 || p.round != l.line.entries) {
		p.rounds, p.round = p.rounds+1, l.line.entries
	}
}

// beside reports whether a place is a line of the same call of a function.
func (p *place) beside(q *place) bool {
	return p.parent == q.parent && p.mark.file == q.mark.file && p.mark.function == q.mark.function
}

// follow counts from now on which lines are in the rounds of a loop.
func (l *loops) follow(c *candidate) {
	l.line = l.places[c.mark.place]
	for _, p := range l.places {
		p.rounds = 0
	}
}

// inside reports whether a thread is in a line of a candidate's function that was in its loop before.
func (l *loops) inside(c *candidate) bool {
	if l == nil || l.places[c.mark.place] == nil {
		return false
	}
	line := l.places[c.mark.place]
	for _, path := range l.at {
		if len(path) <= line.depth {
			continue
		}
		if at := path[line.depth]; at == line || at.beside(line) && at.rounds >= minEntries {
			return true
		}
	}
	return false
}

// around returns the calls that lead to a line of a loop, outermost first, and the line; nil: one of them was made again.
func (l *loops) around(c *candidate) []event.Frame {
	p := l.places[c.mark.place]
	if p == nil {
		return nil
	}
	var out []event.Frame
	for q := p; q != nil; q = l.places[q.parent] {
		if q != p && q.entries > 1 {
			return nil
		}
		out = append(out, event.Frame{Kind: event.FramePython, File: q.mark.file, Func: q.mark.function, Line: q.mark.line})
	}
	slices.Reverse(out)
	return out
}

// path is the places of a stack. A stack can become known after its first event.
func (l *loops) path(id event.StackID) []*place {
	if path, ok := l.paths[id]; ok {
		return path
	}
	st := l.resolve(id)
	if st == nil {
		return nil
	}
	var path []*place
	parent := uint64(0)
	frames := stacks.Ran(st.Frames)
	for i := range slices.Backward(frames) {
		f := &frames[i]
		if f.Kind != event.FramePython {
			continue
		}
		at := placeOf(parent, f)
		p := l.places[at]
		if p == nil {
			m := mark{source: SourcePeriod, file: f.File, line: f.Line, function: f.Func, place: at}
			p = &place{candidate: candidate{mark: m}, parent: parent, depth: len(path)}
			l.places[at] = p
		}
		path, parent = append(path, p), at
	}
	l.paths[id] = path
	return path
}

// placeOf is the place of a call within another one; 0 is the thread's begin.
func placeOf(parent uint64, f *event.Frame) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(strconv.AppendUint(nil, parent, 16)) // never fails
	_, _ = h.Write([]byte("\x00" + f.File + "\x00" + f.Func + "\x00" + strconv.Itoa(f.Line)))
	return h.Sum64()
}

// passes says whether a stack passes a place.
func passes(st *event.Stack, at uint64) bool {
	parent := uint64(0)
	frames := stacks.Ran(st.Frames)
	for i := range slices.Backward(frames) {
		if f := &frames[i]; f.Kind == event.FramePython {
			if parent = placeOf(parent, f); parent == at {
				return true
			}
		}
	}
	return false
}

// manyEntries is how often a line of a loop is entered that is preferred: a loop of fewer iterations may be one of epochs.
const manyEntries = 20

// outermost is a line of the outermost loop that most allocations are made in; nil: there is none.
func (l *loops) outermost() *candidate {
	if p := l.loop(manyEntries); p != nil {
		return p
	}
	return l.loop(minRecurrences)
}

// outside is a line of a loop around that of a candidate, once it was entered often; nil: there is none.
func (l *loops) outside(c *candidate) *candidate {
	o := l.loop(manyEntries)
	if o == nil || o.mark.place == c.mark.place {
		return nil
	}
	if p := l.places[c.mark.place]; p != nil && p.depth <= l.places[o.mark.place].depth {
		return nil
	}
	return o
}

// leastFirst: the first thread of a program that starts others for most of its work makes at least 1/leastFirst of the allocations.
const leastFirst = 20

// loop is the line that is entered most often, and regularly, of the outermost function whose lines are entered at least a number of
// times, and have half of all allocations below them. Else it is such a line of the first thread, with half of its allocations.
func (l *loops) loop(entries int) *candidate {
	c := l.loopOf(entries, l.all, func(*place) bool { return true })
	if c == nil && l.first >= l.all/leastFirst {
		c = l.loopOf(entries, l.first, func(p *place) bool { return p.first })
	}
	return c
}

func (l *loops) loopOf(entries int, all uint64, takes func(*place) bool) *candidate {
	functions := map[uint64][]*place{} // lines by what calls the function
	for _, p := range l.places {
		if takes(p) && p.entries >= entries && p.irregularity() <= maxIrregularity {
			functions[p.parent] = append(functions[p.parent], p)
		}
	}
	var out *place
	for _, lines := range functions {
		below := uint64(0)
		for _, p := range lines {
			below += p.within
		}
		if 2*below < all {
			continue
		}
		p := slices.MinFunc(lines, func(x, y *place) int {
			return cmp.Or(cmp.Compare(y.entries, x.entries), cmp.Compare(x.irregularity(), y.irregularity()), cmp.Compare(x.mark.line, y.mark.line))
		})
		if out == nil || cmp.Or(cmp.Compare(p.depth, out.depth), cmp.Compare(out.entries, p.entries),
			cmp.Compare(p.mark.line, out.mark.line)) < 0 {
			out = p
		}
	}
	if out == nil {
		return nil
	}
	return &out.candidate
}
