// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"math"
	"slices"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/ranks"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/sorts"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Process is one process of a job, with its answer.
type Process struct {
	ranks.Identity
	Answer *Answer // nil: none
}

// Job has the answers for a job: for each group of its processes, and for the memory of all.
type Job struct {
	Groups []Group // processes with the same conclusion, the worst first
	All    *Answer // memory of all processes; the verdict is the first group's
}

// Group is processes with the same conclusion.
type Group struct {
	Which     string // "ranks 0-3"
	Processes []int  // positions in the job, ascending
	Answer    *Answer
}

// severity orders conclusions, the worst first.
type severity uint8

const (
	severityFatal severity = iota
	severityGrowing
	severityCaught
	severityUnknown
	severitySteady
	severityNone
)

func severityOf(a *Answer) severity {
	switch {
	case a == nil || a.Case == nil && a.Leaks == nil:
		return severityNone
	case a.Case != nil && a.Case.Caught != oom.Yes:
		return severityFatal
	case a.Growing():
		return severityGrowing
	case a.Case != nil:
		return severityCaught
	case a.Leaks.Verdict == leaks.Steady:
		return severitySteady
	}
	return severityUnknown
}

// sameConclusion identifies a conclusion: processes with the same one form a group.
type sameConclusion struct {
	severity severity
	place    string // where it failed or grows
	decision oom.Decision
}

func conclusionOf(a *Answer) sameConclusion {
	out := sameConclusion{severity: severityOf(a)}
	switch out.severity {
	case severityFatal, severityCaught:
		out.place, out.decision = a.Case.Site, a.Case.Decision
	case severityGrowing:
		out.place = a.Leaks.Findings[0].Name()
	}
	return out
}

// NewJob computes the answers for a job from its processes, at least one.
func NewJob(all []Process) *Job {
	ids := make([]ranks.Identity, len(all))
	positions := map[sameConclusion][]int{}
	for i := range all {
		ids[i] = all[i].Identity
		if c := conclusionOf(all[i].Answer); c.severity != severityNone {
			positions[c] = append(positions[c], i)
		}
	}
	out := &Job{}
	for _, at := range positions {
		out.Groups = append(out.Groups, Group{ranks.Which(at, ids), at, worst(all, at)})
	}
	sorts.Func(out.Groups, func(x, y Group) int {
		return cmp.Or(cmp.Compare(severityOf(x.Answer), severityOf(y.Answer)), cmp.Compare(y.Answer.Rate, x.Answer.Rate),
			cmp.Compare(x.Processes[0], y.Processes[0]))
	})
	out.All = together(all, ids)
	if len(out.Groups) > 0 {
		out.All.Leaks, out.All.Case = out.Groups[0].Answer.Leaks, out.Groups[0].Answer.Case
	}
	return out
}

// worst returns the answer of the process that failed first or grows fastest.
func worst(all []Process, at []int) *Answer {
	best := all[at[0]].Answer
	for _, i := range at[1:] {
		a := all[i].Answer
		if a.Case != nil && best.Case != nil {
			if a.Case.Time < best.Case.Time {
				best = a
			}
		} else if a.Rate > best.Rate {
			best = a
		}
	}
	return best
}

// jobRow identifies the rows of several processes that become one row of the job.
type jobRow struct {
	holder, place string
	category      string
	growing       bool
}

// together adds up the memory of all processes. It merges rows of different processes that have the same holder or the same line.
func together(all []Process, ids []ranks.Identity) *Answer {
	out := &Answer{Seconds: math.NaN(), When: AtEnd}
	rows, of := map[jobRow]*Row{}, map[jobRow][]int{}
	for i := range all {
		a := all[i].Answer
		if a == nil {
			continue
		}
		out.add(a)
		for k := range a.parts {
			r := &a.parts[k]
			key := jobRow{growing: r.Finding != nil, category: string(r.Category), place: r.place()}
			if r.Holder != "" {
				key.holder, key.place = varpath.Key(r.Holder), ""
			}
			if rows[key] == nil {
				rows[key] = &Row{Holder: r.Holder, Category: r.Category, Named: r.Named, Finding: r.Finding, Lines: r.Lines, purpose: r.purpose}
			}
			rows[key].join(r)
			if n := len(of[key]); n == 0 || of[key][n-1] != i {
				of[key] = append(of[key], i)
			}
		}
	}
	for key, r := range rows {
		r.Which = ranks.Which(of[key], ids)
		if out.Total > 0 {
			r.Share = float64(r.Bytes) / float64(out.Total)
		}
		out.Rows = append(out.Rows, *r)
	}
	out.order()
	return out
}

// place returns the line that allocated most of a row; empty: none.
func (r *Row) place() string {
	if len(r.Lines) == 0 {
		return ""
	}
	return site(&r.Lines[0])
}

// join adds a row of another process.
func (r *Row) join(other *Row) {
	r.Bytes, r.Blocks, r.Inferred, r.Rate = r.Bytes+other.Bytes, r.Blocks+other.Blocks, r.Inferred+other.Inferred, r.Rate+other.Rate
	if other.Finding != nil && (r.Finding == nil || other.Finding.Bytes > r.Finding.Bytes) {
		r.Finding, r.Holder, r.Lines = other.Finding, other.Holder, other.Lines
	}
}

// add adds the totals of a process.
func (a *Answer) add(of *Answer) {
	if a.Start == 0 {
		a.When, a.Start, a.End = of.When, of.Start, of.End
	}
	if a.When != of.When {
		a.When = EachAtItsOwn
	}
	a.Start, a.End, a.Duration = min(a.Start, of.Start), max(a.End, of.End), max(a.Duration, of.Duration)
	a.Events += of.Events
	a.Total, a.Now, a.Peak, a.Rate = a.Total+of.Total, a.Now+of.Now, a.Peak+of.Peak, a.Rate+of.Rate
	a.Asleep, a.Released = a.Asleep+of.Asleep, a.Released+of.Released
	a.Silent = cmp.Or(a.Silent, of.Silent)
	a.Sampled.add(&of.Sampled)
	if of.Torch {
		if !a.Torch {
			a.Torch, a.Reserved = true, 0
		}
		a.Reserved = plus(a.Reserved, of.Reserved)
	}
	if of.Seconds < a.Seconds || math.IsNaN(a.Seconds) {
		a.Seconds, a.Left = of.Seconds, of.Left
	}
	for i := range of.Driver {
		a.addDriver(&of.Driver[i])
	}
}

// addDriver adds a process's use of a device. The use by all processes is the largest figure that was read.
func (a *Answer) addDriver(d *figures.DriverUse) {
	at := slices.IndexFunc(a.Driver, func(x figures.DriverUse) bool { return x.Device == d.Device })
	if at < 0 {
		a.Driver = append(a.Driver, *d)
		return
	}
	x := &a.Driver[at]
	x.Used = figures.Bytes(plus(uint64(x.Used), uint64(d.Used)))
	if d.All != figures.Unknown && (x.All == figures.Unknown || d.All > x.All) {
		x.All = d.All
	}
}

// order selects the rows that are shown, as for a single process, and adds up the others by purpose.
func (a *Answer) order() {
	sorts.Func(a.Rows, func(x, y Row) int {
		return cmp.Or(compareGrowth(x.Finding, y.Finding), cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Holder, y.Holder),
			cmp.Compare(x.place(), y.place()),
			cmp.Compare(x.Which, y.Which))
	})
	a.parts = a.Rows
	a.Rows, a.Rest = nil, nil
	growing, sums := 0, map[string]int64{}
	for i := range a.parts {
		r := &a.parts[i]
		if r.Finding != nil {
			growing++
		}
		if isShown(r, len(a.Rows), growing, a.Total) {
			a.Rows = append(a.Rows, *r)
		} else {
			sums[r.purpose] += r.Bytes
		}
	}
	a.Rest = sumsOf(sums)
}
