// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
)

// Course is what the allocators' totals say of the course of a recording.
type Course struct {
	Between uint64 // least in a step, the middle of the later half of all; 0: not known
	High    uint64 // most in a step, of the same
	First   uint64 // behind the first event
	Last    uint64 // behind the last allocation
	// Exit is the last moment before the program freed everything because it ended, CLOCK_BOOTTIME nanoseconds; 0: it did not.
	Exit uint64
}

// level is the least and the most of a step.
type level struct{ low, high uint64 }

// moment is the allocators' total behind an event.
type moment struct{ time, bytes uint64 }

// Follower follows the totals of a trace, in a replay that others share.
type Follower struct {
	table  *steps.Table
	totals []account // few, in the order in which they came
	first  uint64
	sum    uint64
	step   int
	now    level
	levels []level
	last   moment   // the last allocation
	tail   []moment // the frees behind it
}

// account is one caching allocator.
type account struct {
	pid    uint32
	device event.Device
	total  uint64
}

// NewFollower is a follower that has seen no event.
func NewFollower(table *steps.Table) *Follower {
	return &Follower{table: table}
}

// Course is that of all events. ended: the recording ended with the program.
func (f *Follower) Course(ended bool) *Course {
	out := &Course{First: f.first, Last: f.last.bytes}
	late := f.levels[len(f.levels)/2:]
	if len(late) > 0 {
		lows := make([]uint64, len(late))
		for i, l := range late {
			lows[i] = l.low
			out.High = max(out.High, l.high)
		}
		slices.Sort(lows)
		out.Between = lows[len(lows)/2]
	}
	if ended {
		out.Exit = f.exit(out.Between)
	}
	return out
}

// See takes the next event.
func (f *Follower) See(e *event.Event) {
	if e.Layer != event.LayerTorch || e.Allocated == event.Unknown || e.Kind != event.KindAlloc && e.Kind != event.KindFree {
		return
	}
	if step := f.table.At(e.Time); step != f.step {
		if f.step > 0 {
			f.levels = append(f.levels, f.now)
		}
		f.step, f.now = step, level{f.sum, f.sum}
	}
	begins := len(f.totals) == 0
	total := f.totalOf(e)
	f.sum += e.Allocated - *total
	if begins {
		f.first = f.sum
	}
	*total = e.Allocated
	f.now.low, f.now.high = min(f.now.low, f.sum), max(f.now.high, f.sum)
	if e.Kind == event.KindAlloc {
		f.last, f.tail = moment{e.Time, f.sum}, f.tail[:0]
	} else {
		f.tail = append(f.tail, moment{e.Time, f.sum})
	}
}

// totalOf is the total of an event's allocator, 0 before its first.
func (f *Follower) totalOf(e *event.Event) *uint64 {
	for i := range f.totals {
		if a := &f.totals[i]; a.pid == e.PID && a.device == e.Device {
			return &a.total
		}
	}
	f.totals = append(f.totals, account{e.PID, e.Device, 0})
	return &f.totals[len(f.totals)-1].total
}

// exit is the last moment at which as much was in use as between steps, or without steps the last allocation. 0: what was in use stayed.
func (f *Follower) exit(between uint64) uint64 {
	least := between
	if least == 0 {
		least = f.last.bytes
	}
	if 2*f.sum >= least {
		return 0
	}
	for _, m := range slices.Backward(f.tail) {
		if m.bytes >= least {
			return m.time
		}
	}
	return f.last.time
}
