// SPDX-License-Identifier: Apache-2.0

// Package answer is what a recording says first, in the order in which a person asks: does memory grow, or did it run out; who holds it,
// and which line allocated it; what is the rest for; how much is it now, at its highest and of how much. A printer or drawer of it
// computes nothing more.
package answer

import (
	"cmp"
	"math"
	"time"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// When is the moment of which the rows are.
type When uint8

// The moments.
const (
	AtEnd        When = iota
	AtPeak            // each device at its own
	AtFailure         // of the request that failed, before it
	AtExit            // before the program began to free everything because it ended
	EachAtItsOwn      // of several processes, whose moments are not the same
)

// Input is what New looks at.
type Input struct {
	View  *view.View // of the moment that the rows are of, with Selection.Detail
	When  When
	Time  uint64     // of that moment, CLOCK_BOOTTIME nanoseconds; 0: the end, or that of each device's peak
	Now   *view.View // at the end; with AtExit, at that moment
	Start uint64     // of the recording, CLOCK_BOOTTIME nanoseconds
	End   uint64     // likewise
	// Duration is how long the recording took, as the recorder's clock has it; 0: not known.
	Duration time.Duration
	Paused   string // why the process did not run at the end, for "it was ..."; empty: it did, or that is not known
	// NoHolders says why no Python could be read, so that holders are not known; empty: one was, or it was not tried.
	NoHolders string
	Events    uint64 // of the whole recording

	Leaks *leaks.Report // nil: not judged
	OOM   *oom.Report   // nil: not asked
	Begin func(step int) (time uint64, ok bool)
	// Free is the unused memory of each device at the end, bytes; missing: not known.
	Free map[event.Device]uint64
	// Read says of sites, by name, what held most of their blocks when holders were last read: it counts where View names nothing.
	Read map[string]string
	// Facts are what readings found beside the names of holders, by name; nil: nothing.
	Facts map[string]advice.Facts
	// Garbage is what readings found of garbage; nil: none.
	Garbage *figures.Garbage
	Course  *Course
	Driver  []figures.DriverUse // the devices, by the last reading; nil: not known
	// DriverTime is when Driver was read, CLOCK_BOOTTIME nanoseconds; 0: at the end.
	DriverTime uint64
	Spare      SpareInput
}

// Answer is the figures. Sizes are bytes.
type Answer struct {
	When     When
	Time     uint64 // of the rows, as Input.Time
	Start    uint64 // of the recording, CLOCK_BOOTTIME nanoseconds
	End      uint64 // likewise
	Duration time.Duration
	Paused   string // as Input.Paused
	// NoHolders is as Input.NoHolders.
	NoHolders string
	Events    uint64 // of the whole recording
	Leaks     *leaks.Report
	Case      *oom.Case // that the answer begins with; nil: no request failed

	Rate  float64 // of all that grows on devices, bytes a second; 0: nothing does
	Since uint64  // when it began, CLOCK_BOOTTIME nanoseconds; 0: not known
	// Seconds is until a device is full, and Left what it has left; NaN and 0: not known.
	Seconds float64
	Left    uint64

	Rows  []Row // what grows first, then the largest
	Rest  []Sum // of what is in no row, by what it is for, the largest first
	Total int64 // of Rows and Rest: all that is in use and accounted for

	Now, Peak uint64 // in use and accounted for: torch blocks, and device memory that is not PyTorch's
	PeakTime  uint64 // of the allocator with the largest, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	Reserved  uint64 // by PyTorch; event.Unknown
	Torch     bool   // there is a caching allocator
	Between   uint64 // steps, of the allocators' blocks; 0: not known
	High      uint64 // in a step, likewise
	Exit      uint64 // Now is of then, before the program ended, CLOCK_BOOTTIME nanoseconds; 0: it is of the end
	parts     []Row  // all rows, also those that are not shown, in order
	// First and Last are the allocators' blocks at the first and the last event of one.
	First, Last uint64
	Driver      []figures.DriverUse
	DriverTime  uint64 // as Input.DriverTime

	// Cached is reserved memory that is not used, Waiting memory that waits for another stream, and Retried requests that were refused first,
	// each where it is large. nil: it is not, or not known.
	Cached  *Cached
	Waiting *Waiting
	Retried *Retried
	Garbage *Garbage // where it is a large part of Total; nil: it is not, or not known
}

// Sum is memory that is for one thing.
type Sum struct {
	Name  string
	Bytes int64
}

// Unread names the memory from before the attach of which nothing else is known, for its holders were not read. Where something grows, a
// part of it may belong to that.
const Unread = "before attach, holders not read"

// Row is memory that one thing holds, or that one line allocated.
type Row struct {
	Holder   string          // what holds it; empty: not known
	Category phases.Category // what it is for; NoCategory: that is not known, or several things
	Named    bool            // it is all that is for Category; Holder holds the largest part of it
	Inferred uint64          // of Bytes, what the holder was not read of: blocks of lines whose others it holds
	Finding  *leaks.Finding  // nil: it does not grow
	Rate     float64         // bytes a second; 0: it does not grow, or the length of a step is not known
	Bytes    int64
	Blocks   uint64     // 0: not known
	Share    float64    // of Answer.Total
	Lines    []view.Row // the lines that allocated it, by bytes, the largest first; of a long one with what it calls
	Which    string     // of a job, which processes have it: "rank 3"; else empty

	purpose string // what the memory is called where the row is not shown
}

// New makes the answer.
func New(in *Input) *Answer {
	a := &Answer{
		When: in.When, Time: in.Time, Start: in.Start, End: in.End, Duration: in.Duration, Paused: in.Paused, NoHolders: in.NoHolders, Events: in.Events, Leaks: in.Leaks, Seconds: math.NaN(),
		Reserved: event.Unknown, Driver: in.Driver, DriverTime: in.DriverTime,
	}
	if in.OOM != nil {
		a.Case = in.OOM.Main()
	}
	g := newGrouping(in)
	a.Rows, a.Rest, a.Total = g.rows()
	a.parts = g.parts
	a.growth(in)
	a.Garbage = a.garbageOf(g, in)
	a.totals(in)
	if in.Course != nil {
		a.Between, a.High = in.Course.Between, in.Course.High
		a.First, a.Last, a.Exit = in.Course.First, in.Course.Last, in.Course.Exit
	}
	a.spare(in)
	return a
}

// OfReport is what a report alone says, without a recording: of a process that is watched.
func OfReport(r *leaks.Report) *Answer {
	a := &Answer{Leaks: r, Events: 1, Seconds: math.NaN(), Reserved: event.Unknown}
	a.growth(&Input{})
	return a
}

// Length is how long the recording is: no event is later, also where the attach took long.
func (a *Answer) Length() time.Duration {
	return max(a.Duration, time.Duration(a.End)-time.Duration(a.Start))
}

// Growing reports whether something grows from step to step.
func (a *Answer) Growing() bool { return a.Leaks != nil && a.Leaks.Verdict == leaks.Growing }

// growth adds up what grows, and finds the device that is full first.
func (a *Answer) growth(in *Input) {
	if !a.Growing() {
		return
	}
	first := 0
	for i := range a.Leaks.Findings {
		f := &a.Leaks.Findings[i]
		if f.Layer == event.LayerHost {
			continue
		}
		a.Rate += Rate(f, &a.Leaks.Steps)
		if math.IsNaN(a.Seconds) || f.Seconds < a.Seconds {
			a.Seconds, a.Left = f.Seconds, in.Free[f.Device]
		}
		if first == 0 || f.First < first {
			first = f.First
		}
	}
	if in.Begin != nil && first > 0 {
		a.Since, _ = in.Begin(first)
	}
}

// Rate is how fast a finding grows, bytes a second; 0: the length of a step is not known.
func Rate(f *leaks.Finding, s *leaks.Steps) float64 {
	if s.Period == 0 {
		return 0
	}
	return f.Bytes / s.Period * 1e9
}

func (a *Answer) totals(in *Input) {
	a.Now = in.Now.Total()
	a.Peak = max(a.Now, in.Now.AtPeak().Total())
	highest := uint64(0)
	for i := range in.Now.Snapshot.Accounts {
		x := &in.Now.Snapshot.Accounts[i]
		if x.Device.Allocator().Totals() {
			if !a.Torch {
				a.Torch, a.Reserved = true, 0
			}
			a.Reserved = plus(a.Reserved, x.Reserved)
		}
		if cmp.Or(x.Peak, 1) > highest {
			highest, a.PeakTime = x.Peak, x.PeakTime
		}
	}
}

func plus(x, y uint64) uint64 {
	if x == event.Unknown || y == event.Unknown {
		return event.Unknown
	}
	return x + y
}
