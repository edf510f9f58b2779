// SPDX-License-Identifier: Apache-2.0

package objgraph

import (
	"context"
	"slices"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/process"
)

const (
	// threadTries is how often the threads are read at most until every list of frames is whole: those of a running thread change while
	// they are followed.
	threadTries = 200
	// threadAgree is how many readings of a thread must end with the same outermost frame, which are more than half of those that end
	// with any: a frame that has just returned can have no caller any more, and looks like the outermost one.
	threadAgree = 4
	// threadPages bounds what one of these readings takes, 64 MiB.
	threadPages = 1 << 14
)

// ThreadsNow reads the threads and their frames from the process itself, as quickly as can be: in a copy that took a while,
// a frame that ended in between may have cut off all those that it was called from. read is how many bytes it read.
func ThreadsNow(ctx context.Context, m process.Memory, h *pyobject.Heap, regions []memory.Region) (best []pyobject.ThreadState,
	read uint64) {
	im, err := memory.New(ctx, m, regions, threadPages)
	if err != nil {
		return nil, 0
	}
	defer im.Close()
	at := map[uint64]int{}
	var all []*threadReadings
	for n := 0; n < threadTries && ctx.Err() == nil; n++ {
		im.Forget()
		for _, t := range h.ThreadStates(im) {
			i, ok := at[t.Addr]
			if !ok {
				i = len(all)
				at[t.Addr], all = i, append(all, &threadReadings{roots: map[uint64]int{}, ends: map[uint64]pyobject.ThreadState{}})
			}
			all[i].add(t)
		}
		if n+1 >= threadAgree && !slices.ContainsFunc(all, func(r *threadReadings) bool { return !r.whole() }) {
			break
		}
	}
	for _, r := range all {
		best = append(best, r.best())
	}
	return best, im.BytesRead()
}

// threadReadings are readings of one thread.
type threadReadings struct {
	roots map[uint64]int                  // how many lists of frames ended with an outermost one, by its address
	ends  map[uint64]pyobject.ThreadState // the longest of them
	count int                             // of roots
	cut   *pyobject.ThreadState           // the longest that was cut; nil: none was
	empty pyobject.ThreadState            // without frames
}

func (r *threadReadings) add(t pyobject.ThreadState) {
	switch {
	case t.Cut:
		if r.cut == nil || len(t.Frames) > len(r.cut.Frames) {
			r.cut = &t
		}
	case len(t.Frames) == 0:
		r.empty = t
	default:
		root := t.Frames[len(t.Frames)-1].Addr
		r.roots[root]++
		r.count++
		if before, ok := r.ends[root]; !ok || len(t.Frames) > len(before.Frames) {
			r.ends[root] = t
		}
	}
}

// root is the outermost frame in which most lists end; 0: none has ended.
func (r *threadReadings) root() (most uint64) {
	for root, n := range r.roots {
		if most == 0 || n > r.roots[most] || n == r.roots[most] && len(r.ends[root].Frames) > len(r.ends[most].Frames) {
			most = root
		}
	}
	return most
}

// whole reports whether more than half of the lists, and enough of them, end in the same frame, or there is none.
func (r *threadReadings) whole() bool {
	if r.count == 0 {
		return r.cut == nil
	}
	n := r.roots[r.root()]
	return n >= threadAgree && 2*n > r.count
}

// best is the thread as it was read most completely.
func (r *threadReadings) best() pyobject.ThreadState {
	if root := r.root(); root != 0 {
		return r.ends[root]
	}
	if r.cut != nil {
		return *r.cut
	}
	return r.empty
}
