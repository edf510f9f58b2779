// SPDX-License-Identifier: Apache-2.0

package export

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/heap"
)

// TestWarnLeft: what is left out is reported, with its bytes, unless it was asked for.
func TestWarnLeft(t *testing.T) {
	left, shown := heap.Count{Objects: 2, Bytes: 1024}, heap.Count{Objects: 1, Bytes: 4096}
	for _, tt := range []struct {
		name string
		tl   view.Timeline
		want []string
	}{
		{"all", view.Timeline{To: 9, Until: 9, Shown: shown}, nil},
		{"asked for", view.Timeline{To: 9, Until: 9, MinSize: 512, Shown: shown, Left: left}, nil},
		{"by size", view.Timeline{To: 9, Until: 9, MinSize: 2048, Shown: shown, Left: left}, []string{
			"more than 5 events: allocations below 2048 bytes are left out; --from and --to choose a part, --min-size a size",
			"2 of 3 allocations are left out, 1024 of 5120 bytes",
		}},
		{"by time", view.Timeline{To: 3e9, Until: 1e9, MinSize: 512, Shown: shown, Left: left}, []string{
			"more than 5 events: nothing is shown of the last 2.000 s but what is in use; --from and --to choose another part",
			"2 of 3 allocations are left out, 1024 of 5120 bytes",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			in := &Input{Selection: view.Selection{MinSize: 512}, Warn: func(err error) { got = append(got, err.Error()) }}
			if tt.name == "all" {
				in.Selection.MinSize = 0
			}
			warnLeft(in, &tt.tl, 5)
			require.Equal(t, tt.want, got)
		})
	}
}
