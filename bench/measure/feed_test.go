// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFeed: a stage's events add up, and none of them allocates memory once everything has grown.
func TestFeed(t *testing.T) {
	f := newFeed(3000, 4*feedBatch)
	for i := range stages {
		t.Run(stages[i].name, func(t *testing.T) {
			s, err := stages[i].open(f, filepath.Join(t.TempDir(), "feed.gputrace"))
			require.NoError(t, err)
			cycle := func() { require.NoError(t, f.through(s, len(f.cycle)/feedBatch)) }
			cycle()
			require.LessOrEqual(t, testing.AllocsPerRun(5, cycle), stages[i].objects*float64(len(f.cycle)), "in %d events", len(f.cycle))
			require.NoError(t, s.close())
		})
	}
}

func BenchmarkFeed(b *testing.B) {
	for _, live := range feedLive {
		f := newFeed(live, feedCycle)
		for i := range stages {
			b.Run(fmt.Sprintf("%s/%d", stages[i].name, live), func(b *testing.B) {
				s, err := stages[i].open(f, filepath.Join(b.TempDir(), "feed.gputrace"))
				require.NoError(b, err)
				cycle := func() { require.NoError(b, f.through(s, len(f.cycle)/feedBatch)) }
				cycle()
				b.ReportAllocs()
				for b.Loop() {
					cycle()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/feedCycle, "ns/event")
				require.NoError(b, s.close())
			})
		}
	}
}
