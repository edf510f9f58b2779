// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"

	"github.com/gputrace/gputrace/event"
)

// Noted is an allocation of PyTorch's, as far as a phase follows from it.
type Noted struct {
	Time  uint64 // CLOCK_BOOTTIME nanoseconds
	Stack event.StackID
	TID   uint32
}

// maxNoted is how many allocations of a process are noted until somebody asks: 1.5 MB. Further ones are left out.
const maxNoted = 1 << 16

// notes are what a process has allocated since somebody asked; nothing before that.
type notes struct {
	wanted bool
	list   []Noted
}

// see takes events, with the stacks by which they are named.
func (n *notes) see(events []event.Event) {
	if !n.wanted {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Kind == event.KindAlloc && e.Layer == event.LayerTorch && e.Stack != 0 && len(n.list) < maxNoted {
			n.list = append(n.list, Noted{e.Time, e.Stack, e.TID})
		}
	}
}

// take appends what was noted to buf, and begins anew.
func (n *notes) take(buf []Noted) []Noted {
	buf = append(buf, n.list...)
	n.wanted, n.list = true, n.list[:0]
	return buf
}

// Allocations appends to buf those that a process made since they were asked for last, in their order; the first time there are none. A View that
// is asked for afterwards has their stacks.
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
