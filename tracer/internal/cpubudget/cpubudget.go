// SPDX-License-Identifier: Apache-2.0

// Package cpubudget decides how many stacks of each process are left out, so that tracing stays within a budget of CPU time.
// It takes measurements and returns decisions; it accesses no kernel and no clock.
package cpubudget

import (
	"cmp"
	"slices"

	"github.com/gputrace/gputrace/event/figures"
)

// Limits are budgets in CPUs: 0.01 is 1 % of one CPU. 0 means no limit.
type Limits struct {
	Process float64 // for each process
	Node    float64 // for all processes together
}

// Use is the cost of tracing a process in one interval.
type Use struct {
	CPU  float64 // CPUs that the programs used
	Hits float64 // runs of the programs
}

const (
	// enoughHits and longestWindow end a window of intervals, over which the use of a process is averaged: only some of the hits
	// are timed, and one that is slow by chance must not look like a second that is.
	enoughHits    = 1000
	longestWindow = 10
	// overTwice is the number of windows in a row that must exceed the budget before the detail is reduced the first time.
	overTwice = 2
	// firstCalm is the number of intervals for which more detail must fit the budgets before it is taken. It doubles, up to
	// longestCalm, each time that the detail turns out not to fit soon after.
	firstCalm   = 8
	longestCalm = 512
	// fits is the share of a budget that more detail may take by estimate.
	fits = 0.75
)

// Process is the state of one process. The zero value has full detail.
type Process struct {
	detail figures.Detail
	use    Use // of an interval, in the last window
	window Use // sum since then
	age    int // number of intervals in window

	hit    [figures.Details]float64 // CPU time of a hit at each detail, as last measured; 0: not measured
	over   int                      // windows in a row that exceeded the budget of a process or the node
	calm   int                      // intervals for which more detail has fitted
	wanted figures.Detail           // the most detail that has fitted in all of them
	need   int                      // what calm must reach; 0: firstCalm
	since  int                      // intervals since more detail was taken; 0: it never was
}

// Detail returns the decision of the last Step.
func (p *Process) Detail() figures.Detail { return p.detail }

// Add adds the use of an interval. It is called for each process before each Step.
func (p *Process) Add(u Use) {
	p.window.CPU += u.CPU
	p.window.Hits += u.Hits
	p.age++
	if p.since > 0 {
		p.since++
	}
}

// Step decides the detail of each process for the next interval. Detail is reduced while a budget is exceeded, one step per window, and
// comes back when it is expected to fit for some time.
func (l Limits) Step(all []*Process) {
	var measured []*Process
	sum := 0.0
	for _, p := range all {
		if p.measure() {
			measured = append(measured, p)
		}
		sum += p.use.CPU
	}
	slices.SortStableFunc(measured, func(x, y *Process) int { return cmp.Compare(x.use.CPU, y.use.CPU) })
	pay := l.share(measured, sum, len(all))
	for _, p := range measured {
		if pay[p] || l.Process > 0 && p.use.CPU > l.Process {
			p.exceed()
		} else {
			p.over = 0
			sum += l.restore(p, sum)
		}
		p.window, p.age = Use{}, 0
	}
}

// measure ends the window if it is long enough.
func (p *Process) measure() bool {
	if p.window.Hits < enoughHits && p.age < longestWindow {
		return false
	}
	p.use = Use{p.window.CPU / float64(p.age), p.window.Hits / float64(p.age)}
	if p.use.Hits > 0 {
		p.hit[p.detail] = p.use.CPU / p.use.Hits
	}
	return true
}

// share returns the processes that pay for exceeding the budget of the node: those that use more than an equal share of it or, if there
// are none, the one that uses most, among those that can still be reduced. measured is sorted by use.
func (l Limits) share(measured []*Process, sum float64, processes int) map[*Process]bool {
	if l.Node == 0 || sum <= l.Node {
		return nil
	}
	pay := map[*Process]bool{}
	var most *Process
	for _, p := range measured {
		if p.detail == figures.NoDetail {
			continue
		}
		most = p
		if p.use.CPU > l.Node/float64(processes) {
			pay[p] = true
		}
	}
	if len(pay) == 0 && most != nil {
		pay[most] = true
	}
	return pay
}

// exceed reduces the detail, unless the budget was exceeded for the first time.
func (p *Process) exceed() {
	p.calm = 0
	if p.over++; p.over < overTwice || p.detail == figures.NoDetail {
		return
	}
	p.detail++
	switch {
	case p.since > 0 && p.since <= 2*p.needed():
		p.need = min(2*p.needed(), longestCalm)
	case p.since > 0:
		p.need = firstCalm
	}
	p.since = 0
}

func (p *Process) needed() int { return cmp.Or(p.need, firstCalm) }

// restore takes more detail if it has fitted for long enough. It returns by how much the sum of all processes is expected to rise.
func (l Limits) restore(p *Process, sum float64) (more float64) {
	best := p.detail
	for best > figures.FullDetail && l.holds(p, best-1, sum) {
		best--
	}
	if best == p.detail {
		p.calm = 0
		return 0
	}
	if p.calm == 0 {
		p.wanted = best
	}
	p.calm += p.age
	p.wanted = max(p.wanted, best)
	if p.calm < p.needed() {
		return 0
	}
	more = p.expected(p.wanted) - p.use.CPU
	p.detail, p.calm, p.since = p.wanted, 0, 1
	return max(more, 0)
}

// expected returns the use of a process at another detail. A detail that was never measured is expected to cost what hits cost now.
func (p *Process) expected(d figures.Detail) float64 {
	return cmp.Or(p.hit[d], p.hit[p.detail]) * p.use.Hits
}

// holds reports whether a process fits the budgets with another detail.
func (l Limits) holds(p *Process, d figures.Detail, sum float64) bool {
	cpu := p.expected(d)
	return (l.Process == 0 || cpu <= fits*l.Process) && (l.Node == 0 || sum-p.use.CPU+cpu <= fits*l.Node)
}
