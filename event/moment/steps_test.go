// SPDX-License-Identifier: Apache-2.0

package moment

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSteps(t *testing.T) {
	for text, want := range map[string]StepRange{"3:7": {3, 7}, "3:": {3, 0}, ":7": {0, 7}, "5": {5, 5}, "5:5": {5, 5}} {
		got, err := ParseSteps(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := ParseSteps(got.String())
		require.NoError(t, err, text)
		require.Equal(t, want, again, text)
	}
	for _, text := range []string{"", ":", "0", "0:3", "7:3", "-1", "a", "3:b", "1:2:3", "4294967296"} {
		_, err := ParseSteps(text)
		require.ErrorContains(t, err, "not steps", "%q", text)
	}
	require.Empty(t, StepRange{}.String())
}
