// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhoTimes measures the smallest process, once. How long it takes is not for a test to say.
func TestWhoTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts and reads a program")
	}
	require.Zero(t, os.Geteuid(), "root is needed")
	all := whoHeaps
	whoHeaps = all[:1]
	defer func() { whoHeaps = all }()
	var out bytes.Buffer
	require.NoError(t, Run(Options{Rounds: 1, Window: 1, Only: whoName}, &out))
	rows := regexp.MustCompile(`(?m)^\| (\d.*) \|$`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, rows, 1, out.String())
	row := cells(t, rows[0][1])
	require.Len(t, row, 10)
	for _, c := range row {
		require.Positive(t, number(t, c), out.String())
	}
	require.Equal(t, row[2], row[3], "every block has a name")
	require.Greater(t, number(t, row[6]), number(t, row[0])*0.9, "what it read, of a process of that size")
}
