// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
)

// exchange is a job with a full buffer: each step a small entry takes the place of a large one, and add is called.
func exchange(add func(j *job)) *job {
	j := newJob()
	var large []uint64
	for range 100 {
		large = append(large, j.Alloc(kept, 60_000))
	}
	for _, a := range large {
		j.Pass(input, forward, backward, adam)
		j.Free(a)
		j.Alloc(kept, 1000)
		add(j)
	}
	return j
}

// TestExchange: in a full buffer whose entries differ in size one size class rises where another falls, and nothing grows.
func TestExchange(t *testing.T) {
	j := exchange(func(*job) {})
	for _, r := range []*leaks.Report{j.watch(nil).Report(nil), j.find(t, nil)} {
		require.Equal(t, leaks.Steady, r.Verdict, "%+v", r.Findings)
	}
}

// TestExchangeHidesNothing: a line that leaks beside such a buffer is found, and so is one of the same stack, as soon as it keeps more than
// the buffer exchanges.
func TestExchangeHidesNothing(t *testing.T) {
	for name, add := range map[string]func(*job){
		"another line": func(j *job) { j.Alloc(forward, 512) },
		"the same":     func(j *job) { j.Alloc(kept, 1000); j.Alloc(kept, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			r := exchange(add).find(t, nil)
			require.Equal(t, leaks.Growing, r.Verdict)
			require.Len(t, r.Findings, 1)
		})
	}
}
