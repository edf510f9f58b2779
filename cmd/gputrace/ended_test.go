// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// TestViewsOfEnded: of a program that freed everything because it ended, tables are of the moment before, as the
// first screen is, with what held the memory when holders were last read; --at end is the same moment, and -0s the end itself.
func TestViewsOfEnded(t *testing.T) {
	path := screenRecording(t, func(j *eventtest.Job, end *recording.End) {
		j.Alloc(weights, 48<<20)
		live := []uint64{}
		for range 40 {
			input := j.Alloc(forward, 96<<20)
			j.Free(input)
			j.Pass(moments)
			live = append(live, j.Alloc(kept, 5<<20))
		}
		for _, addr := range live {
			j.Free(addr)
		}
		end.Reason = recording.ReasonExited
	})
	first := regexp.MustCompile(`in use before its end (\S+ MiB)`).FindStringSubmatch(flat(printed(t, "report "+path)))
	require.NotNil(t, first)
	lines := printed(t, "report "+path+" --by line")
	require.Contains(t, lines, "before its end, +")
	require.Contains(t, lines, "live by line: "+first[1]+" (", "as much as the first screen says")
	require.Contains(t, lines, "train.py:61")
	require.Contains(t, printed(t, "report "+path+" --by holder"), "self.history[0..39]")
	require.Equal(t, lines, printed(t, "report "+path+" --by line --at end"))
	require.NotContains(t, printed(t, "report "+path+" --by line --at=-0s"), "train.py:61")
	require.Contains(t, printed(t, "report "+path+" --at end"), "before its end, +")
	require.Contains(t, printed(t, "diff "+path+" --at 0s --at end"), "48.0 MiB before, "+first[1]+" after")
	require.Contains(t, printed(t, "export "+path+" -f csv --by holder -o -"), "self.history[0..39]")
}
