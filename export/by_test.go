// SPDX-License-Identifier: Apache-2.0

package export

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/exit"
)

// TestBy: a format without rows refuses what its rows would be, and says which one has them.
func TestBy(t *testing.T) {
	for _, name := range Names() {
		formats, err := Find(name)
		require.NoError(t, err)
		require.NoError(t, formats[0].Check(&Window{}, ""), name)
		err = formats[0].Check(&Window{}, "line")
		if name == "csv" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "only -f csv has rows", name)
		require.Equal(t, exit.Misuse, exit.Code(err))
	}
}
