// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Course summarises the allocators' totals over a recording.
type Course struct {
	Between uint64 // minimum of a step, median over the later half of the steps; 0: not known
	High    uint64 // maximum of a step, over the same steps
	First   uint64 // after the first event
	Last    uint64 // after the last allocation
	Late    uint64 // maximum in the later half of the time
	// Exit is the last moment before the program freed everything because it ended, CLOCK_BOOTTIME nanoseconds; 0: it did not.
	Exit uint64
	// Quiet is for how long nothing had been allocated or freed when the recording ended, nanoseconds.
	Quiet uint64
	// Reserved is what the allocators had reserved after the first event, before the later half of the time, and after the last event.
	Reserved Reserves
	// Streams is the number of streams for which something was allocated.
	Streams int
	// NewStreams is the number of them for which nothing was allocated before the later half of the time.
	NewStreams int
	// Peaks is the course of the steps' peaks.
	Peaks Peaks
}

// Peaks are the medians of the peaks of the first and the last sixth of all steps, bytes. They are 0 unless each sixth has a higher one
// than the sixth before.
type Peaks struct{ First, Last uint64 }

const (
	parts = 6
	// leastSteps is the least number of steps of a part. The last median is higher than the first by one part in leastRise or more.
	leastSteps = 5
	leastRise  = 8
)

func peaksOf(levels []level) Peaks {
	n := len(levels) / parts
	if n < leastSteps {
		return Peaks{}
	}
	var medians [parts]uint64
	for i := range medians {
		highs := make([]uint64, n)
		for k, l := range levels[len(levels)-(parts-i)*n:][:n] {
			highs[k] = l.high
		}
		slices.Sort(highs)
		medians[i] = highs[n/2]
		if i > 0 && medians[i] <= medians[i-1] {
			return Peaks{}
		}
	}
	if first, last := medians[0], medians[parts-1]; last >= first+first/leastRise {
		return Peaks{first, last}
	}
	return Peaks{}
}

// Reserves is the reserved memory at three moments of a recording, bytes.
type Reserves struct{ First, Half, Last uint64 }

// level is the minimum and the maximum of a step.
type level struct{ low, high uint64 }

// moment is the allocators' total after an event.
type moment struct{ time, bytes uint64 }

// Follower follows the totals of a trace, in a replay that is shared with others.
type Follower struct {
	table    *steps.Table
	sums     view.Reported
	first    uint64
	began    bool // first is set
	step     int
	now      level
	levels   []level
	end      uint64 // of the recording, CLOCK_BOOTTIME nanoseconds
	half     uint64 // beginning of the later half, CLOCK_BOOTTIME nanoseconds
	late     uint64
	reserved Reserves
	stream   uint64          // of the allocation before; it mostly has the same
	streams  map[uint64]bool // true: nothing was allocated before the later half
	last     moment          // after the last allocation, or request that failed
	tail     []moment        // after the frees that follow it
}

// NewFollower returns a follower that has seen no event, for a recording from start to end, CLOCK_BOOTTIME nanoseconds.
func NewFollower(table *steps.Table, start, end uint64) *Follower {
	return &Follower{table: table, end: max(start, end), half: start + (max(start, end)-start)/2}
}

// Course returns the course after all events. ended: the recording ended with the program.
func (f *Follower) Course(ended bool) *Course {
	out := &Course{Reserved: f.reserved, Streams: len(f.streams), First: f.first, Last: f.last.bytes, Late: max(f.late, f.last.bytes)}
	for _, late := range f.streams {
		if late {
			out.NewStreams++
		}
	}
	out.Peaks = peaksOf(f.levels)
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
	if last := f.lastTime(); f.began && f.end > last {
		out.Quiet = f.end - last
	}
	if ended {
		out.Exit = f.exit(out.Between)
	}
	return out
}

// See adds the next event.
func (f *Follower) See(e *event.Event) {
	before := f.sums.Sum()
	if e.Kind == event.KindOutOfMemory && f.began { // what was freed until then was not freed by the end
		f.last, f.tail = moment{e.Time, before}, f.tail[:0]
		return
	}
	if _, ok := f.sums.See(e); !ok {
		return
	}
	f.seeReserved(e)
	if step := f.table.At(e.Time); step != f.step {
		if f.step > 0 {
			f.levels = append(f.levels, f.now)
		}
		f.step, f.now = step, level{before, before}
	}
	sum := f.sums.Sum()
	if !f.began {
		f.first, f.began = sum, true
	}
	if e.Time >= f.half {
		f.late = max(f.late, before, sum)
	}
	f.now.low, f.now.high = min(f.now.low, sum), max(f.now.high, sum)
	if e.Kind == event.KindAlloc {
		f.last, f.tail = moment{e.Time, sum}, f.tail[:0]
	} else {
		f.tail = append(f.tail, moment{e.Time, sum})
	}
}

// seeReserved follows the reserved memory, and the streams.
func (f *Follower) seeReserved(e *event.Event) {
	if e.Kind == event.KindAlloc && e.Stream != event.Unknown && (f.streams == nil || e.Stream != f.stream) {
		if f.streams == nil {
			f.streams = map[uint64]bool{}
		}
		f.stream = e.Stream
		if _, ok := f.streams[e.Stream]; !ok {
			f.streams[e.Stream] = e.Time >= f.half
		}
	}
	r := &f.reserved
	r.Last = f.sums.Reserved()
	if r.First == 0 {
		r.First = r.Last
	}
	if e.Time < f.half {
		r.Half = r.Last
	}
}

// lastTime returns the time of the last event.
func (f *Follower) lastTime() uint64 {
	if n := len(f.tail); n > 0 {
		return f.tail[n-1].time
	}
	return f.last.time
}

// exit returns the last moment with as much in use as in the last step, which has the most if memory grows; otherwise
// as between steps or, without steps, after the last allocation. 0: the memory was not freed.
func (f *Follower) exit(between uint64) uint64 {
	enough := []uint64{cmp.Or(between, f.last.bytes)}
	if 2*f.sums.Sum() >= enough[0] {
		return 0
	}
	if n := len(f.levels); n > 0 {
		enough = []uint64{f.levels[n-1].low, enough[0]}
	}
	for _, least := range enough {
		for _, m := range slices.Backward(f.tail) {
			if m.bytes >= least {
				return m.time
			}
		}
		if f.last.bytes >= least {
			break
		}
	}
	return f.last.time
}
