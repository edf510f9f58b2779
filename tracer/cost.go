// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package tracer

import (
	"runtime"
	"time"

	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/tracer/internal/cpubudget"
)

// costEvery is the interval at which the cost of each process is measured and compared with the budgets.
const costEvery = time.Second

// costs measures what tracing costs each process.
type costs struct {
	taken    time.Time
	problems int // how often the kernel did not take a decision
}

// cost is what tracing costs one process.
type cost struct {
	programs time.Duration
	hits     uint64
	total    figures.Cost // without what the decoder counts
	budget   cpubudget.Process
	applied  figures.Detail // what the kernel has
}

// take adds what a process has cost since the last time, given the kernel's counters. It returns the difference. The counters begin
// anew when the process gets another place in the kernel's table.
func (c *cost) take(programs time.Duration, hits uint64) (time.Duration, uint64) {
	if programs < c.programs || hits < c.hits {
		c.programs, c.hits = 0, 0
		c.applied = figures.Details // the kernel has none
	}
	spent, more := programs-c.programs, hits-c.hits
	c.programs, c.hits = programs, hits
	c.total.Programs += spent
	c.total.Hits += more
	return spent, more
}

// after returns the cost of the program that replaces this one: the kernel goes on counting at its place.
func (c *cost) after() cost {
	return cost{programs: c.programs, hits: c.hits, applied: figures.Details}
}

// keepBudget measures what tracing costs each process, and decides which stacks are left out.
func (tr *Tracer) keepBudget() {
	now := time.Now()
	long := now.Sub(tr.costs.taken)
	if long < costEvery || tr.detached {
		return
	}
	first := tr.costs.taken.IsZero()
	tr.costs.taken = now
	if first {
		long = costEvery
	}
	var all []*cpubudget.Process
	for _, t := range tr.hooked {
		spent, hits := t.cost.take(tr.kernel.Cost(t.place.Index))
		t.cost.total.Used = spent.Seconds() / long.Seconds()
		t.cost.budget.Add(cpubudget.Use{CPU: t.cost.total.Used, Hits: float64(hits) / long.Seconds()})
		all = append(all, &t.cost.budget)
	}
	limits := cpubudget.Limits{Process: tr.options.CPUBudget, Node: tr.options.NodeCPUBudget * float64(runtime.NumCPU())}
	if limits == (cpubudget.Limits{}) {
		return
	}
	limits.Step(all)
	for _, t := range tr.hooked {
		t.setDetail()
	}
}

// setDetail has the kernel follow the decision about a process.
func (t *Target) setDetail() {
	d := t.cost.budget.Detail()
	t.cost.total.Detail = d
	if d == t.cost.applied {
		return
	}
	if err := t.tracer.kernel.SetDetail(t.place.Index, d); err != nil {
		if t.tracer.costs.problems++; t.tracer.costs.problems == 1 {
			t.tracer.warn(err)
		}
		return
	}
	t.cost.applied = d
}

// Cost returns what tracing has cost the process, as last measured.
func (t *Target) Cost() figures.Cost {
	c := t.cost.total
	c.Budget, c.NodeBudget = t.tracer.options.CPUBudget, t.tracer.options.NodeCPUBudget
	c.LeftOut, c.Allocations = t.records.LeftOut()
	return c
}
