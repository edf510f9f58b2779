// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// beginning is the first ten lines of the summary that run ended with, with single spaces: a sentence can go on in the next line.
func beginning(t *testing.T, c *command, head string) string {
	t.Helper()
	_, summary, ok := strings.Cut(c.stderr.String(), "\n"+head)
	require.True(t, ok, c.stderr.String())
	lines := strings.Split(head+summary, "\n")
	return strings.Join(strings.Fields(strings.Join(lines[:min(10, len(lines))], " ")), " ")
}

// requireAnswer requires that the lines say what leaks says: the verdict, the line and its source, what holds the memory.
func requireAnswer(t *testing.T, first string, r *leakReport) {
	t.Helper()
	require.NotEmpty(t, r.Findings)
	f := r.Findings[0]
	require.Contains(t, first, "GROWING")
	require.Contains(t, first, fmt.Sprintf("%s:%d %s", filepath.Base(f.File), f.Line, f.Function))
	require.Contains(t, first, nameOf(t, f.Holder))
	source := strings.TrimSpace(sourceLine(t, f.File, f.Line))
	require.Contains(t, first, source[:min(len(source), 40)])
}

// TestFirstLines: what a program was started for is in the first ten lines of what run says at its end.
func TestFirstLines(t *testing.T) {
	t.Run("growing", func(t *testing.T) {
		hold := filepath.Join(t.TempDir(), "hold")
		c := runFor(t, "30s", hold, filepath.Join(env.testdata, "run"), workload("leak.py"), "--steps", "60", "--batch", "64", "--hold", hold)
		requireAnswer(t, beginning(t, c, "gputrace  leak.py"), leaksIn(t, onlyRecording(t, c)))
	})
	t.Run("steady", func(t *testing.T) {
		c := runToEnd(t, filepath.Join(env.testdata, "run"), workload("mlp.py"), "--steps", "60")
		r := leaksIn(t, onlyRecording(t, c))
		require.Equal(t, "steady", r.Verdict)
		first := beginning(t, c, "gputrace  mlp.py")
		require.Contains(t, first, fmt.Sprintf("STEADY nothing grew from step to step in %d steps", r.Steps.Count))
		for _, held := range []string{"optimizer state", "gradients", "parameters", "mlp.py:"} {
			require.Contains(t, first, held)
		}
	})
	t.Run("job", func(t *testing.T) {
		dir := t.TempDir()
		script := filepath.Join(dir, "uneven.py")
		holding := strings.Replace(uneven, "os._exit(0)", "while not os.path.exists('DIR/hold'): time.sleep(0.01)", 1)
		require.NoError(t, os.WriteFile(script, []byte(strings.ReplaceAll(holding, "DIR", dir)), 0o600))
		both := `for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 ` + filepath.Join(env.testdata, "run") + " " + script +
			` & done; wait`
		c := runFor(t, "40s", filepath.Join(dir, "hold"), "/bin/sh", "-c", both)
		found, err := filepath.Glob(filepath.Join(c.out(), "*", traceFile))
		require.NoError(t, err)
		require.Len(t, found, 2)
		first := beginning(t, c, "GROWING")
		for _, path := range found {
			r := leaksIn(t, path)
			require.Equal(t, "growing", r.Verdict)
			require.Contains(t, first, fmt.Sprintf("%s:%d", filepath.Base(r.Findings[0].File), r.Findings[0].Line))
			require.Contains(t, first, nameOf(t, r.Findings[0].Holder))
		}
	})
}

// nameOf is the name of what is indexed in a holder: history[ of "self.history[0..59]".
func nameOf(t *testing.T, holder string) string {
	t.Helper()
	name, _, ok := strings.Cut(holder, "[")
	require.True(t, ok, holder)
	return name[strings.LastIndexAny(name, " .")+1:] + "["
}

// runFor has run record the beginning of a program that holds still behind it until there is a file, and waits for its end.
func runFor(t *testing.T, time, hold string, program ...string) *command {
	t.Helper()
	c := newCommand(t, append([]string{"run", "-d", time, "-o", "OUT", "--"}, program...)...)
	c.cmd.Env = append(c.cmd.Env, "OMP_NUM_THREADS=1")
	c.start(t)
	eventually(t, "the summary", func() bool { return strings.Contains(c.stderr.String(), "\n  wrote ") })
	require.NoError(t, os.WriteFile(hold, nil, 0o600))
	c.succeeds(t)
	return c
}

// runToEnd has run start a program, and waits for its end.
func runToEnd(t *testing.T, program ...string) *command {
	t.Helper()
	c := newCommand(t, append([]string{"run", "-o", "OUT", "--"}, program...)...)
	c.cmd.Env = append(c.cmd.Env, "OMP_NUM_THREADS=1")
	c.start(t).succeeds(t)
	return c
}

// onlyRecording is the recording of the one process that run found.
func onlyRecording(t *testing.T, c *command) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.out(), "*", traceFile))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}
