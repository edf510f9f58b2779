// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// run plays a program of training steps.
func run(steps int, each func(p *program) func(i int)) *program {
	p := &program{job: *newJob(), random: rand.New(rand.NewPCG(3, 4))}
	step := each(p)
	for i := 1; i <= steps; i++ {
		p.step(1)
		step(i)
	}
	return p
}

// bank is a queue that fills up to a length, of 1 MiB each second step.
func bank(p *program, length int) func(i int) {
	var q fifo
	return func(i int) {
		if i%2 == 0 {
			q.push(p, at(10, "f"), 1<<20)
		}
		if len(q) > length {
			q.pop(p)
		}
	}
}

// TestStopped: what filled up is past, with what it kept and until when, whether something else grows or not; what
// goes on, what was given back and what is little is not said.
func TestStopped(t *testing.T) {
	full := run(200, func(p *program) func(int) { return bank(p, 40) })
	beside := run(200, func(p *program) func(int) {
		fill := bank(p, 40)
		return func(i int) {
			fill(i)
			p.Alloc(at(20, "g"), 1<<16)
		}
	})
	for name, p := range map[string]*program{"full": full, "beside a leak": beside} {
		for where, got := range map[string]*leaks.Report{"recording": p.find(t, nil), "live": p.watch(nil).Report(nil)} {
			require.Len(t, got.Stopped, 1, "%s, %s", name, where)
			f := got.Stopped[0]
			require.Equal(t, "job.py:10 f", f.Name())
			require.InDelta(t, 80, f.Last, 1)
			require.Equal(t, 2, f.Period)
			require.InEpsilon(t, 1<<19, f.Requested, 0.01)
			require.EqualValues(t, 40<<20, f.Grown)
			if name == "full" {
				require.Equal(t, leaks.Steady, got.Verdict, where)
			} else {
				require.Len(t, got.Findings, 1)
				require.Equal(t, "job.py:20 g", got.Findings[0].Name())
			}
		}
	}
	for name, each := range map[string]func(p *program) func(i int){
		"goes on":   func(p *program) func(int) { return bank(p, 1000) },
		"just full": func(p *program) func(int) { return bank(p, 95) },
		"of a full one": func(p *program) func(int) {
			var q fifo
			for range 40 {
				q.push(p, at(5, "main"), 900<<10)
			}
			return func(i int) {
				if i%2 == 0 {
					q.push(p, at(10, "f"), []uint64{1200 << 10, 600 << 10}[i/2%2]) // of other size classes
					q.pop(p)
				}
			}
		},
		"a few times": func(p *program) func(int) { return bank(p, 4) },
		"given back": func(p *program) func(int) {
			var q fifo
			return func(i int) {
				if i < 80 {
					q.push(p, at(10, "f"), 1<<20)
				} else if i == 100 {
					q.drop(p)
				}
			}
		},
		"little": func(p *program) func(int) {
			p.Alloc(at(30, "h"), 1<<30)
			return bank(p, 40)
		},
	} {
		require.Empty(t, run(200, each).find(t, nil).Stopped, name)
	}
}
