// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStudy: the script that plays the published study prints the bytes of a step of a leak, and nothing of its repair.
func TestStudy(t *testing.T) {
	text, err := output(filepath.Join(env.testdata, "study.py"), env.binary, "--patterns", "1", "--",
		"--steps", "40", "--batch", itoa(leakBatch), "--width", itoa(leakWidth))
	require.NoError(t, err)
	rows := strings.Split(text, "\n")[2:]
	require.Len(t, rows, 1)
	bytes := itoa(16 * leakBatch * 8 * leakWidth * 4)
	cells := strings.Split(strings.Trim(rows[0], "| "), " | ")
	require.Len(t, cells, 12, rows[0])
	require.Equal(t, "16.29, 2.93", cells[11])
	require.Equal(t, []string{"1", "growing", bytes, bytes, "steady"}, []string{cells[0], cells[2], cells[5], cells[6], cells[8]}, rows[0])
	require.True(t, strings.HasPrefix(cells[3], "leaks_patterns.py:"), rows[0])
}
