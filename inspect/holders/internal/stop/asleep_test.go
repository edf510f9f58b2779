// SPDX-License-Identifier: Apache-2.0

//go:build linux

package stop

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSwitchesIn(t *testing.T) {
	state, switches, ok := switchesIn("Name:\tx\nState:\tS " +
		"(sleeping)\nTgid:\t1\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n")
	require.True(t, ok)
	require.Equal(t, "S (sleeping)", state)
	require.Equal(t, "12\nnonvoluntary_ctxt_switches:\t3\n", switches)
	for _, status := range []string{"", "Name:\tx\nState:\tS (sleeping)\n", "Name:\tx\nvoluntary_ctxt_switches:\t12\n"} {
		_, _, ok := switchesIn(status)
		require.False(t, ok, "%q", status)
	}
}
