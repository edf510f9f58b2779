// SPDX-License-Identifier: Apache-2.0

//go:build darwin

package dtrace

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompiled: macOS's own compiler of D takes the common part. It needs root.
func TestCompiled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.d")
	require.NoError(t, os.WriteFile(file, []byte((&Script{}).Text()), 0o644))
	out, err := exec.Command("dtrace", "-e", "-Z", "-p", "1", "-s", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
