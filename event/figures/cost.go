// SPDX-License-Identifier: Apache-2.0

package figures

import (
	"fmt"
	"strconv"
	"time"
)

// Cost is the CPU time that tracing takes from a process, and the stacks that were left out to stay within a CPU budget.
type Cost struct {
	// Programs is the CPU time of gputrace's programs in the kernel, measured in one of 64 runs. The trap that leads to a
	// run is not in it: see Trap.
	Programs time.Duration `json:"programs_ns"`
	// Hits is the approximate number of runs.
	Hits uint64 `json:"hits"`
	// Budget limits Programs, as a share of one CPU; NodeBudget limits the sum for all traced processes, as a share of all
	// CPUs. 0 means no limit.
	Budget     float64 `json:"cpu_budget,omitempty"`
	NodeBudget float64 `json:"node_cpu_budget,omitempty"`
	// Used is the share of one CPU that Programs took in the last second.
	Used float64 `json:"-"`
	// Detail is the current share of allocations with a stack.
	Detail Detail `json:"detail"`
	// LeftOut counts the allocations whose stack was left out because of a budget, out of Allocations.
	LeftOut     uint64 `json:"stacks_left_out"`
	Allocations uint64 `json:"allocations"`
}

// trapTime is what a hit costs a program before and after gputrace's code runs: the exception of an empty uprobe
// (docs/measured/performance.md).
const trapTime = 600 * time.Nanosecond

// Trap estimates the CPU time of the exceptions by which the kernel enters gputrace's programs.
func (c *Cost) Trap() time.Duration { return time.Duration(c.Hits) * trapTime }

// Sentence returns what was left out, and why; empty: nothing was.
func (c *Cost) Sentence() string {
	if c.LeftOut == 0 {
		return ""
	}
	return fmt.Sprintf("stacks of %d of %d allocations were left out: gputrace reached its CPU budget of %s "+
		"(--cpu-budget; cpu_budget of the agent)", c.LeftOut, c.Allocations, c.Limit())
}

// Limit returns the budgets in words.
func (c *Cost) Limit() string {
	switch {
	case c.NodeBudget == 0:
		return percent(c.Budget)
	case c.Budget == 0:
		return percent(c.NodeBudget) + " of the node"
	default:
		return percent(c.Budget) + ", or " + percent(c.NodeBudget) + " of the node"
	}
}

func percent(share float64) string { return strconv.FormatFloat(100*share, 'g', 3, 64) + " %" }

// Detail is the share of allocations with a stack.
type Detail uint8

// The details, in the order in which they are taken when a budget is exceeded. Each allocation and each free is recorded
// with its bytes in all of them.
const (
	FullDetail      Detail = iota // every allocation has a stack
	QuarterDetail                 // one of four, chosen at random
	SixteenthDetail               // one of sixteen
	NoDetail                      // none; failed requests and the beginnings of steps still have theirs
	Details                       // the number of details
)

var detailNames = [Details]string{"full", "quarter", "sixteenth", "none"}

func (d Detail) String() string {
	if d < Details {
		return detailNames[d]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (d Detail) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Detail) UnmarshalText(text []byte) error {
	for i, name := range detailNames {
		if name == string(text) {
			*d = Detail(i)
			return nil
		}
	}
	*d = Details // of a newer version
	return nil
}

// Words returns the detail for people.
func (d Detail) Words() string {
	return map[Detail]string{
		FullDetail: "every allocation has a stack", QuarterDetail: "one allocation of 4 has a stack",
		SixteenthDetail: "one allocation of 16 has a stack", NoDetail: "no allocation has a stack",
	}[d]
}
