// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBothClocks: one quick pair of readings is chosen over those in which the thread was held up.
func TestBothClocks(t *testing.T) {
	began, reads := time.Now(), 0
	clock := func() uint64 {
		reads++
		if reads%2 == 1 && reads != 7 {
			defer time.Sleep(3 * time.Millisecond)
		}
		return uint64(time.Since(began))
	}
	wall, now := BothClocks(clock)
	apart := wall.Sub(began) - time.Duration(now)
	require.Less(t, apart.Abs(), time.Millisecond)
	require.Equal(t, 2*clockReadings, reads)
}
