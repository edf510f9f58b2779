// SPDX-License-Identifier: Apache-2.0

package export

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// TestLargeCSV: that a CSV file will be large is said before it is written, and of a small one nothing is.
func TestLargeCSV(t *testing.T) {
	for allocations, warnings := range map[int]int{largeCSV - 1: 0, largeCSV: 1} {
		j := eventtest.NewJob()
		for range allocations {
			j.Free(j.Alloc(eventtest.Kept, 512))
		}
		trace, err := view.NewTrace(&j.Stream, nil)
		require.NoError(t, err)
		var said []string
		in := &Input{Trace: trace, Info: &recording.Info{}, Warn: func(err error) { said = append(said, err.Error()) }}
		require.NoError(t, writeCSV(io.Discard, in))
		require.Len(t, said, warnings, "%d: %v", allocations, said)
	}
}
