// SPDX-License-Identifier: Apache-2.0

// Package answer computes the main conclusions of a recording, in the order in which people ask: whether memory grows
// or ran out; who holds it, and which line allocated it; what the rest is for; and how much is in use now and at the
// peak, of how much. Code that prints or draws an answer computes nothing more.
package answer

import (
	"cmp"
	"math"
	"time"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/samples"
	"github.com/gputrace/gputrace/analysis/sleep"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

// When is the moment of the rows.
type When uint8

// The moments.
const (
	AtEnd        When = iota
	AtPeak            // each device at its own
	AtFailure         // before the request that failed
	AtExit            // before the program began to free everything because it ended
	EachAtItsOwn      // for several processes, each of which has its own moment
)

// Input is the input of New.
type Input struct {
	View  *view.View // at the moment of the rows, with Selection.Detail
	When  When
	Time  uint64     // that moment, CLOCK_BOOTTIME nanoseconds; 0: the end, or each device's peak
	Now   *view.View // at the end or, with AtExit, at that moment
	Start uint64     // of the recording, CLOCK_BOOTTIME nanoseconds
	End   uint64     // of the recording, CLOCK_BOOTTIME nanoseconds
	// Duration is the length of the recording by the recorder's clock; 0: not known.
	Duration time.Duration
	Ended    bool   // the recording ended with the program
	Paused   string // why the process did not run at the end, for "it was ..."; empty: it ran, or not known
	// NoHolders is why no Python could be read, so that holders are not known; empty: it could, or was not tried.
	NoHolders string
	Events    uint64 // number in the whole recording

	Leaks *leaks.Report // nil: not judged
	// Before is the verdict on what was before the failed request that the rows are of, if the program went on; nil: it did not.
	Before *leaks.Report
	OOM    *oom.Report // nil: not requested
	Begin  func(step int) (time uint64, ok bool)
	// Free is the unused memory of each device at the end, bytes; missing: not known.
	Free map[event.Device]uint64
	// Read is what held most blocks of each site in the last scan. It is used where View has no holder. If much of a site's memory was
	// freed since, it does not name the rest.
	Read *view.Read
	// Facts are facts that scans found beside the names of holders, by name; nil: none.
	Facts map[string]advice.Facts
	// Garbage is the garbage that scans found; nil: none.
	Garbage *figures.Garbage
	Course  *Course
	Sleep   []sleep.Cycle       // in the order of their beginnings
	Driver  []figures.DriverUse // the devices, from the last reading; nil: not known
	// DriverTime is the time of the reading of Driver, CLOCK_BOOTTIME nanoseconds; 0: at the end.
	DriverTime uint64
	Spare      SpareInput
}

// Answer has the conclusions and figures. Sizes are bytes.
type Answer struct {
	When     When
	Time     uint64 // of the rows, as Input.Time
	Start    uint64 // of the recording, CLOCK_BOOTTIME nanoseconds
	End      uint64 // of the recording, CLOCK_BOOTTIME nanoseconds
	Duration time.Duration
	Ended    bool   // as Input.Ended
	Paused   string // as Input.Paused
	// NoHolders is the same as Input.NoHolders.
	NoHolders string
	Events    uint64 // number in the whole recording
	Leaks     *leaks.Report
	Case      *oom.Case // the failed request that the answer begins with; nil: none failed
	Failures  int       // number of failed requests
	Failed    uint64    // time of the first of them, CLOCK_BOOTTIME nanoseconds; 0: none failed

	Rate  float64 // of all growth on devices, bytes per second; 0: none
	Since uint64  // when the growth began, CLOCK_BOOTTIME nanoseconds; 0: not known
	// Seconds is the time until a device is full, and Left its free memory; NaN and 0: not known.
	Seconds float64
	Left    uint64

	Rows  []Row // growth first, then the largest
	Rest  []Sum // memory in no row, by purpose, the largest first
	Total int64 // sum of Rows and Rest: all memory in use that is accounted for
	// Serving divides Total; nil: the program has no cache of keys and values.
	Serving *Serving

	Now, Peak uint64 // in use and accounted for: torch blocks, and device memory outside PyTorch
	PeakTime  uint64 // of the allocator with the largest peak, CLOCK_BOOTTIME nanoseconds; 0: before the first event
	Reserved  uint64 // by PyTorch; event.Unknown
	// Asleep is the part of Now, and Released the part of Reserved, whose memory was released while PyTorch kept the addresses.
	Asleep, Released uint64
	Sleep            []sleep.Cycle // as Input.Sleep
	Torch            bool          // there is a caching allocator that reports totals
	Sampled          Sampled
	Silent           string // an allocator without totals: the figures have what it handed out since the attach; empty: all have totals
	Between          uint64 // allocators' blocks between steps; 0: not known
	High             uint64 // maximum of the allocators' blocks within a step; 0: not known
	Peaks            Peaks  // the course of such maxima
	Exit             uint64 // time of Now, before the program ended, CLOCK_BOOTTIME nanoseconds; 0: the end
	parts            []Row  // all rows, including those not shown, in order
	// First and Last are the allocators' blocks at their first and last event.
	First, Last uint64
	Quiet       uint64 // as Course.Quiet
	Driver      []figures.DriverUse
	DriverTime  uint64 // as Input.DriverTime

	// Cached is unused reserved memory, Waiting is memory that waits for another stream, and Retried counts requests
	// that were first refused. Each is set if it is large; nil: it is not, or not known.
	Cached  *Cached
	Waiting *Waiting
	Retried *Retried
	Bounded *Bounded // set if it explains a rise that was not judged; nil: nothing does
	Garbage *Garbage // set if it is a large part of Total; nil: it is not, or not known
}

// Sampled is memory in use of allocators that report samples.
type Sampled struct {
	Allocator string // of the largest part; empty: none reports samples
	Samples   uint64 // in use
	Bytes     uint64 // that they represent: an estimate
	Aside     bool   // it is in no other figure
}

func (s *Sampled) add(of *Sampled) {
	if of.Bytes >= s.Bytes && of.Allocator != "" {
		s.Allocator = of.Allocator
	}
	s.Samples, s.Bytes, s.Aside = s.Samples+of.Samples, s.Bytes+of.Bytes, s.Aside || of.Aside
}

// Sum is the memory for one purpose.
type Sum struct {
	Name  string
	Bytes int64
}

// Unread names memory from before the attach of which nothing else is known, because its holders were not read. If
// something grows, part of this memory may belong to it.
const Unread = "before attach, holders not read"

// Row is memory that one thing holds, or that one line allocated.
type Row struct {
	Holder   string          // empty: not known
	Category phases.Category // purpose; NoCategory: not known, or several
	Named    bool            // the row has all memory of Category; Holder holds the largest part
	Inferred uint64          // part of Bytes whose holder was not read: other blocks of the same lines have Holder
	Finding  *leaks.Finding  // nil: it does not grow
	Rate     float64         // bytes per second; 0: no growth, or the length of a step is not known
	Bytes    int64
	Blocks   uint64     // 0: not known
	Share    float64    // share of Answer.Total
	Lines    []view.Row // the lines that allocated it, the largest first; a large line comes with its calls
	Which    string     // in a job, the processes that have it: "rank 3"; otherwise empty

	purpose string // name of the memory if the row is not shown
}

// New computes the answer.
func New(in *Input) *Answer {
	a := &Answer{
		When: in.When, Time: in.Time, Start: in.Start, End: in.End, Duration: in.Duration, Paused: in.Paused, Ended: in.Ended,
		NoHolders: in.NoHolders, Events: in.Events, Leaks: in.Leaks, Seconds: math.NaN(),
		Reserved: event.Unknown, Driver: in.Driver, DriverTime: in.DriverTime, Sleep: in.Sleep,
	}
	if in.OOM != nil {
		a.Case, a.Failures = in.OOM.Main(), len(in.OOM.Cases)+in.OOM.More
		if a.Failures > 0 {
			a.Failed = in.OOM.Cases[0].Time
		}
	}
	g := newGrouping(in)
	a.Rows, a.Rest, a.Total = g.rows()
	a.parts, a.Serving = g.parts, servingOf(g.entries, in.Leaks)
	a.growth(in)
	a.Garbage = a.garbageOf(g, in)
	a.totals(in.Now)
	if in.Course != nil {
		a.Between, a.High, a.Peaks = in.Course.Between, in.Course.High, in.Course.Peaks
		a.First, a.Last, a.Exit, a.Quiet = in.Course.First, in.Course.Last, in.Course.Exit, in.Course.Quiet
	}
	a.Bounded = a.boundedOf(in)
	a.spare(in)
	return a
}

// OfReport returns an answer from a leak report alone, without a recording, for a process that is watched.
func OfReport(r *leaks.Report) *Answer {
	a := &Answer{Leaks: r, Events: 1, Seconds: math.NaN(), Reserved: event.Unknown}
	a.growth(&Input{})
	return a
}

// OfRunning returns what is known of a process while it is recorded: the totals of now, and whether memory grows. r may be nil.
func OfRunning(now *view.View, r *leaks.Report) *Answer {
	a := OfReport(r)
	a.totals(now)
	return a
}

// Length returns the length of the recording, which includes the last event even if attaching took long.
func (a *Answer) Length() time.Duration {
	return max(a.Duration, time.Duration(a.End)-time.Duration(a.Start))
}

// Growing reports whether something grows from step to step.
func (a *Answer) Growing() bool { return a.Leaks != nil && a.Leaks.Verdict == leaks.Growing }

// GrowsBesides reports whether the program survived its failure and grows, and growth was not the cause.
func (a *Answer) GrowsBesides() bool {
	return a.Case != nil && a.Case.Caught == oom.Yes && a.Case.Decision != oom.Leak && a.Growing()
}

// growth adds up the growth, and finds the device that will be full first.
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

// Rate returns the growth of a finding, bytes per second; 0: the length of a step is not known.
func Rate(f *leaks.Finding, s *leaks.Steps) float64 {
	if s.Period == 0 {
		return 0
	}
	return f.Bytes / s.Period * 1e9
}

// BytesPerStep returns the growth of device memory in each step; 0: it is steady.
func BytesPerStep(r *leaks.Report) (bytes float64) {
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Layer != event.LayerHost {
			bytes += f.Bytes
		}
	}
	return bytes
}

func (a *Answer) totals(now *view.View) {
	for i := range now.Snapshot.Asleep {
		s := &now.Snapshot.Asleep[i]
		a.Asleep, a.Released = a.Asleep+s.Blocks.Bytes, a.Released+s.Segments
	}
	a.Now = now.Total()
	a.Peak = max(a.Now, now.AtPeak().Total())
	highest := uint64(0)
	for i := range now.Snapshot.Accounts {
		x := &now.Snapshot.Accounts[i]
		if other := x.Device.Allocator(); other.Sampled() {
			a.Sampled.add(&Sampled{other.String(), x.Live.Objects, x.Live.Bytes, samples.Aside(&now.Snapshot.Totals)})
			if a.Sampled.Aside {
				continue // its peak is in no sum
			}
		} else if !other.Totals() {
			if x.Allocated == event.Unknown {
				a.Silent = other.String()
			}
		} else {
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
