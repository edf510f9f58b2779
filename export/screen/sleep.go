// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"

	"github.com/gputrace/gputrace/analysis/sleep"
	"github.com/gputrace/gputrace/export/table"
)

// asleep prints how often the memory of segments was released and taken back, what stayed on the device meanwhile, and what was different
// afterwards.
func (p *printer) asleep() {
	cycles := p.a.Sleep
	if len(cycles) == 0 {
		return
	}
	last := &cycles[len(cycles)-1]
	times := table.Times(uint64(len(cycles)))
	if last.To == 0 {
		times += ", now since " + table.Offset(last.From, p.in.Begin())
	}
	stayed := "stayed " + table.Bytes(last.Stayed)
	if rise := sleep.Rise(cycles); rise > 0 {
		stayed = fmt.Sprintf("stayed %s, then %s: at least %s more each time", table.Bytes(cycles[0].Stayed), table.Bytes(last.Stayed),
			table.Bytes(rise))
	}
	parts := []string{times, "released " + table.Bytes(last.Released), stayed}
	for i := len(cycles) - 1; i >= 0; i-- {
		if c := &cycles[i]; c.To != 0 {
			parts = append(parts, returned(c))
			break
		}
	}
	p.list("  asleep   ", parts)
}

// returned states whether a cycle ended with as much memory on the device as before.
func returned(c *sleep.Cycle) string {
	switch n := c.Change(); {
	case n > 0:
		return table.Bytes(uint64(n)) + " more than before when awake again"
	case n < 0:
		return table.Bytes(uint64(-n)) + " less than before when awake again"
	}
	return "as much as before when awake again"
}
