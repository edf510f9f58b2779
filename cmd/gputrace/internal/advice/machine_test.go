// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package advice

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/tracer/feature"
)

func TestOlderThan(t *testing.T) {
	for release, want := range map[string]bool{
		"4.18.0-553.el8_10.x86_64": true, "5.4.0-200-generic": true, "5.14.0-570.el9": true, "5.15.0": false, "6.8.0-rc1": false, "10.0": false,
		"strange": false,
	} {
		require.Equal(t, want, olderThan(release, needs), release)
	}
}

// TestNeeds: no feature that tracing needs came later.
func TestNeeds(t *testing.T) {
	for _, f := range feature.All {
		if f.Without == "" {
			require.False(t, olderThan(needs, f.Version), f.Name)
		}
	}
}
