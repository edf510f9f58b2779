// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// container is what a made-up program keeps blocks in, all of them allocated at one line.
type container struct {
	line  int
	bytes uint64 // of a block
	every int    // steps between two blocks
	from  int    // the step of the first
	until int    // the step before which the last is added; 0: it goes on
	most  int    // as many stay, the oldest are freed; 0: all stay
	gain  int    // of so many that are added one stays, and the others push out the oldest; 0: all stay
	// litter is how many bytes the line also throws away each step, which the cycle collector frees all at once every dozen of steps; 0: none.
	litter uint64
	older  int // blocks that are there before the first step
	held   []uint64
	waste  []uint64
}

func (c *container) stack() string {
	return fmt.Sprintf("%s /home/a/train.py:%d:main", eventtest.Report, c.line)
}

// step adds and removes what is due in a step.
func (c *container) step(j *eventtest.Job, n int) {
	if c.litter > 0 {
		if c.waste = append(c.waste, j.Alloc(c.stack(), c.litter)); len(c.waste) == 12 {
			for _, a := range c.waste {
				j.Free(a)
			}
			c.waste = nil
		}
	}
	if n < c.from || c.until > 0 && n >= c.until || (n-c.from)%c.every != 0 {
		return
	}
	c.held = append(c.held, j.Alloc(c.stack(), c.bytes))
	if c.most > 0 && len(c.held) > c.most || c.gain > 0 && n%c.gain != 0 && len(c.held) > 1 {
		j.Free(c.held[0])
		c.held = c.held[1:]
	}
}

// grows reports whether the container still grows at the end of a program.
func (c *container) grows() bool { return c.until == 0 && c.most == 0 }

// program is a made-up training loop: what it keeps, and how many steps it makes.
type program struct {
	steps, unseen int // unseen are those before the attach
	containers    []*container
	garbage       int // steps after which cycles of garbage are freed; 0: there are none
}

func randomProgram(seed uint64) *program {
	r := rand.New(rand.NewPCG(seed, 7))
	p := &program{steps: 150 + r.IntN(250), unseen: r.IntN(2) * r.IntN(60)}
	if r.IntN(3) == 0 {
		p.garbage = 5 + r.IntN(12)
	}
	for i := range r.IntN(4) {
		c := &container{line: 100 + 10*i, bytes: uint64(1+r.IntN(16))*256<<10 + uint64(r.IntN(500)), every: 1 + r.IntN(3),
			from: r.IntN(p.steps / 4)}
		switch r.IntN(6) {
		case 4: // a pool with turnover that is older than the attach
			c.every, c.from, c.gain = 1, 0, 2+r.IntN(4)
			c.older = r.IntN(200)
		case 5:
			c.litter = uint64(1+r.IntN(4)) * 100 << 10
		case 0: // a queue that has long been full
			c.every, c.from, c.most = 1, 0, 3+r.IntN(p.steps/5)
		case 1:
			c.until = p.steps/3 + r.IntN(p.steps/6)
		}
		p.containers = append(p.containers, c)
	}
	return p
}

// run plays the program, and returns what is seen of it.
func (p *program) run() (seen *eventtest.Job) {
	j := eventtest.NewJob()
	j.Alloc(eventtest.Input, 8<<20) // the weights
	attached := 0
	for _, c := range p.containers {
		for range c.older {
			c.held = append(c.held, j.Alloc(c.stack(), c.bytes))
		}
	}
	var cycles []uint64
	for n := range p.steps {
		if n == p.unseen {
			attached = len(j.Events)
		}
		var step []uint64
		for _, s := range []string{eventtest.Input, eventtest.Forward, eventtest.Backward} {
			step = append(step, j.Alloc(s, 1<<20))
		}
		if p.garbage > 0 {
			cycles = append(cycles, j.Alloc(eventtest.Report+" /home/a/train.py:77:main", 600<<10))
			if len(cycles) == p.garbage {
				for _, a := range cycles {
					j.Free(a)
				}
				cycles = nil
			}
		}
		for _, c := range p.containers {
			c.step(j, n)
		}
		step = append(step, j.Alloc(eventtest.Adam, 1<<20))
		for _, a := range step {
			j.Free(a)
		}
	}
	j.Events = j.Events[attached:]
	return j
}

// answerOf records what is seen of a program, and concludes from the recording.
func answerOf(t *testing.T, j *eventtest.Job) *answer.Answer {
	t.Helper()
	path := filepath.Join(t.TempDir(), TraceName)
	w, err := recording.Create(path, &recording.Info{PID: eventtest.PID, Attached: j.Events[0].Time - 1}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	require.NoError(t, w.Close(&recording.End{}))
	s, err := Open(path, nil)
	require.NoError(t, err)
	defer s.Close()
	a, err := s.Answer()
	require.NoError(t, err)
	return a
}

// TestSentenceOfRandomPrograms: whatever a program keeps, throws away and stops keeping, also where part of it is
// older than the attach, the sentence names the line that grows most at its end, with the bytes that it keeps, and
// where nothing grows it accuses nobody.
func TestSentenceOfRandomPrograms(t *testing.T) {
	for seed := range uint64(150) {
		p := randomProgram(seed)
		j := p.run()
		a := answerOf(t, j)
		require.EqualValues(t, j.Total(), a.Now, "%d", seed)
		if a.When == answer.AtEnd {
			require.EqualValues(t, j.Total(), a.Total, "%d: rows and rest are all that is in use", seed)
		}
		text := verdict.Of(a).String()
		about := fmt.Sprintf("seed %d: %s\n%s", seed, text, p)
		growing := slices.DeleteFunc(slices.Clone(p.containers), func(c *container) bool { return !c.grows() })
		if len(growing) == 0 {
			require.False(t, strings.HasPrefix(text, verdict.Growing), about)
			continue
		}
		most := slices.MaxFunc(growing, func(x, y *container) int { return int(x.rate() - y.rate()) })
		requested, period := 0.0, most.period()
		for _, c := range growing {
			requested += float64(c.bytes) / float64(c.period())
			if c.period() != period {
				period = 1
			}
		}
		who, every := fmt.Sprintf("train.py:%d main keeps", most.line), "each step"
		if n := len(growing) - 1; n > 0 {
			who = fmt.Sprintf("train.py:%d main and %s keep", most.line, table.Plural(uint64(n), "other line"))
		}
		if period > 1 {
			every = fmt.Sprintf("every %d steps", period)
		}
		// What left a pool while nobody looked is taken off by an estimate: 3 % of it may be wrong.
		tolerance, amount := 1e-6, table.MeanBytes(requested*float64(period))+" more "+every
		if slices.ContainsFunc(growing, func(c *container) bool { return c.gain > 0 }) {
			tolerance, amount = 0.03, ""
		}
		want := fmt.Sprintf("%s  %s %s", verdict.Growing, who, amount)
		require.True(t, strings.HasPrefix(text, want), "%s\nwant %s", about, want)
		require.Contains(t, text, " more "+every, about)
		require.Len(t, a.Leaks.Findings, len(growing), about)
		sum, found := 0.0, 0.0
		for _, c := range growing {
			sum += c.rate()
		}
		for i := range a.Leaks.Findings {
			found += a.Leaks.Findings[i].Requested
		}
		require.InEpsilon(t, requested, found, tolerance, about)
		require.InEpsilon(t, sum/a.Leaks.Steps.Period*1e9, a.Rate, tolerance, about)
	}
}

// period is the steps after which the container has one block more.
func (c *container) period() int { return max(c.every, c.gain) }

// rate is the bytes of blocks that a container keeps a step, as a mean.
func (c *container) rate() float64 { return float64((c.bytes+511)/512*512) / float64(c.period()) }

// String describes a program for a failing test.
func (p *program) String() string {
	text := fmt.Sprintf("%d steps, %d before the attach, garbage %d", p.steps, p.unseen, p.garbage)
	for _, c := range p.containers {
		text += fmt.Sprintf("\n  line %d: %d B every %d from %d until %d at most %d gain %d older %d litter %d", c.line, c.bytes, c.every,
			c.from, c.until, c.most, c.gain, c.older, c.litter)
	}
	return text
}
