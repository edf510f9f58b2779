// SPDX-License-Identifier: Apache-2.0

package pagemodel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestSizeClass: a class has the sizes up to a power of two that the class before has not; class 1 is of a byte at
// most, 0 of what is not known.
func TestSizeClass(t *testing.T) {
	require.Zero(t, sizeClass(event.Unknown))
	require.EqualValues(t, 1, sizeClass(0))
	for class, most := uint8(1), uint64(1); class < 60; class, most = class+1, 2*most {
		require.Equal(t, class, sizeClass(most))
		require.Equal(t, class+1, sizeClass(most+1))
	}
}
