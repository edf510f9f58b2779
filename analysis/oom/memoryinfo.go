// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// threadKey identifies a thread.
type threadKey struct{ pid, tid uint32 }

// memoryInfo is what the driver reported to a thread about its device, bytes. The zero value: nothing.
type memoryInfo struct{ free, total uint64 }

// hear stores what the driver reports to a thread until that does something else. PyTorch asks the driver after the last refusal, and
// then reports that it is out of memory (CUDACachingAllocator.cpp, malloc).
func (f *follower) hear(e *event.Event) {
	key := threadKey{e.PID, e.TID}
	switch {
	case e.Kind == event.KindMemoryInfo && e.Size <= e.Handle && e.Handle != event.Unknown:
		f.infos[key] = memoryInfo{e.Size, e.Handle}
	case e.Kind != event.KindOutOfMemory || e.Layer != event.LayerAllocator:
		delete(f.infos, key)
	}
}

// hasFree reports whether the program knew from the driver how much was free when it reported the failure.
func (c *Case) hasFree() bool { return c.info.total > 0 }

// takeFree replaces the free memory that follows from a reading by what the driver reported to the program at the failure. The
// difference is what other processes have changed between the two.
func (c *Case) takeFree() {
	if c.Total == event.Unknown {
		c.Total = c.info.total
	}
	if c.Free != event.Unknown && c.Free > c.info.free {
		if c.Read >= c.Time {
			c.Returned = c.Free - c.info.free
		}
		c.Others += c.Free - c.info.free
	}
	c.Free = c.info.free
}

// setRest sets the context and other processes together, if it is known what was free and no reading divides the rest.
func (c *Case) setRest(own uint64) {
	if c.whole && own != event.Unknown && figures.Add(own, c.Free) <= c.Total {
		c.Unseen, c.UnseenExact = c.Total-own-c.Free, true
	}
}
