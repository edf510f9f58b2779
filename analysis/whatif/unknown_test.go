// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/whatif"
)

// TestUnknownOfLate: a replay proves nothing where half of the peak was reserved before the recording began and it
// comes to the same peak. One that fails, or comes to another peak, does; and so does the recorded one.
func TestUnknownOfLate(t *testing.T) {
	of := func(peak uint64, failed *whatif.Failure) whatif.Row {
		return whatif.Row{Result: &whatif.Result{Peak: peak, Failed: failed}}
	}
	rows := []whatif.Row{of(100, nil), of(100, nil), of(90, nil), of(100, &whatif.Failure{})}
	for before, want := range map[uint64][]bool{0: {false, false, false, false}, 49: {false, false, false, false},
		50: {false, true, false, false}} {
		r := &whatif.Report{Stream: &whatif.Stream{Before: before}, Rows: rows}
		for i := range rows {
			require.Equal(t, want[i], r.Unknown(i), "%d before, row %d", before, i)
		}
	}
}
