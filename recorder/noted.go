// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"

	"github.com/gputrace/gputrace/event"
)

// Noted is the part of a PyTorch allocation that determines its phase.
type Noted struct {
	Time  uint64 // CLOCK_BOOTTIME nanoseconds
	Stack event.StackID
	TID   uint32
}

// maxNoted is the number of allocations of a process that are noted between two calls of Allocations: 1.5 MB. Further ones are dropped.
const maxNoted = 1 << 16

// notes are the allocations of a process since Allocations was last called; none before its first call.
type notes struct {
	wanted bool
	list   []Noted
}

// see notes events together with their stacks.
func (n *notes) see(events []event.Event) {
	if !n.wanted {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Kind == event.KindAlloc && e.Layer == event.LayerAllocator && e.Stack != 0 && len(n.list) < maxNoted {
			n.list = append(n.list, Noted{e.Time, e.Stack, e.TID})
		}
	}
}

// take appends the notes to buf and clears them.
func (n *notes) take(buf []Noted) []Noted {
	buf = append(buf, n.list...)
	n.wanted, n.list = true, n.list[:0]
	return buf
}

// Allocations appends to buf the allocations of a process since the previous call, in order; the first call returns
// none. A View that is requested afterwards has their stacks.
func (r *Recorder) Allocations(ctx context.Context, pid int, buf []Noted) ([]Noted, error) {
	found := false
	err := r.do(ctx, func() {
		if p := r.now[pid]; p != nil {
			buf, found = p.notes.take(buf), true
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("pid %d: %w", pid, ErrOver)
	}
	return buf, err
}
