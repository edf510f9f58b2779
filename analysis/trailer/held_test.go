// SPDX-License-Identifier: Apache-2.0

package trailer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
)

// TestHeldAtBounds: a reading has so many rows, the largest first.
func TestHeldAtBounds(t *testing.T) {
	j := &view.Joined{}
	for i := range heldRows + 5 {
		j.Rows = append(j.Rows, view.HeldSite{Name: "x", Bytes: uint64(9999 - i)})
	}
	got := HeldAt(j)
	require.Len(t, got, heldRows)
	require.EqualValues(t, 9999, got[0].Bytes)
}

// TestHeldAtKnown: of a reading the largest rows are kept, and of them those of which the holder is known.
func TestHeldAtKnown(t *testing.T) {
	j := &view.Joined{}
	for i := range heldRows + 5 {
		name := fmt.Sprint("x", i)
		if i == 1 {
			name = view.NoHolder
		}
		j.Rows = append(j.Rows, view.HeldSite{Site: "s", Name: name, What: "w", Bytes: uint64(1000 - i), Blocks: 2})
	}
	got := HeldAt(j)
	require.Len(t, got, heldRows-1)
	require.Equal(t, figures.HeldAt{Site: "s", Holder: "x0", What: "w", Bytes: 1000, Blocks: 2}, got[0])
	require.Equal(t, "x2", got[1].Holder)
	require.NotNil(t, HeldAt(&view.Joined{}), "it was read, and nothing is held")
}

// TestCallsAt: a reading has rows by call for lines that call libraries, without those that nobody is known to hold.
func TestCallsAt(t *testing.T) {
	j := &view.Joined{Calls: []view.HeldSite{
		{Site: "s", Call: "lib.py:3 f", Name: "x", What: "w", Bytes: 9, Blocks: 2},
		{Site: "s", Call: "lib.py:4 g", Name: view.NoHolder, Bytes: 8},
	}}
	require.Equal(t, []figures.HeldAt{{Site: "s", Call: "lib.py:3 f", Holder: "x", What: "w", Bytes: 9, Blocks: 2}}, CallsAt(j))
	require.Nil(t, CallsAt(&view.Joined{}))
}
