// SPDX-License-Identifier: Apache-2.0

package backward

import (
	"sort"

	"github.com/gputrace/gputrace/event"
)

const (
	maxThreads = 256     // whose numbers are kept; beyond it the one that was not seen for longest is forgotten
	maxMarks   = 1 << 20 // of a thread; beyond it the older half is forgotten: 16 MB
	maxSame    = 8       // marks with one number; beyond it the last takes the place of the one before
)

// mark is an allocation: the number that the next node got, and its stack.
type mark struct {
	next  uint64
	stack event.StackID
}

// history is the allocations of one of PyTorch's threads, in their order.
type history struct {
	marks []mark
	same  int    // how many of the last have one number
	used  uint64 // when it was asked for last
}

// add takes the next allocation.
func (h *history) add(m mark) {
	n := len(h.marks)
	switch {
	case n == 0 || h.marks[n-1].next != m.next:
		h.same = 1
	case h.marks[n-1].stack == m.stack:
		return
	case h.same == maxSame:
		h.marks[n-1] = m
		return
	default:
		h.same++
	}
	if n == maxMarks {
		h.marks = append(h.marks[:0], h.marks[n/2:]...)
	}
	h.marks = append(h.marks, m)
}

// first is the index of the first allocation at which the next node got a number, or a larger one.
func (h *history) first(next uint64) int {
	return sort.Search(len(h.marks), func(i int) bool { return h.marks[i].next >= next })
}

// of is the history of a thread.
func (j *Joiner) of(thread uint32) *history {
	j.clock++
	h := j.history[thread]
	if h == nil {
		j.forgetThread()
		h = &history{}
		j.history[thread] = h
	}
	h.used = j.clock
	return h
}

// forgetThread makes room for one more.
func (j *Joiner) forgetThread() {
	if len(j.history) < maxThreads {
		return
	}
	oldest, at := uint32(0), ^uint64(0)
	for thread, h := range j.history {
		if h.used < at {
			oldest, at = thread, h.used
		}
	}
	delete(j.history, oldest)
}
