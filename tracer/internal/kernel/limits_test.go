// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
)

// TestLimitsReached: each limit is said when it is passed, and only then.
func TestLimitsReached(t *testing.T) {
	for name, c := range map[string]struct {
		counters bpf.TraceCpuCounters
		walks    Walks
		say      string // empty: nothing
	}{
		"nothing":              {},
		"no slot":              {counters: bpf.TraceCpuCounters{NoSlot: 1}, say: "1 events have no stack"},
		"contexts from before": {counters: bpf.TraceCpuCounters{ContextUnknown: 5, ContextsMade: maxContexts}},
		"contexts pushed out": {counters: bpf.TraceCpuCounters{ContextUnknown: 5, ContextsMade: maxContexts + 1},
			say: "5 times a thread chose a context"},
		"call site":                  {counters: bpf.TraceCpuCounters{SiteUnknown: 3}, say: "of 3 allocations the requested size"},
		"walks, but most are cached": {walks: Walks{Stored: crowdedCache*cachedWalks + 1, Made: 9, Cached: 9}},
		"walks stored a few times":   {walks: Walks{Stored: crowdedCache * cachedWalks, Made: 9, Cached: 8}},
		"walks push others out":      {walks: Walks{Stored: crowdedCache*cachedWalks + 1, Made: 9, Cached: 8}, say: "9 of 17 were walked"},
	} {
		t.Run(name, func(t *testing.T) {
			said := limitsReached(&c.counters, c.walks)
			if c.say == "" {
				require.Empty(t, said)
				return
			}
			require.Len(t, said, 1)
			require.ErrorContains(t, said[0], c.say)
		})
	}
}
