// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/oom"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
)

const mib = 1 << 20

func TestCached(t *testing.T) {
	torch := func(reserved, largest figures.Bytes) []figures.TorchMemory {
		return []figures.TorchMemory{{Reserved: reserved * mib, Largest: largest * mib}, {Device: 1}}
	}
	for name, tt := range map[string]struct {
		reserved, late uint64
		torch          []figures.TorchMemory
		want           *Cached
	}{
		"most of it":              {5000, 1300, torch(5000, 256), &Cached{3700 * mib, 5000 * mib, 1300 * mib, 256 * mib}},
		"a quarter":               {400, 300, torch(400, 1), &Cached{100 * mib, 400 * mib, 300 * mib, mib}},
		"less than a quarter":     {400, 301, torch(400, 1), nil},
		"little":                  {80, 17, torch(80, 1), nil},
		"the step needs it":       {5000, 4900, torch(5000, 4000), nil},
		"read at another moment":  {5000, 1300, torch(4000, 256), &Cached{3700 * mib, 5000 * mib, 1300 * mib, event.Unknown}},
		"an older recording":      {5000, 1300, torch(5000, 0), &Cached{3700 * mib, 5000 * mib, 1300 * mib, event.Unknown}},
		"no state":                {5000, 1300, nil, &Cached{3700 * mib, 5000 * mib, 1300 * mib, event.Unknown}},
		"nothing was allocated":   {5000, 0, torch(5000, 256), nil},
		"more in use than before": {1000, 1300, torch(1000, 256), nil},
	} {
		a := &Answer{Reserved: tt.reserved * mib}
		a.spare(&Input{Course: &Course{Late: tt.late * mib}, Spare: SpareInput{Torch: tt.torch}})
		require.Equal(t, tt.want, a.Cached, name)
	}
	unknown := &Answer{Reserved: event.Unknown}
	unknown.spare(&Input{Course: &Course{Late: mib}})
	require.Nil(t, unknown.Cached)
	failed := &Answer{Reserved: 5000 * mib, Case: &oom.Case{}}
	failed.spare(&Input{Course: &Course{Late: 1300 * mib}, Spare: SpareInput{Torch: torch(5000, 256)}})
	require.Nil(t, failed.Cached, "the case says it")
}

func TestWaiting(t *testing.T) {
	for name, tt := range map[string]struct {
		pending, reserved figures.Bytes
		want              *Waiting
	}{
		"much":          {416 * mib, 1000 * mib, &Waiting{416 * mib, 7}},
		"a tenth":       {100 * mib, 1000 * mib, &Waiting{100 * mib, 7}},
		"less":          {99 * mib, 1000 * mib, nil},
		"few bytes":     {63 * mib, 100 * mib, nil},
		"not known":     {figures.Unknown, 1000 * mib, nil},
		"nothing waits": {0, 0, nil},
	} {
		a := &Answer{Reserved: event.Unknown}
		a.spare(&Input{Spare: SpareInput{Time: 7, Torch: []figures.TorchMemory{{Pending: tt.pending, Reserved: tt.reserved}}}})
		require.Equal(t, tt.want, a.Waiting, name)
	}
}

func TestRetried(t *testing.T) {
	require.Nil(t, retried(&SpareInput{}))
	// Ten steps: of 100 ns, those of number 3, 5 and 8 of 210 ns.
	begins, at := []uint64{}, uint64(1000)
	for step := range 11 {
		begins = append(begins, at)
		at += 100
		if n := step + 1; n == 3 || n == 5 || n == 8 {
			at += 110
		}
	}
	table := steps.TableOf(1, begins, at)
	inStep := func(n int) uint64 { return begins[n-1] + 10 }
	got := retried(&SpareInput{Recovered: 4, Times: []uint64{inStep(3), inStep(3) + 1, inStep(5), inStep(8)}, Steps: table})
	require.Equal(t, &Retried{Count: 4, Steps: 3, Slower: got.Slower, With: 209, Without: 99}, got)
	require.InDelta(t, 209.0/99, got.Slower, 1e-9)

	got = retried(&SpareInput{Recovered: 3, Times: []uint64{inStep(1), inStep(2), inStep(4)}, Steps: table})
	require.Zero(t, got.Slower, "they were no longer than others")
	got = retried(&SpareInput{Recovered: 2, Times: []uint64{inStep(3), inStep(5)}, Steps: table})
	require.Equal(t, &Retried{Count: 2, Steps: 2}, got, "too few to compare")
	require.Equal(t, &Retried{Count: 5000}, retried(&SpareInput{Recovered: 5000, Times: []uint64{inStep(3)}, Steps: table}), "not all are known")
	require.Equal(t, &Retried{Count: 1}, retried(&SpareInput{Recovered: 1, Times: []uint64{5}, Steps: table}), "before the first step")
}
