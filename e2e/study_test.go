// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStudy: the script that plays the published study prints the bytes of a step of a leak, and nothing of its repair.
func TestStudy(t *testing.T) {
	text, err := output(filepath.Join(env.testdata, "study.py"), env.binary, "--patterns", "1,6", "--",
		"--steps", "40", "--batch", itoa(leakBatch), "--width", itoa(leakWidth))
	require.NoError(t, err)
	rows := strings.Split(text, "\n")[2:]
	require.Len(t, rows, 2)
	for i, want := range [][]string{
		{"1", "growing", itoa(16 * leakBatch * 8 * leakWidth * 4), itoa(16 * leakBatch * 8 * leakWidth * 4)},
		{"6", "growing", "4", "512"},
	} {
		cells := strings.Split(strings.Trim(rows[i], "| "), " | ")
		require.Len(t, cells, 10, rows[i])
		require.Equal(t, want, []string{cells[0], cells[2], cells[5], cells[6]}, rows[i])
		require.True(t, strings.HasPrefix(cells[3], "leaks_patterns.py:"), rows[i])
		require.Equal(t, "steady", cells[8], rows[i])
	}
}
