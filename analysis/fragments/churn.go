// SPDX-License-Identifier: Apache-2.0

package fragments

import (
	"cmp"
	"fmt"
	"math"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/sorts"
)

// Churn is the temporaries of a program: blocks that are freed by the thread that allocated them, in the phase of the step in which that
// was (phases.Temporary). Sizes are bytes of blocks.
type Churn struct {
	Steps   int     // complete steps
	PerStep float64 // mean bytes of a complete step; NaN: there is none
	Most    uint64  // of the step with the most
	MostAt  int     // its number; 0: there is none
	// Bytes and Blocks are all of the trace, also outside steps; Allocated is all blocks, temporary or not.
	Bytes, Blocks, Allocated uint64
	Sites                    []ChurnSite // by bytes, largest first
}

// ChurnSite is the temporaries of one line.
type ChurnSite struct {
	Site          string
	Bytes, Blocks uint64
}

// ChurnOf adds up the temporaries of a trace, by the step in which they were freed. The trace is replayed once.
func ChurnOf(t *view.Trace, table *steps.Table) (*Churn, error) {
	c := &churn{
		trace: t, table: table, follow: t.Classifier().Follow(), starts: map[heap.BlockKey]phases.Start{}, bySite: map[string]*ChurnSite{},
		byStep: map[int]uint64{},
	}
	err := t.Replay(&view.Visitor{
		Before:    func(e *event.Event, _ *heap.Heap) { c.follow.See(e) },
		Allocated: c.allocated,
		Freed:     c.freed,
		Moved:     func(_, _ *heap.Block) {}, // of device memory only
	})
	if err != nil {
		return nil, fmt.Errorf("follow the temporaries: %w", err)
	}
	return c.finish(), nil
}

// churn follows the blocks that are in use.
type churn struct {
	Churn
	trace  *view.Trace
	table  *steps.Table
	follow *phases.Lifetimes
	starts map[heap.BlockKey]phases.Start
	bySite map[string]*ChurnSite
	byStep map[int]uint64
}

func (c *churn) allocated(b *heap.Block, e *event.Event) {
	if b.Layer != event.LayerAllocator || e == nil || e.Kind != event.KindAlloc {
		return
	}
	c.Allocated += b.Size
	c.starts[b.Key()] = c.follow.Start(b, e.TID, true)
}

func (c *churn) freed(b *heap.Block, e *event.Event, time uint64) {
	s, ok := c.starts[b.Key()]
	if !ok || e == nil {
		return
	}
	delete(c.starts, b.Key())
	if c.follow.Freed(&s, e.TID) != phases.Temporary {
		return
	}
	c.Bytes, c.Blocks = c.Bytes+b.Size, c.Blocks+1
	c.byStep[c.table.At(time)] += b.Size
	name := c.trace.SiteName(b)
	if c.bySite[name] == nil {
		c.bySite[name] = &ChurnSite{Site: name}
	}
	c.bySite[name].Bytes += b.Size
	c.bySite[name].Blocks++
}

func (c *churn) finish() *Churn {
	out := &c.Churn
	out.Steps, out.PerStep = c.table.Count(), math.NaN()
	sum := uint64(0)
	for step := c.table.First(); out.Steps > 0 && step < c.table.Last(); step++ { // the last one is not complete
		sum += c.byStep[step]
		if out.MostAt == 0 || c.byStep[step] > out.Most {
			out.Most, out.MostAt = c.byStep[step], step
		}
	}
	if out.Steps > 0 {
		out.PerStep = float64(sum) / float64(out.Steps)
	}
	for _, s := range c.bySite {
		out.Sites = append(out.Sites, *s)
	}
	sorts.Func(out.Sites, func(x, y ChurnSite) int { return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Site, y.Site)) })
	return out
}
