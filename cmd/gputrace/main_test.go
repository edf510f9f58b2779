// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/exit"
)

// asProgram makes, in its environment, this test's executable gputrace itself.
const asProgram = "GPUTRACE_TEST_PROGRAM=1"

func TestMain(m *testing.M) {
	if os.Getenv("GPUTRACE_TEST_PROGRAM") != "" {
		os.Exit(run(os.Args))
	}
	os.Exit(m.Run())
}

// program makes a folder with gputrace in it, for PATH, and returns it with the environment to use.
func program(t *testing.T) (dir string, env []string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "gputrace")))
	return dir, append(os.Environ(), asProgram, "PATH="+dir+":"+os.Getenv("PATH"))
}

// gputrace runs the program and returns what it prints and its exit code.
func gputrace(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	dir, env := program(t)
	cmd := exec.Command(filepath.Join(dir, "gputrace"), args...)
	cmd.Env = env
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), talk.String(), cmd.ProcessState.ExitCode()
}

// flat is a text without its line breaks, which depend on the width.
func flat(text string) string { return strings.Join(strings.Fields(text), " ") }

// requireUsage checks that an error is one of usage, and what it says.
func requireUsage(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.Equal(t, exitUsage, exit.Code(err))
}
