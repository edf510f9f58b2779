// SPDX-License-Identifier: Apache-2.0

// Package gate says whether what was recorded keeps within limits: rules and figures of other analyses go in, for each rule whether it
// is met, what was measured and at which line comes out. It measures nothing itself.
package gate

import (
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Rules are the limits. The zero value of a field, or what it names, is no rule.
type Rules struct {
	MaxPeak   *uint64  // the most bytes that a device of a process has in use at any moment
	MaxGrowth *float64 // the most bytes that the memory grows by each step
	NoLeaks   bool     // nothing grows from step to step
	// LeakTolerance is the most bytes that a line may grow by each step with NoLeaks; nil: what leaks.Tolerance allows.
	LeakTolerance *float64
	NoOOM         bool    // no request is refused
	Baseline      bool    // the peak is compared with Input.Baseline, by line and category
	Tolerance     float64 // how much more than the baseline's is allowed, as a part of that: 0.05
}

// Any reports whether there is a rule.
func (r *Rules) Any() bool {
	return r.MaxPeak != nil || r.MaxGrowth != nil || r.NoLeaks || r.NoOOM || r.Baseline
}

// NeedsSteps reports whether a rule needs Input.Leaks.
func (r *Rules) NeedsSteps() bool { return r.MaxGrowth != nil || r.NoLeaks }

// Least is the least difference to a baseline that counts, bytes: PyTorch's allocator can hand out a block that is up to 1 MiB larger
// than what is asked for, so that a line of the same program differs by as much from run to run.
const Least = 1 << 20

// Input is what is known of one recording.
type Input struct {
	Name  string      // "rank 0, pid 5021", or the file
	Peaks []view.Peak // of each device
	Peak  []view.Row  // what was in use then
	// Leaks is the verdict on its steps; nil: not asked for.
	Leaks    *leaks.Report
	Refused  []Refused
	Skipped  int        // further requests that were refused, which are not in Refused
	Baseline []view.Row // what was in use at the peak of the baseline; nil: it has nothing
	// Categories is false where the baseline does not say what its memory is for, as a profile.
	Categories bool
}

// Refused is a request that was refused.
type Refused struct {
	Bytes  uint64
	Time   uint64 // CLOCK_BOOTTIME nanoseconds
	Device event.Device
	Site   view.Call // that asked
}

// Name is how a rule is called, as its flag.
type Name string

// The rules.
const (
	MaxPeak   Name = "max-peak"
	MaxGrowth Name = "max-growth-per-step"
	NoLeaks   Name = "no-leaks"
	NoOOM     Name = "no-oom"
	Baseline  Name = "baseline"
	Command   Name = "command" // the program that was run has exit code 0
)

// Status is what became of a rule.
type Status string

// The statuses. A rule that could not be judged is not met: a gate that passes because it saw nothing is none.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Unknown Status = "unknown"
)

// Result is a rule of one recording.
type Result struct {
	Rule   Name
	Status Status
	// Bound and Measured are bytes, bytes a step, a number of findings or requests, or an exit code. Measured is NaN where it is not known.
	Bound, Measured float64
	// Found is what fails the rule, the most first; of a rule that is met, what comes nearest to it, if there is anything.
	Found []Found
	// Leaks is the verdict that the rule is of; nil: it is of none.
	Leaks *leaks.Report
	// Tolerance is that of the baseline, and LeakTolerance that of leaks, bytes a step; nil: leaks.Tolerance.
	Tolerance     float64
	LeakTolerance *float64
}

// By is how much more was measured than is allowed; 0 for a rule that is met, NaN where that is not known.
func (r *Result) By() float64 {
	if r.Status == Passed {
		return 0
	}
	return r.Measured - r.Bound
}

// FoundKind is what a Found is of.
type FoundKind string

// The kinds.
const (
	OfDevice   FoundKind = "device"
	OfLine     FoundKind = "line"
	OfCategory FoundKind = "category"
	OfRequest  FoundKind = "request"
)

// Found is something that was measured, and where.
type Found struct {
	Kind FoundKind
	// What is "cuda:0", the category, or empty if Line is set.
	What string
	// Line is the line of the program; of a device, the one with the most memory at the peak. The zero value: not known.
	Line      view.Call
	LineBytes uint64 // of a device: what Line has of it
	Bound     float64
	Measured  float64
	Time      uint64         // CLOCK_BOOTTIME nanoseconds; 0: not of a moment
	Finding   *leaks.Finding // of what grows; else nil
}

// Report is a recording with its results.
type Report struct {
	Name    string
	Results []Result
}

// Passed reports whether every rule is met.
func (r *Report) Passed() bool {
	return !slices.ContainsFunc(r.Results, func(x Result) bool { return x.Status != Passed })
}

// Check is the results of all recordings.
type Check struct {
	Reports []Report
}

// Passed reports whether every rule is met in every recording. Without a recording none is.
func (c *Check) Passed() bool {
	return len(c.Reports) > 0 && !slices.ContainsFunc(c.Reports, func(r Report) bool { return !r.Passed() })
}

// Judge applies rules to a recording.
func Judge(rules *Rules, in *Input) Report {
	out := Report{Name: in.Name}
	add := func(on bool, judge func(*Rules, *Input) Result) {
		if on {
			out.Results = append(out.Results, judge(rules, in))
		}
	}
	add(rules.MaxPeak != nil, judgePeak)
	add(rules.MaxGrowth != nil, judgeGrowth)
	add(rules.NoLeaks, judgeLeaks)
	add(rules.NoOOM, judgeOOM)
	add(rules.Baseline, judgeBaseline)
	return out
}

// OfCommand is the result of the exit code of a program.
func OfCommand(code int) Result {
	out := Result{Rule: Command, Status: Passed, Measured: float64(code)}
	if code != 0 {
		out.Status = Failed
	}
	return out
}

// NotRecorded is every rule of a program that used no GPU memory, or of which there is no recording.
func NotRecorded(rules *Rules, name string) Report {
	out := Judge(rules, &Input{Name: name, Leaks: &leaks.Report{Verdict: leaks.Unclear}})
	for i := range out.Results {
		r := &out.Results[i]
		out.Results[i] = Result{Rule: r.Rule, Status: Unknown, Bound: r.Bound, Measured: math.NaN()}
	}
	return out
}

// judgePeak compares the highest use of each device.
func judgePeak(rules *Rules, in *Input) Result {
	out := Result{Rule: MaxPeak, Status: Passed, Bound: float64(*rules.MaxPeak), Measured: math.NaN()}
	for i := range in.Peaks {
		p := &in.Peaks[i]
		if p.Layer == event.LayerHost {
			continue
		}
		f := Found{Kind: OfDevice, What: p.Device.String(), Bound: out.Bound, Measured: float64(p.Bytes), Time: p.Time}
		f.Line, f.LineBytes = largestLine(in.Peak, p.Layer.String(), f.What)
		out.Found = append(out.Found, f)
	}
	return out.worst()
}

// worst keeps what fails a rule, or what comes nearest to it, and decides.
func (r Result) worst() Result {
	slices.SortStableFunc(r.Found, func(a, b Found) int {
		switch x, y := a.Measured-a.Bound, b.Measured-b.Bound; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	if len(r.Found) == 0 {
		r.Status = Unknown
		return r
	}
	r.Measured = r.Found[0].Measured
	n := 0
	for n < len(r.Found) && r.Found[n].Measured > r.Found[n].Bound {
		n++
	}
	if n > 0 {
		r.Status = Failed
	}
	r.Found = r.Found[:max(1, n)]
	return r
}

// largestLine is the line that has the most of a layer on a device.
func largestLine(entries []view.Row, layer, device string) (view.Call, uint64) {
	var of []view.Row
	for i := range entries {
		if e := &entries[i]; e.Layer == layer && e.Device == device {
			of = append(of, *e)
		}
	}
	rows := view.GroupRows(of, view.ByLine)
	if len(rows) == 0 || rows[0].Bytes <= 0 {
		return view.Call{}, 0
	}
	return callOf(&rows[0]), uint64(rows[0].Bytes)
}

func callOf(e *view.Row) view.Call {
	return view.Call{Name: e.Name, Func: e.Func, File: e.File, Line: e.Line}
}

// judgeGrowth compares what all findings grow by together.
func judgeGrowth(rules *Rules, in *Input) Result {
	out := Result{Rule: MaxGrowth, Status: Passed, Bound: *rules.MaxGrowth, Leaks: in.Leaks}
	out.Found = findings(in.Leaks.Findings, in.Leaks.Notes)
	for i := range out.Found {
		out.Measured += out.Found[i].Measured
	}
	switch {
	case out.Measured > out.Bound:
		out.Status = Failed
	case unclear(in.Leaks):
		out.Status, out.Measured = Unknown, math.NaN()
	}
	return out
}

// judgeLeaks counts findings, or with a tolerance all lines that grow by more.
func judgeLeaks(rules *Rules, in *Input) Result {
	out := Result{Rule: NoLeaks, Status: Passed, Leaks: in.Leaks, LeakTolerance: rules.LeakTolerance}
	out.Found = findings(in.Leaks.Findings)
	if most := rules.LeakTolerance; most != nil {
		out.Found = slices.DeleteFunc(findings(in.Leaks.Findings, in.Leaks.Notes), func(f Found) bool { return f.Measured <= *most })
	}
	out.Measured = float64(len(out.Found))
	switch {
	case len(out.Found) > 0:
		out.Status = Failed
	case unclear(in.Leaks):
		out.Status, out.Measured = Unknown, math.NaN()
	}
	return out
}

// unclear reports whether it cannot be said that nothing grows.
func unclear(r *leaks.Report) bool {
	return len(r.Findings) == 0 && (r.Verdict == leaks.Unclear || r.Steps.Source == "" || r.Steps.Count < leaks.MinSteps)
}

func findings(all ...[]leaks.Finding) []Found {
	var out []Found
	for _, f := range pointers(all) {
		grown := f.Requested
		if math.IsNaN(grown) {
			grown = f.Bytes
		}
		out = append(out, Found{
			Kind: OfLine, Line: view.Call{Name: f.Name(), Func: f.Function, File: f.File, Line: f.Line}, Measured: grown, Finding: f,
		})
	}
	return out
}

func pointers(all [][]leaks.Finding) []*leaks.Finding {
	var out []*leaks.Finding
	for _, some := range all {
		for i := range some {
			out = append(out, &some[i])
		}
	}
	return out
}

// judgeOOM counts requests that were refused.
func judgeOOM(_ *Rules, in *Input) Result {
	out := Result{Rule: NoOOM, Status: Passed, Measured: float64(len(in.Refused) + in.Skipped)}
	for i := range in.Refused {
		r := &in.Refused[i]
		out.Found = append(out.Found, Found{Kind: OfRequest, What: r.Device.String(), Line: r.Site, Measured: float64(r.Bytes), Time: r.Time})
	}
	if len(in.Refused) > 0 {
		out.Status = Failed
	}
	return out
}

// AllDevices is what the whole peak is called in the results of a baseline.
const AllDevices = "all devices"

// judgeBaseline compares the peak with that of the baseline: all of it, each line, and each category.
func judgeBaseline(rules *Rules, in *Input) Result {
	out := Result{Rule: Baseline, Status: Passed, Bound: rules.Tolerance, Measured: math.NaN(), Tolerance: rules.Tolerance}
	if len(in.Baseline) == 0 || len(in.Peak) == 0 {
		out.Status = Unknown
		return out
	}
	lines := view.Diff(in.Baseline, in.Peak, view.ByLine)
	out.exceeds(Found{Kind: OfDevice, What: AllDevices, Bound: float64(lines.Before.Bytes), Measured: float64(lines.After.Bytes)})
	if lines.Before.Bytes > 0 {
		out.Measured = float64(lines.Bytes()) / float64(lines.Before.Bytes)
	}
	for i := range lines.Rows {
		f := changed(&lines.Rows[i])
		f.Kind, f.Line = OfLine, callOf(lines.Rows[i].Row())
		out.exceeds(f)
	}
	if !in.Categories {
		return out
	}
	categories := view.Diff(in.Baseline, in.Peak, view.ByCategory)
	for i := range categories.Rows {
		f := changed(&categories.Rows[i])
		f.Kind, f.What = OfCategory, categories.Rows[i].Row().Name
		out.exceeds(f)
	}
	return out
}

// exceeds notes what is farther above its baseline than is allowed.
func (r *Result) exceeds(f Found) {
	if over := f.Measured - f.Bound; over > r.Tolerance*f.Bound && over >= Least {
		r.Status = Failed
		r.Found = append(r.Found, f)
	}
}

// changed is the figures of a row of a difference.
func changed(c *view.Change) Found {
	var f Found
	if c.Before != nil {
		f.Bound = float64(max(0, c.Before.Bytes))
	}
	if c.After != nil {
		f.Measured = float64(c.After.Bytes)
	}
	return f
}
