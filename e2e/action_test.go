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

// allocates is a program that keeps four blocks, and more if it is asked to.
const allocates = `import sys, torch
kept = [torch.empty(1 << 20, device="cuda") for _ in range(4)]
more = [torch.empty(1 << 20, device="cuda") for _ in range(int(sys.argv[1]))]
`

// TestAction runs the script of the GitHub Action and the GitLab template in a clone of a bare repository: the main branch keeps its peak
// there, and a change that needs more fails with the line that does.
func TestAction(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := filepath.Abs("../deploy/ci/gpu-memory")
	require.NoError(t, err)
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	git("init", "-q", "--bare", "origin.git")
	git("clone", "-q", "origin.git", "work")
	dir = filepath.Join(dir, "work")
	git("commit", "-q", "--allow-empty", "-m", "one")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "train.py"), []byte(allocates), 0o644))
	run := func(keep string, command ...string) (comment string, code int) {
		cmd := exec.Command(script, command...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GPUTRACE="+env.binary, "GPU_MEMORY_KEEP="+keep, "GPU_MEMORY_RULES=--no-oom --max-peak 1GiB", "COLUMNS=80")
		out, _ := cmd.CombinedOutput() // its exit code is looked at
		b, err := os.ReadFile(filepath.Join(dir, "gpu-memory.md"))
		require.NoError(t, err, "%s", out)
		return string(b), cmd.ProcessState.ExitCode()
	}
	check := func(more, keep string) (comment string, code int) {
		return run(keep, filepath.Join(env.testdata, "run"), "train.py", more)
	}
	comment, code := check("0", "yes")
	require.Zero(t, code, comment)
	require.Contains(t, comment, "### GPU memory: within its limits")
	require.Contains(t, git("ls-remote", "origin"), "refs/heads/gpu-memory-baseline")

	comment, code = check("6", "no")
	require.Equal(t, 4, code, comment)
	require.Contains(t, comment, "### GPU memory: a rule is not met")
	require.Contains(t, comment, "train.py:3 <listcomp>: 24.0 MiB at the peak, none in the baseline")
	require.Regexp(t, `train\.py:3 <listcomp> +- +24\.0 MiB +\+24\.0 MiB +\+6 +new`, comment)
	require.NotContains(t, comment, "passed")
	require.FileExists(t, filepath.Join(dir, "gpu-memory.xml"))

	for command, want := range map[string]int{"true": 4, "nosuchcommand": 127} {
		comment, code = run("yes", command)
		require.Equal(t, want, code, comment)
		require.Contains(t, comment, "nothing was recorded, exit code ", "not the results of the run before")
		require.NoDirExists(t, filepath.Join(dir, "gpu-memory"))
	}
}
