// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestLevel: what is in use between steps is by how much it rose in their later half, when that is more than a twentieth, or goes on
// without a pause.
func TestLevel(t *testing.T) {
	const steps = 400
	for name, tt := range map[string]struct {
		at   func(step int) uint64 // in use at the end of a step
		want uint64                // at least; 0: none
	}{
		"flat":                  {func(int) uint64 { return 1000 }, 0},
		"a line":                {func(i int) uint64 { return 1000 + 10*uint64(i) }, 800},
		"a plateau":             {func(i int) uint64 { return 1000 + 10*uint64(min(i, steps/2)) }, 0},
		"a sawtooth":            {func(i int) uint64 { return 1000 + 100*uint64(i%20) }, 0},
		"a thirtieth, by turns": {func(i int) uint64 { return 30000 + uint64(i)*1000/steps - uint64(i/50%2)*400 }, 0},
		"a thirtieth, evenly":   {func(i int) uint64 { return 30000 + uint64(i)*1000/steps }, 200},
		"one step up at half":   {func(i int) uint64 { return 1000 * uint64(1+i*2/steps) }, 0},
		"stairs":                {func(i int) uint64 { return 100_000 + 200*uint64(i/60) }, 1000},
		"stairs that end":       {func(i int) uint64 { return 100_000 + 200*uint64(min(i, 240)/60) }, 0},
		"stairs up and down":    {func(i int) uint64 { return 100_000 + 200*uint64(i/60%3) }, 0},
		"falls":                 {func(i int) uint64 { return 100_000 - uint64(i) }, 0},
		"without known numbers": {func(int) uint64 { return event.Unknown }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var l level
			see := func(kind event.Kind, n uint64, step int) {
				l.see(&event.Event{Kind: kind, Layer: event.LayerAllocator, PID: 1, Allocated: n}, step)
			}
			for i := range steps {
				see(event.KindAlloc, max(tt.at(i), tt.at(i)+500), i) // of the step
				see(event.KindFree, tt.at(i), i)
			}
			l.advance(steps)
			if tt.want == 0 {
				require.Zero(t, l.rise())
			} else {
				require.Greater(t, l.rise(), tt.want)
				require.Less(t, l.rise(), 2*tt.want)
			}
			rise, before := l.rise(), l.live
			l.restart()
			require.Equal(t, before.Bytes, l.live.Bytes, "rise %d", rise)
		})
	}
}
