// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
)

// SetExit says when the program began to free everything because it ended, CLOCK_BOOTTIME nanoseconds, and what held most blocks of a site
// when holders were last read before. What is freed later has that holder in views and pages: nobody can
// read it any more. It is for what it was for until then. 0: it is not known.
func (t *Trace) SetExit(time uint64, read *Read) { t.exit, t.read = time, read }

// HeldAtExit is what held a block that was freed at a time because the program ended, or NoHolder; empty: it was freed before.
func (t *Trace) HeldAtExit(b *heap.Block, freed uint64) string {
	if t.exit == 0 || freed <= t.exit || b.Layer != event.LayerAllocator {
		return ""
	}
	return cmp.Or(t.read.Get(t.read.Key(t.nameOf(b))).Holder, NoHolder)
}
