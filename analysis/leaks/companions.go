// SPDX-License-Identifier: Apache-2.0

package leaks

import "github.com/gputrace/gputrace/analysis/leaks/internal/floors"

// A loop that keeps several blocks each time, such as the tensors of a model, keeps them at one line in the same steps. The
// sites of the line reach the number of rises needed for a proof at different times: older blocks are freed and hide the
// first rises of some. So when one site is proved to rise, sites that rise in the same steps are taken as proved too.
const (
	// minMatches is the number of rises of a companion that must fall into steps in which the proved site rises too.
	minMatches = 2
	// leastApart is the least distance between rises that can be matched: a site that rises in each step rises together
	// with everything.
	leastApart = 2
	// besideFactor: a line is accepted with fewer rises if it keeps at most besideFactor times as much as the proved
	// lines of its period.
	besideFactor = 4
)

// alike defines when sites count as rising in the same steps.
type alike struct {
	matches int
	anyLine bool // false: they must be of one line
}

// key returns what two sites must have in common to be companions.
func (a alike) key(p place, of line) lineKey {
	if a.anyLine {
		return lineKey{place: p}
	}
	return lineKey{p, of}
}

// withCompanions adds the sites that rise in the same steps as series that are proved to rise.
func (d *detector) withCompanions(all []risen, by alike) []risen {
	leads := map[lineKey][]*risen{}
	known := map[siteKey]bool{}
	for i := range all {
		r := &all[i]
		if r.from == nil {
			continue
		}
		known[r.site] = true
		if k := by.key(r.place, r.from.line); r.linear && r.period >= leastApart {
			leads[k] = append(leads[k], r)
		}
	}
	if len(leads) == 0 {
		return all
	}
	out := all
	for k, s := range d.sites {
		if s.windows == nil || known[k] {
			continue
		}
		d.learn(k.stack, s.source)
		for _, lead := range leads[by.key(k.place, s.source.line)] {
			if t, ok := s.companion(lead, &d.sites[lead.site].series, by); ok {
				out = append(out, risen{trend: t, place: k.place, line: s.source.line, from: s.source, site: k, stack: s.source.stack})
				break
			}
		}
	}
	return out
}

// beside adds the lines that rise at the period of proved ones, with at least suspectRises rises so far, unless they
// rise by much more: in a loop, another line reaches the number of rises of a proof one period later.
func (d *detector) beside(all []risen) []risen {
	type rhythm struct {
		place  place
		period int
	}
	proved, lines := map[rhythm]float64{}, map[lineKey]bool{}
	for i := range all {
		r := &all[i]
		lines[lineKey{r.place, r.line}] = true
		if r.from != nil && r.linear && r.period > floors.WarmUp {
			proved[rhythm{r.place, r.period}] += r.step.bytes
		}
	}
	if len(proved) == 0 {
		return all
	}
	sums := map[lineKey]float64{}
	var more []risen
	for _, r := range d.withCompanions(d.withoutExchange(d.recurring(suspectRises)), alike{matches: minMatches}) {
		k := lineKey{r.place, r.line}
		if !lines[k] && proved[rhythm{r.place, r.period}] > 0 {
			more, sums[k] = append(more, r), sums[k]+r.step.bytes
		}
	}
	for _, r := range more {
		if sums[lineKey{r.place, r.line}] <= besideFactor*proved[rhythm{r.place, r.period}] {
			all = append(all, r)
		}
	}
	return all
}

// companion returns the trend of a series if each of its rises after the warm-up, up to the latest, falls into a step
// in which another series rises, and all are of the same amount. Otherwise ok is false.
func (s *series) companion(lead *risen, of *series, by alike) (trend, bool) {
	n := len(s.rungs)
	if n < 2 || len(of.rungs) == 0 {
		return trend{}, false
	}
	apart := 0
	if by.anyLine { // a later line of the loop can run in the next step
		apart = 1
	}
	steps := map[int]bool{}
	for _, r := range of.rungs {
		for i := -apart; i <= apart; i++ {
			steps[r.step+i] = true
		}
	}
	if d := s.rungs[n-1].step - of.rungs[len(of.rungs)-1].step; max(d, -d) > apart {
		return trend{}, false
	}
	left := s.rungFloors()
	each := left[n-1].Minus(left[n-2])
	first := n // the first rise that matches
	for first > 1 && s.rungs[first-1].step > floors.WarmUp {
		// a freed block can have hidden a part of an earlier rise
		if !steps[s.rungs[first-1].step] || n-first < by.matches && !sameAmount(left[first-1].Minus(left[first-2]), each) {
			break
		}
		first--
	}
	if n-first < by.matches || n-first > 1 && !s.keepsTime(lead.period, by.matches) {
		return trend{}, false
	}
	rise := left[n-1].Minus(left[first-1])
	if first > 1 && s.rungs[first-1].step > of.rungs[0].step+apart || s.fall >= rise.Blocks {
		return trend{}, false
	}
	latest := s.latest()
	t := trend{
		linear: true, period: lead.period, step: over(each, lead.period), first: max(1, s.rungs[first].step-1), rise: rise,
		live: latest[len(latest)-1].Plus(s.lent),
	}
	t.periods, t.base = (s.step-t.first)/t.period, min(t.first/s.width, len(s.windows)-1)
	return t, !s.byChance(t.base)
}

// keepsTime reports whether the latest two rises are one period apart. For a suspect, one rise in between may be missing.
func (s *series) keepsTime(period, matches int) bool {
	n := len(s.rungs)
	gap := s.rungs[n-1].step - s.rungs[n-2].step
	return gap == period || matches < minMatches && gap%period == 0
}

// rungFloors returns what survives of each rung.
func (s *series) rungFloors() []floor {
	all := make([]floor, len(s.rungs))
	for i := range all {
		all[i] = s.rungs[i].floor
	}
	return floors.Survivors(all)
}
