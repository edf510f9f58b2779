// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// at is a stack of a line of a function that main calls.
func at(line int, function string) string {
	return fmt.Sprintf("%s /home/a/job.py:%d:%s /home/a/job.py:99:main", eventtest.Report, line, function)
}

// main is a stack of a line of main.
func main(line int) string { return fmt.Sprintf("%s /home/a/job.py:%d:main", eventtest.Report, line) }

// program is a job with a known truth.
type program struct {
	job
	random *rand.Rand
}

// step is a training step: what it needs, a number of backward passes, and the optimizer, as a mark and what it allocates.
func (p *program) step(passes int) {
	p.Pass(input, forward)
	for range passes {
		p.Pass(backward)
	}
	p.Mark(eventtest.Stepped)
	p.Pass(adam)
}

// fifo is a queue of blocks, oldest first.
type fifo []uint64

func (q *fifo) push(p *program, stack string, size uint64) { *q = append(*q, p.Alloc(stack, size)) }

func (q *fifo) pop(p *program) {
	p.Free((*q)[0])
	*q = (*q)[1:]
}

// drop frees all of a queue.
func (q *fifo) drop(p *program) {
	for len(*q) > 0 {
		q.pop(p)
	}
}

// truth is what a line keeps each step, bytes.
type truth map[string]float64

// programs have the truth beside them. attach is the step after which the recording begins.
var programs = map[string]struct {
	steps, attach int
	run           func(p *program) func(i int)
	want          truth // nil: steady
}{
	"a queue that is full": {steps: 300, run: func(p *program) func(int) {
		var q fifo
		return func(int) {
			p.step(1)
			if q.push(p, at(10, "f"), 1<<20); len(q) > 40 {
				q.pop(p)
			}
		}
	}},
	"a replay buffer that fills and is full": {steps: 900, run: func(p *program) func(int) {
		var q fifo
		return func(int) {
			p.step(2)
			for range 3 {
				q.push(p, at(10, "f"), 84<<10)
			}
			for len(q) > 600 {
				q.pop(p)
			}
		}
	}},
	"a queue of which half stays, attached late": {steps: 700, attach: 400, run: halfStays(400), want: truth{"job.py:11 f": 1 << 19}},
	"a queue of which half stays":                {steps: 300, run: halfStays(0), want: truth{"job.py:11 f": 1 << 19}},
	"a queue of which half stays, filled before": {steps: 300, run: halfStays(400), want: truth{"job.py:11 f": 1 << 19}},
	"a queue of which a fifth stays, attached late": {steps: 700, attach: 400, run: func(p *program) func(int) {
		var q fifo
		for range 400 {
			q.push(p, at(10, "f"), 1<<20)
		}
		return func(i int) {
			p.step(1)
			if q.push(p, at(11, "f"), 1<<20); i%5 != 0 {
				q.pop(p)
			}
		}
	}, want: truth{"job.py:11 f": (1 << 20) / 5.}},
	"a full queue older than the attach beside a leak of the same size": {steps: 600, attach: 300, run: func(p *program) func(int) {
		var q fifo
		return func(int) {
			p.step(1)
			if q.push(p, at(10, "f"), 1<<20); len(q) > 200 {
				q.pop(p)
			}
			p.Alloc(at(20, "g"), 1<<20)
		}
	}, want: truth{"job.py:20 g": 1 << 20}},
	"garbage that waits for the collector":  {steps: 400, run: garbage(0, 37)},
	"garbage on the line of a leak":         {steps: 400, run: garbage(1, 37), want: truth{"job.py:10 f": 1 << 16}},
	"garbage seldom, on the line of a leak": {steps: 700, run: garbage(1, 90), want: truth{"job.py:10 f": 1 << 16}},
	"garbage of the same size as a leak": {steps: 700, run: func(p *program) func(int) {
		var q fifo
		return func(i int) {
			p.step(1)
			p.Alloc(at(10, "f"), 1<<16)
			for range 4 {
				q.push(p, at(10, "f"), 1<<16)
			}
			if i%50 == 0 {
				q.drop(p)
			}
		}
	}, want: truth{"job.py:10 f": 1 << 16}},
	"passes that vary": {steps: 300, run: func(p *program) func(int) {
		return func(int) { p.step(1 + p.random.IntN(8)) }
	}},
	"passes that vary, and a leak": {steps: 300, run: func(p *program) func(int) {
		return func(int) {
			p.step(1 + p.random.IntN(8))
			p.Alloc(at(20, "g"), 4096)
		}
	}, want: truth{"job.py:20 g": 4096}},
	"a leak that starts late": {steps: 700, run: func(p *program) func(int) {
		return func(i int) {
			if p.step(1); i > 500 {
				p.Alloc(at(20, "g"), 1<<14)
			}
		}
	}, want: truth{"job.py:20 g": 1 << 14}},
	"a leak that has stopped": {steps: 700, run: func(p *program) func(int) {
		return func(i int) {
			if p.step(1); i < 300 {
				p.Alloc(at(20, "g"), 1<<14)
			}
		}
	}},
	"two leaks of one line": {steps: 200, run: func(p *program) func(int) {
		return func(int) {
			p.step(1)
			p.Alloc(at(20, "g"), 1<<14)
			p.Alloc(at(20, "g"), 3000)
		}
	}, want: truth{"job.py:20 g": 1<<14 + 3000}},
	"validation each hundred steps leaks": {steps: 1000, run: func(p *program) func(int) {
		return func(i int) {
			if p.step(1); i%100 == 0 {
				for range 10 {
					p.Pass(forward, forward)
					p.Alloc(at(30, "validate"), 40960)
				}
			}
		}
	}, want: truth{"job.py:30 validate": 4096}},
	"validation each hundred steps": {steps: 1000, run: func(p *program) func(int) {
		return func(i int) {
			if p.step(1); i%100 == 0 {
				var q fifo
				for range 10 {
					p.Pass(forward, forward)
					q.push(p, at(30, "validate"), 40960)
				}
				q.drop(p)
			}
		}
	}},
	"a curriculum": {steps: 300, run: func(p *program) func(int) {
		return func(i int) {
			a := p.Alloc(forward, uint64(i)<<16)
			p.step(1)
			p.Free(a)
		}
	}},
	"two loops, one after the other": {steps: 800, run: func(p *program) func(int) {
		return func(i int) {
			line, name := 20, "warm_up"
			if i > 377 {
				line, name = 30, "serve"
			}
			p.Pass(at(line, name), at(line, name), at(line, name), at(line, name))
			p.Alloc(at(line+1, name), 1<<20)
		}
	}, want: truth{"job.py:31 serve": 1 << 20}},
	"two loops of one function": {steps: 800, run: func(p *program) func(int) {
		return func(i int) {
			line := 20
			if i > 377 {
				line = 30
			}
			p.Pass(main(line), main(line), main(line), main(line))
			p.Alloc(main(line+1), 1<<20)
		}
	}, want: truth{"job.py:31 main": 1 << 20}},
	"another optimizer": {steps: 800, run: func(p *program) func(int) {
		return func(i int) {
			if i <= 377 {
				p.step(1)
				p.Alloc(at(20, "g"), 1<<14)
				return
			}
			p.Pass(input, second, strings.ReplaceAll(backward, "train.py:21", "train.py:51"))
			p.Mark(strings.ReplaceAll(eventtest.Stepped, "train.py:22", "train.py:52"))
			p.Pass(strings.ReplaceAll(adam, "train.py:22", "train.py:52"))
			p.Alloc(at(30, "h"), 1<<15)
		}
	}, want: truth{"job.py:30 h": 1 << 15}},
	"training, then a server that leaks": {steps: 1300, run: func(p *program) func(int) {
		return func(i int) {
			if i <= 300 {
				p.step(1)
				return
			}
			p.Pass(at(20, "serve"), at(21, "serve"), at(22, "serve"), at(23, "serve"))
			p.Alloc(at(24, "serve"), 1<<15)
		}
	}, want: truth{"job.py:24 serve": 1 << 15}},
	"training with an evaluation each epoch that keeps its outputs until its end": {steps: 420, run: func(p *program) func(int) {
		return func(i int) {
			if p.step(1); i%100 == 0 {
				var q fifo
				for range 200 {
					p.Pass(at(40, "evaluate"))
					q.push(p, at(41, "evaluate"), 1<<16)
				}
				q.drop(p)
			}
		}
	}},
	"passes that become many": {steps: 110, run: func(p *program) func(int) {
		return func(i int) {
			n := 4
			if i > 100 {
				n = 200
			}
			var q fifo
			p.Pass(input, forward)
			for range n {
				p.Pass(backward)
				q.push(p, at(50, "inner"), 1<<20)
			}
			q.drop(p)
			p.Mark(eventtest.Stepped)
			p.Pass(adam)
		}
	}},
	"sessions that come and go": {steps: 1500, run: func(p *program) func(int) {
		var q fifo
		return func(int) {
			p.step(1)
			q.push(p, at(10, "f"), 1<<18)
			if len(q) > 30 {
				k := p.random.IntN(len(q))
				q[0], q[k] = q[k], q[0]
				q.pop(p)
			}
		}
	}},
	"sessions of which each fourth stays": {steps: 1500, run: func(p *program) func(int) {
		var q fifo
		return func(i int) {
			p.step(1)
			q.push(p, at(10, "f"), 1<<18)
			if len(q) > 30 && i%4 != 0 {
				k := p.random.IntN(len(q))
				q[0], q[k] = q[k], q[0]
				q.pop(p)
			}
		}
	}, want: truth{"job.py:10 f": 1 << 16}},
}

// halfStays is a queue that had a number of blocks, of which each second that is added takes one out.
func halfStays(before int) func(p *program) func(int) {
	return func(p *program) func(int) {
		var q fifo
		for range before {
			q.push(p, at(10, "f"), 1<<20)
		}
		return func(i int) {
			p.step(1)
			if q.push(p, at(11, "f"), 1<<20); i%2 != 0 {
				q.pop(p)
			}
		}
	}
}

// garbage is 1 MiB of it each step, which is freed after a number of steps, on the line that keeps some blocks of 64 KiB.
func garbage(kept, every int) func(p *program) func(int) {
	return func(p *program) func(int) {
		var q fifo
		return func(i int) {
			p.step(1)
			for range kept {
				p.Alloc(at(10, "f"), 1<<16)
			}
			if q.push(p, at(10, "f"), 1<<20); i%every == 0 {
				q.drop(p)
			}
		}
	}
}

// TestPrograms: what is said of a program is its truth, from the recording and from the events as they come.
func TestPrograms(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		c := programs[name]
		t.Run(name, func(t *testing.T) {
			p := &program{job: *newJob(), random: rand.New(rand.NewPCG(1, 2))}
			each := c.run(p)
			from := 0
			for i := 1; i <= c.steps; i++ {
				if each(i); i == c.attach {
					from = len(p.Events)
				}
			}
			p.Events = p.Events[from:]
			for where, r := range map[string]*leaks.Report{"recording": p.find(t, nil), "live": p.watch(nil).Report(nil)} {
				requireTruth(t, where, c.want, r)
			}
		})
	}
}

// requireTruth requires that a verdict has the lines of a truth, and their bytes to one percent.
func requireTruth(t *testing.T, where string, want truth, got *leaks.Report) {
	t.Helper()
	said := truth{}
	for i := range got.Findings {
		said[got.Findings[i].Name()] = got.Findings[i].Requested
	}
	verdict := leaks.Growing
	if want == nil {
		verdict = leaks.Steady
	}
	require.Equal(t, verdict, got.Verdict, "%s: %v", where, said)
	require.Len(t, said, len(want), "%s: %v", where, said)
	for line, bytes := range want {
		require.InEpsilon(t, bytes, said[line], 0.01, "%s: %v", where, said)
	}
}

// TestGarbageRises: garbage whose collector was seen to run is steady however high its last tooth, and named where
// nothing else names what grows.
func TestGarbageRises(t *testing.T) {
	p := &program{job: *newJob(), random: rand.New(rand.NewPCG(1, 2))}
	each := garbage(0, 16)
	step := each(p)
	for i := 1; i <= 16; i++ {
		step(i)
	}
	for range 20 {
		step(1)
	}
	o := &leaks.Options{Garbage: map[string]string{"job.py:10 f": "garbage Linear.*"}}
	for where, find := range map[string]func(*leaks.Options) *leaks.Report{
		"recording": func(o *leaks.Options) *leaks.Report { return p.find(t, o) },
		"live":      func(o *leaks.Options) *leaks.Report { return p.watch(nil).Report(o) },
	} {
		require.NotEqual(t, leaks.Steady, find(nil).Verdict, where)
		require.Equal(t, leaks.Steady, find(o).Verdict, where)
	}
	p = &program{job: *newJob(), random: rand.New(rand.NewPCG(1, 2))}
	step = each(p)
	for range 30 {
		step(1)
	}
	r := p.find(t, o)
	require.Equal(t, leaks.Growing, r.Verdict, "the collector is off")
	require.Equal(t, "garbage Linear.*", r.Findings[0].Holder)
	require.Contains(t, r.Findings[0].Advice(), "gc.collect()")
}

// TestFrom: a list that is dropped each time that a request fails grows from one failure to the next, and not over all of them.
func TestFrom(t *testing.T) {
	p := &program{job: *newJob(), random: rand.New(rand.NewPCG(1, 2))}
	var kept fifo
	var failed []uint64
	for range 3 {
		for range 60 {
			p.step(1)
			kept.push(p, main(7), 512)
		}
		failed = append(failed, p.Events[len(p.Events)-1].Time)
		kept.drop(p)
		p.step(1)
	}
	o := &leaks.Options{Until: failed[2]}
	require.Empty(t, p.find(t, o).Findings)
	o.From = failed[1]
	r := p.find(t, o)
	require.Len(t, r.Findings, 1)
	require.InEpsilon(t, 512, r.Findings[0].Bytes, 0.01)
	require.Equal(t, "job.py:7 main", r.Findings[0].Name())
}
