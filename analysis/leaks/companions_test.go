// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// trial makes a model of some tensors at one line and as many gradients at another, and state of the same sizes
// that is freed with the trial. Only the model stays, with its gradients. It returns the state.
func trial(p *program, sizes []uint64) fifo {
	var state fifo
	for _, size := range sizes {
		p.Alloc(at(28, "objective"), size)
	}
	for i, size := range sizes {
		p.Alloc(at(31, "objective"), size)
		state.push(p, at(34+i%2, "objective"), size)
	}
	return state
}

// TestFewPeriods: a loop keeps several blocks each time, and frees others of the same sizes. However few periods
// were seen, what grows is both lines by what they keep, and what is suspected is no more than that.
func TestFewPeriods(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 11))
		p := &program{job: *newJob(), random: r}
		var sizes []uint64
		kept := 0.
		for range 2 + r.IntN(4) {
			sizes = append(sizes, uint64(1+r.IntN(1<<20))*4)
			kept += 2 * float64(sizes[len(sizes)-1])
		}
		period, trials, before := 7+r.IntN(20), 3+r.IntN(6), 1+r.IntN(3)
		from := 0
		for n := range before + trials {
			state := trial(p, sizes)
			for i := range period {
				if p.step(1); n == before && i == period/2 {
					from = len(p.Events)
				}
			}
			state.drop(p)
		}
		p.Events = p.Events[from:]
		what := fmt.Sprintf("%d: %v, %d trials of %d steps", seed, sizes, trials, period)
		for where, got := range map[string]*leaks.Report{"recording": p.find(t, nil), "live": p.watch(nil).Report(nil)} {
			all := append(got.Suspects, got.Findings...)
			if trials > 6 {
				require.Equal(t, leaks.Growing, got.Verdict, "%s, %s", where, what)
			}
			if len(all) == 0 {
				continue
			}
			sum, lines := leaks.Total(all)
			said := sum.Requested * float64(sum.Period)
			require.Equal(t, period, sum.Period, "%s, %s", where, what)
			require.LessOrEqual(t, said, 1.01*kept, "%s, %s", where, what)
			if got.Verdict == leaks.Growing {
				require.Equal(t, 2, lines, "%s, %s", where, what)
				require.GreaterOrEqual(t, said, .95*kept, "%s, %s", where, what)
			}
		}
	}
}
