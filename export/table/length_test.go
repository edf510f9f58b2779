// SPDX-License-Identifier: Apache-2.0

package table

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/heap"
)

// TestLength: the length is the recording's, or up to the last event where that is later: no time is beyond it.
func TestLength(t *testing.T) {
	for _, tt := range []struct {
		duration, last, want time.Duration
	}{
		{10 * time.Second, 9 * time.Second, 10 * time.Second}, {10 * time.Second, 12 * time.Second, 12 * time.Second},
		{0, 9 * time.Second, 9 * time.Second},
	} {
		in := Input{Start: 5, Duration: tt.duration, View: &view.View{Snapshot: &heap.Snapshot{Totals: heap.Totals{Time: 5 + uint64(tt.last)}}}}
		require.Equal(t, tt.want, in.Length())
	}
}
