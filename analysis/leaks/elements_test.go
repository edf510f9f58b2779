// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func newProgram() *program { return &program{job: *newJob(), random: rand.New(rand.NewPCG(1, 2))} }

// TestElements: what lies in the elements that another line is proved to make grows with them, though its blocks have other sizes each time
// and others come and go.
func TestElements(t *testing.T) {
	for name, tt := range map[string]struct {
		holder string
		lines  []string
	}{
		"the same elements": {"main() local worker.inflight[0..%d].hidden", []string{"job.py:8 main", "job.py:7 main"}},
		"another container": {"main() local worker.cache[0..%d].hidden", []string{"job.py:7 main"}},
		"the object itself": {"main() local worker.inflight", []string{"job.py:7 main"}},
	} {
		p := newProgram()
		var waiting fifo
		bytes, kept := uint64(0), uint64(0)
		for i := range 400 {
			p.step(1)
			for range 10 { // of which some leave at random
				waiting.push(p, main(8), 1<<14+uint64(p.random.IntN(1<<14)))
			}
			for len(waiting) > 60+p.random.IntN(40) {
				waiting.pop(p)
			}
			if i%10 == 9 {
				p.Alloc(main(7), 1<<12)
				size := uint64(1<<14 + p.random.IntN(1<<14))
				p.Alloc(main(8), size)
				bytes, kept = bytes+size, kept+1
			}
		}
		row := func(site, name string, bytes, blocks uint64) leaks.Holder {
			return leaks.Holder{Site: site, Name: name, Bytes: bytes, Blocks: blocks}
		}
		r := p.find(t, &leaks.Options{Holders: []leaks.Holder{
			row("job.py:7 main", "main() local worker.inflight[0..39].counts", kept<<12, kept),
			row("job.py:8 main", strings.ReplaceAll(tt.holder, "%d", "39"), bytes, kept),
		}})
		var lines []string
		for i := range r.Findings {
			lines = append(lines, r.Findings[i].Name())
		}
		require.Equal(t, tt.lines, lines, name)
	}
}

// TestCleared: a storage that is filled in one loop, and cleared in another, has grown only once it has more than was cleared.
func TestCleared(t *testing.T) {
	for _, tt := range []struct {
		after int
		want  leaks.Verdict
	}{{180, leaks.Unclear}, {420, leaks.Growing}} {
		p := newProgram()
		var storage fifo
		act := func() {
			p.Pass(main(1), main(2), main(3))
			storage.push(p, main(7), 1<<20)
		}
		for range 200 {
			act()
		}
		for range 30 {
			p.step(1)
		}
		storage.drop(p)
		for range tt.after {
			act()
		}
		r := p.find(t, nil)
		require.Equal(t, tt.want, r.Verdict, "%d", tt.after)
		if tt.want == leaks.Unclear {
			require.InDelta(t, 200<<20, r.Steps.Fell, 4<<20)
			require.Equal(t, "job.py:7 main", r.Risers[0].Name)
		}
	}
}

// TestCalledTwice: a loop that two lines of the program call grows from its first step on.
func TestCalledTwice(t *testing.T) {
	p := newProgram()
	for _, line := range []string{"99", "98"} {
		for range 60 {
			p.step(1)
			p.Alloc(eventtest.Report+" /home/a/job.py:7:train /home/a/job.py:"+line+":main", 1<<16)
		}
	}
	r := p.find(t, nil)
	require.Len(t, r.Findings, 1)
	require.Less(t, r.Findings[0].First, 4)
	require.InEpsilon(t, 1<<16, r.Findings[0].Requested, 0.001)
	require.InDelta(t, 120, r.Findings[0].LiveBlocks, 2)
	row := func(name string) leaks.Holder {
		return leaks.Holder{Site: "job.py:7 train", Name: name, Bytes: 60 << 16, Blocks: 60}
	}
	r = p.find(t, &leaks.Options{Holders: []leaks.Holder{row("warm[0..59]"), row("log[0..59]")}})
	require.Greater(t, r.Findings[0].First, 50, "one list was complete before the other began")
}

// TestFreedBetween: a loop that leaks grows, whatever was freed before it, if its line kept nothing then.
func TestFreedBetween(t *testing.T) {
	p := newProgram()
	model := p.Alloc(main(30), 1<<30)
	for range 60 {
		p.step(1)
		p.Pass(main(7))
	}
	p.Free(model)
	for range 300 {
		p.Pass(main(1), main(2), main(3))
		p.Alloc(main(7), 1<<20)
	}
	r := p.find(t, nil)
	require.Equal(t, leaks.Growing, r.Verdict)
	require.Equal(t, "job.py:7 main", r.Findings[0].Name())
}
