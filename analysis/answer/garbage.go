// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/sorts"
)

// leastGarbage and leastGarbageBytes are the share of all memory in use, and the bytes, from which garbage is reported.
const (
	leastGarbage      = 0.25
	leastGarbageBytes = 1 << 20
)

// Garbage is memory that no variable leads to any more and that waits for Python's cycle collector. Sizes are bytes. Its
// amount varies with the collector: if little is left at the moment of the rows, the scan that found the most counts.
type Garbage struct {
	Bytes  int64
	Total  int64  // all memory in use at that time
	Time   uint64 // of the scan, CLOCK_BOOTTIME nanoseconds; 0: the moment of the rows, and Total is Answer.Total
	About  bool   // some of it is inferred: other blocks of the same line are garbage
	Holder string // holder of most of it: "garbage Linear.*"
	Advice string // how to end it
}

// garbageOf returns the garbage of an answer if it is a large part, otherwise nil. Garbage that grows has its own sentence.
func (a *Answer) garbageOf(g *grouping, in *Input) *Garbage {
	out := &Garbage{Total: a.Total, About: g.inferred}
	largest := int64(0)
	for holder, bytes := range g.garbage {
		out.Bytes += bytes
		if bytes > largest || bytes == largest && holder < out.Holder {
			largest, out.Holder = bytes, holder
		}
	}
	facts := advice.FactsOf(out.Holder, in.Facts)
	if r := in.Garbage; !out.isMuch() && r != nil && a.Case == nil {
		out = &Garbage{Bytes: int64(r.Bytes), Total: int64(r.Total), Time: r.Time, Holder: r.Holder}
		facts = advice.Facts{Cycle: r.Cycle}
	}
	if !out.isMuch() || a.Growing() && slices.ContainsFunc(a.Leaks.Findings, isOfGarbage) {
		return nil
	}
	out.Advice = advice.Text(&advice.Evidence{Layer: event.LayerAllocator, Holder: out.Holder, Facts: facts})
	return out
}

func isOfGarbage(f leaks.Finding) bool { return advice.IsGarbage(f.Holder) }

func (g *Garbage) isMuch() bool {
	return g.Bytes >= leastGarbageBytes && float64(g.Bytes) >= leastGarbage*float64(g.Total)
}

// split divides the rows of lines that allocate garbage and whose holder is not known, because their blocks are newer
// than the scan or were freed before it. As many bytes as another holder had of the line at some time are attributed to
// that holder, the rest to garbage.
func (g *grouping) split(entries []view.Row) []view.Row {
	if g.in.Garbage == nil {
		return entries
	}
	lines := map[string]*figures.GarbageLine{}
	for i := range g.in.Garbage.Lines {
		if l := g.in.Garbage.Lines[i]; l.Bytes >= l.Kept {
			lines[l.Site] = &l
		}
	}
	out := make([]view.Row, 0, len(entries)+len(lines))
	var open []view.Row
	for i := range entries {
		e := &entries[i]
		l := lines[site(e)]
		switch holder := knownHolder(e.Holder); {
		case l == nil || e.Name == stacks.BeforeAttach || e.Layer != event.LayerAllocator.String() || g.finding(e, holder) != nil:
			out = append(out, *e)
		case holder == "":
			open = append(open, *e)
		default:
			if !advice.IsGarbage(holder) {
				l.Kept -= min(l.Kept, uint64(max(0, e.Bytes)))
			}
			out = append(out, *e)
		}
	}
	for i := range open {
		e := &open[i]
		l := lines[site(e)]
		kept, waste := parted(*e, min(max(e.Bytes, 0), int64(l.Kept)))
		l.Kept -= uint64(kept.Bytes)
		waste.Holder = l.Holder
		if kept.Bytes > 0 {
			out = append(out, kept)
		}
		if waste.Bytes > 0 {
			out = append(out, waste)
			g.guessed[len(out)-1] = true
		}
	}
	return out
}

// GarbageReadings collects the garbage that holder scans find. The zero value is ready for use.
type GarbageReadings struct {
	most  figures.Garbage // without its lines
	lines map[string]*figures.GarbageLine
}

// See adds a scan that was joined with the live blocks of a view. j may be nil: there was none.
func (g *GarbageReadings) See(j *view.Joined, v *view.View) {
	if j == nil {
		return
	}
	if g.lines == nil {
		g.lines = map[string]*figures.GarbageLine{}
	}
	waste := map[string]uint64{} // bytes, by holder
	now := map[string]*figures.GarbageLine{}
	for i := range j.Rows { // the largest first
		r := &j.Rows[i]
		l := now[r.Site]
		if l == nil {
			l = &figures.GarbageLine{Site: r.Site}
			now[r.Site] = l
		}
		switch {
		case advice.IsGarbage(r.Name):
			l.Holder = cmp.Or(l.Holder, r.Name)
			l.Bytes += r.Bytes
			waste[r.Name] += r.Bytes
		case knownHolder(r.Name) != "":
			l.Kept += r.Bytes
		}
	}
	for site, l := range now {
		g.line(site, l)
	}
	g.moment(waste, j, v)
}

// line adds the result of a scan for a line.
func (g *GarbageReadings) line(site string, now *figures.GarbageLine) {
	had := g.lines[site]
	if had == nil {
		g.lines[site] = now
		return
	}
	had.Kept = max(had.Kept, now.Kept)
	if now.Bytes > had.Bytes {
		had.Holder, had.Bytes = now.Holder, now.Bytes
	}
}

// moment stores the garbage of a scan, if it is the most so far.
func (g *GarbageReadings) moment(waste map[string]uint64, j *view.Joined, v *view.View) {
	var now figures.Garbage
	for _, holder := range slices.Sorted(maps.Keys(waste)) {
		now.Bytes += waste[holder]
		if now.Holder == "" || waste[holder] > waste[now.Holder] {
			now.Holder, now.Cycle = holder, j.Facts[holder].Cycle
		}
	}
	if now.Bytes > g.most.Bytes {
		now.Time, now.Total = v.Snapshot.Time, v.Total()
		g.most = now
	}
}

// Figures returns the garbage found; nil: none.
func (g *GarbageReadings) Figures() *figures.Garbage {
	if g.most.Bytes == 0 {
		return nil
	}
	out := g.most
	for _, l := range g.lines {
		if l.Bytes > 0 {
			out.Lines = append(out.Lines, *l)
		}
	}
	sorts.Func(out.Lines, func(x, y figures.GarbageLine) int { return cmp.Compare(x.Site, y.Site) })
	return &out
}
