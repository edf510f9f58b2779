// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// container is a place of a random program that allocates in its steps.
type container struct {
	what   string
	line   int
	size   uint64
	each   int     // blocks of a step in which it allocates
	every  int     // steps between two of those
	grows  float64 // bytes each step
	until  int     // a queue: it has no more blocks than that; 0: it has no bound
	stays  int     // a queue: each so many-th that is added takes none out; 0: each does
	period int     // garbage: it is freed that often
	from   int     // it begins after a step
	blocks fifo
	added  int
}

func (c *container) name() string { return fmt.Sprintf("job.py:%d f", c.line) }

// step is what a container does in a step.
func (c *container) step(p *program, i int) {
	if i <= c.from || i%c.every != 0 {
		return
	}
	for range c.each {
		c.blocks.push(p, at(c.line, "f"), c.size)
		if c.added++; c.until > 0 && len(c.blocks) > c.until && (c.stays == 0 || c.added%c.stays != 0) {
			c.blocks.pop(p)
		}
	}
	if c.period > 0 && i%c.period == 0 {
		c.blocks.drop(p)
	}
}

// randomContainer is one of a kind.
func randomContainer(r *rand.Rand, line int) *container {
	c := &container{line: line, size: uint64(1+r.IntN(64)) << (9 + r.IntN(9)), each: 1 + r.IntN(3), every: 1}
	each := float64(c.each) * float64(c.size)
	switch r.IntN(6) {
	case 0:
		c.what, c.grows, c.every = "list", each, 1+r.IntN(4)
		c.grows /= float64(c.every)
	case 1:
		c.what, c.until = "queue", 1+r.IntN(50)
	case 2:
		c.what, c.until, c.stays = "queue that grows", 1+r.IntN(50), 2+r.IntN(4)
		c.grows = each / float64(c.stays)
	case 3:
		c.what, c.period = "garbage", 5+r.IntN(35)
	case 4:
		c.what, c.from, c.grows = "list that begins late", 50+r.IntN(150), each
	case 5:
		c.what, c.until = "cache", 20+r.IntN(100)
	}
	return c
}

// seeds is how many programs are tried; 300 were.
const seeds = 30

// TestRandomPrograms: of small programs of random containers, what is said is what they do, each line to the byte and no other.
func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := &program{job: *newJob(), random: r}
		var all []*container
		want, what := truth{}, ""
		for i := range 1 + r.IntN(5) {
			c := randomContainer(r, 10+i)
			if all = append(all, c); c.grows > 0 {
				want[c.name()] = c.grows
			}
			what += fmt.Sprintf("%+v\n", *c)
		}
		if len(want) == 0 {
			want = nil
		}
		passes, attach, from := 1+r.IntN(4), r.IntN(2)*100, 0
		for i := 1; i <= 500+attach; i++ {
			p.step(1 + r.IntN(passes))
			for _, c := range all {
				c.step(p, i)
			}
			if i == attach {
				from = len(p.Events)
			}
		}
		p.Events = p.Events[from:]
		for where, report := range map[string]*leaks.Report{"recording": p.find(t, nil), "live": p.watch(nil).Report(nil)} {
			requireTruth(t, fmt.Sprintf("%d, %s, attached after %d:\n%s", seed, where, attach, what), want, report)
		}
	}
}
