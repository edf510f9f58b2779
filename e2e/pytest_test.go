// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPytestPlugin runs the tests of the Python package that need a device: the pytest plugin by pytester, and
// gputrace.record in a program.
func TestPytestPlugin(t *testing.T) {
	t.Parallel()
	plugin, err := filepath.Abs("testdata/plugin_test.py")
	require.NoError(t, err)
	temporary := filepath.Join(t.TempDir(), "pytest")
	cmd := exec.Command(filepath.Join(env.testdata, "run"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", temporary, plugin)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GPUTRACE="+env.binary,
		"PYTHONPATH="+filepath.Join(env.testdata, "..", "release", "python")+":"+installed(t, "pytest==9.2.0"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "9 passed")
}
