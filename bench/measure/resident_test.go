// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLargest: what this process once took is not what its child does.
func TestLargest(t *testing.T) {
	size := func() float64 {
		cmd := exec.Command("true")
		require.NoError(t, cmd.Run())
		return largest(cmd.ProcessState)
	}
	b := make([]byte, 512<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	b = nil
	require.Greater(t, size(), 500.0)
	require.NoError(t, forgetPeak())
	require.Less(t, size(), 250.0)
}
