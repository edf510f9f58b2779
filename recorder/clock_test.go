// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBothClocks: of readings between which the thread was held up, none is taken while there is a quick one.
func TestBothClocks(t *testing.T) {
	began, reads := time.Now(), 0
	clock := func() uint64 {
		reads++
		if reads%2 == 1 && reads != 7 {
			defer time.Sleep(3 * time.Millisecond)
		}
		return uint64(time.Since(began))
	}
	wall, now := bothClocks(clock)
	apart := wall.Sub(began) - time.Duration(now)
	require.Less(t, apart.Abs(), time.Millisecond)
	require.Equal(t, 2*clockReadings, reads)
}
