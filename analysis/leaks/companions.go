// SPDX-License-Identifier: Apache-2.0

package leaks

// A loop that keeps several blocks each time, such as the tensors of a model, keeps them at one line in the same steps. The sites of the line reach
// the number of rises of a proof at different times: blocks that were in use before the first rise leave in their place, and the first rises of some
// are lost. What is proved of one site holds of those that rise with it.
const (
	// minMatches is how many rises of a companion must fall into steps in which the proved site rises too.
	minMatches = 2
	// leastApart is the least distance of rises that can be matched: what rises each step rises together with everything.
	leastApart = 2
	// besideFactor is how many times as much as what is proved of a period a line may keep for it to be believed with fewer rises.
	besideFactor = 4
)

// alike is what the sites that rise in the same steps must have in common, and how often they must do so.
type alike struct {
	matches int
	anyLine bool // else they are of one line
}

// key is what two sites that can be companions have in common.
func (a alike) key(p place, of line) lineKey {
	if a.anyLine {
		return lineKey{place: p}
	}
	return lineKey{p, of}
}

// withCompanions adds to series that are known to rise the sites that rise in the same steps.
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
				out = append(out, risen{t, k.place, s.source.line, s.source, k, s.source.stack})
				break
			}
		}
	}
	return out
}

// beside adds to what is known to rise the lines that rise at the same period, so far suspectRises times or more, and not by much more: what a loop
// keeps of another line reaches the number of rises of a proof a period later.
func (d *detector) beside(all []risen) []risen {
	type rhythm struct {
		place  place
		period int
	}
	proved, lines := map[rhythm]float64{}, map[lineKey]bool{}
	for i := range all {
		r := &all[i]
		lines[lineKey{r.place, r.line}] = true
		if r.from != nil && r.linear && r.period > warmUp {
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

// companion is the trend of a series each of whose rises after the warm-up falls into a step in which another one rises, up to the latest, and by
// the same amount. ok is false for another one.
func (s *series) companion(lead *risen, of *series, by alike) (trend, bool) {
	n := len(s.rungs)
	if n < 2 || len(of.rungs) == 0 {
		return trend{}, false
	}
	apart := 0
	if by.anyLine { // what comes later in the loop can belong to the next step
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
	each := left[n-1].minus(left[n-2])
	first := n // the first rise that matches
	for first > 1 && s.rungs[first-1].step > warmUp {
		// a block that left can have taken a part of an earlier rise
		if !steps[s.rungs[first-1].step] || n-first < by.matches && !sameAmount(left[first-1].minus(left[first-2]), each) {
			break
		}
		first--
	}
	if n-first < by.matches || n-first > 1 && !s.keepsTime(lead.period, by.matches) {
		return trend{}, false
	}
	rise := left[n-1].minus(left[first-1])
	if first > 1 && s.rungs[first-1].step > of.rungs[0].step+apart || s.fall >= rise.blocks {
		return trend{}, false
	}
	latest := s.latest()
	t := trend{
		linear: true, period: lead.period, step: over(each, lead.period), first: max(1, s.rungs[first].step-1), rise: rise,
		live: latest[len(latest)-1].plus(s.lent),
	}
	t.periods, t.base = (s.step-t.first)/t.period, min(t.first/s.width, len(s.windows)-1)
	return t, !s.byChance(t.base)
}

// keepsTime reports whether the latest two rises are one period apart. Of a suspect, a rise may be lost in between.
func (s *series) keepsTime(period, matches int) bool {
	n := len(s.rungs)
	gap := s.rungs[n-1].step - s.rungs[n-2].step
	return gap == period || matches < minMatches && gap%period == 0
}

// rungFloors is what survives of each rung.
func (s *series) rungFloors() []floor {
	all := make([]floor, len(s.rungs))
	for i := range all {
		all[i] = s.rungs[i].floor
	}
	return survivors(all)
}
