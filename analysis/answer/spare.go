// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"slices"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// Cached and waiting memory is reported from these shares of the reserved memory and this number of bytes on. Less does
// not matter on a device of several GiB.
const (
	leastCached  = 0.25
	leastWaiting = 0.10
	leastSpare   = 64 << 20
)

// leastCompared is the minimum number of steps of each kind for comparing their lengths, and leastSlower the ratio from
// which the difference is reported: smaller ones are normal variation.
const (
	leastCompared = 3
	leastSlower   = 1.2
)

// SpareInput is the input for Cached, Waiting and Retried.
type SpareInput struct {
	Torch     []figures.TorchMemory // the caching allocators, from the last reading of their state; nil: not read
	Time      uint64                // of that reading, CLOCK_BOOTTIME nanoseconds
	Recovered int                   // number of requests that were refused and then satisfied
	Times     []uint64              // times of those requests, CLOCK_BOOTTIME nanoseconds, ascending
	Steps     *steps.Table
}

// Cached is memory that PyTorch reserved and the program did not use in the later half of the recording. Sizes are bytes.
type Cached struct {
	Bytes    uint64 // Reserved less Used
	Reserved uint64
	Used     uint64 // maximum in use in the later half
	Largest  uint64 // largest free piece at the end; event.Unknown
	// From is Reserved at the beginning, if it rose to the end of the recording; 0: it did not.
	From    uint64
	Streams int // number of streams for which something was allocated
	// NewStreams is the number of them for which nothing was allocated before the later half of the recording.
	NewStreams int
}

// Waiting is memory that the program freed and another stream's work still uses.
type Waiting struct {
	Bytes uint64
	Time  uint64 // of the reading, CLOCK_BOOTTIME nanoseconds
}

// Retried counts requests that the driver refused and that were then satisfied.
type Retried struct {
	Count int
	Steps int // number of steps with such a request; 0: not known
	// Slower is the ratio of the median lengths of steps with and without such a request; 0: not known, or not longer.
	Slower        float64
	With, Without float64 // the median lengths, nanoseconds
}

// spare finds unused reserved memory. If a request failed, its case reports it instead.
func (a *Answer) spare(in *Input) {
	a.Retried = retried(&in.Spare)
	if a.Case != nil {
		return
	}
	if in.Course != nil {
		a.Cached = cached(a, in.Course.Late, in.Spare.Torch)
		a.Cached.follow(in.Course)
	}
	var pending, reserved uint64
	for i := range in.Spare.Torch {
		if t := &in.Spare.Torch[i]; t.Pending != figures.Unknown && t.Reserved != figures.Unknown {
			pending, reserved = pending+uint64(t.Pending), reserved+uint64(t.Reserved)
		}
	}
	if large(pending, reserved, leastWaiting) {
		a.Waiting = &Waiting{Bytes: pending, Time: in.Spare.Time}
	}
}

func large(bytes, of uint64, part float64) bool {
	return bytes >= leastSpare && float64(bytes) >= part*float64(of)
}

// cached compares the reserved memory with the maximum in use in the later half of the recording. Memory that a step
// uses and frees is needed by the next step, so it does not count as free.
func cached(a *Answer, late uint64, torch []figures.TorchMemory) *Cached {
	if a.Reserved == event.Unknown || late == 0 || late > a.Reserved || !large(a.Reserved-late, a.Reserved, leastCached) {
		return nil
	}
	c := &Cached{Bytes: a.Reserved - late, Reserved: a.Reserved, Used: late, Largest: event.Unknown}
	var reserved, largest uint64
	for i := range torch {
		t := &torch[i]
		if t.Reserved == figures.Unknown {
			return c
		}
		reserved, largest = reserved+uint64(t.Reserved), max(largest, uint64(t.Largest))
	}
	if reserved == a.Reserved && largest > 0 { // it was read when the same amount was reserved
		c.Largest = largest
	}
	return c
}

// Reserved memory rises if each half of the recording added one part in risenBy, and both together one part in risenAll or leastSpare.
const (
	risenBy  = 20
	risenAll = 4
)

// follow notes whether the reserved memory rose in both halves of the recording.
func (c *Cached) follow(course *Course) {
	if c == nil {
		return
	}
	c.Streams, c.NewStreams = course.Streams, course.NewStreams
	r := course.Reserved
	if r.Half > r.First+r.First/risenBy && r.Last > r.Half+r.Half/risenBy && r.Last >= r.First+min(leastSpare, r.Last/risenAll) {
		c.From = r.First
	}
}

// retried counts the requests that were first refused, and compares the steps with one to the others.
func retried(in *SpareInput) *Retried {
	if in.Recovered == 0 {
		return nil
	}
	out := &Retried{Count: in.Recovered}
	if in.Steps == nil || len(in.Times) != in.Recovered {
		return out
	}
	hit := map[int]bool{}
	for _, t := range in.Times {
		if n := in.Steps.At(t); n > 0 {
			hit[n] = true
		}
	}
	out.Steps = len(hit)
	var with, without []float64
	for n := in.Steps.First(); n > 0 && n < in.Steps.Last(); n++ { // the last step is not complete
		from, to, ok := in.Steps.Span(n)
		switch {
		case !ok:
		case hit[n]:
			with = append(with, float64(to-from))
		default:
			without = append(without, float64(to-from))
		}
	}
	if min(len(with), len(without)) < leastCompared {
		return out
	}
	out.With, out.Without = median(with), median(without)
	if out.Without > 0 && out.With >= leastSlower*out.Without {
		out.Slower = out.With / out.Without
	}
	return out
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}
