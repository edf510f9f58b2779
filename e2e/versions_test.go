// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// torchVersion is that of the PyTorch that testdata/setup.sh gives: major, minor.
func torchVersion(t *testing.T) (v [2]int) {
	t.Helper()
	site, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "site")
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(site, "torch/version.py"))
	require.NoError(t, err)
	_, line, _ := strings.Cut(string(b), "__version__ = '")
	_, err = fmt.Sscanf(line, "%d.%d.", &v[0], &v[1])
	require.NoError(t, err)
	return v
}

// needsTorch leaves a test out where PyTorch does not yet have what it is about.
func needsTorch(t *testing.T, major, minor int) {
	t.Helper()
	if v := torchVersion(t); slices.Compare(v[:], []int{major, minor}) < 0 {
		t.Skipf("PyTorch %d.%d does not have it: it came with %d.%d", v[0], v[1], major, minor)
	}
}
