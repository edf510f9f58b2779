// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// started runs a command until the test ends, and gives its first line.
func started(t *testing.T, cmd *exec.Cmd) (p *Process, line string) {
	t.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p, err = Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p, strings.TrimSpace(line)
}

func TestEnviron(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "B=set-later; export B; echo $$; read x")
	cmd.Env = []string{"A=1", "EMPTY=", "LINES=two\nlines"}
	p, _ := started(t, cmd)
	got, err := p.Environ()
	require.NoError(t, err)
	require.Subset(t, got, []string{"A=1", "EMPTY=", "LINES=two\nlines"})
	require.NotContains(t, got, "B=set-later")

	bare := exec.Command("/bin/sh", "-c", "echo $$; read x")
	bare.Env = []string{}
	p, _ = started(t, bare)
	got, err = p.Environ()
	require.NoError(t, err)
	require.Empty(t, got)
}

// TestPIDs compares with what a process in a namespace of its own says of itself.
func TestPIDs(t *testing.T) {
	p, line := started(t, exec.Command("/bin/sh", "-c", "echo $$; read x"))
	require.Equal(t, strconv.Itoa(p.PID), line)
	require.Equal(t, []int{p.PID}, p.PIDs())

	args := []string{"--pid", "--fork", "/bin/sh", "-c", "echo $$; read x"}
	if os.Geteuid() != 0 {
		args = append([]string{"--user"}, args...)
	}
	outer, line := started(t, exec.Command("unshare", args...))
	require.Equal(t, "1", line, "the first process of its namespace")
	children := outer.Children()
	require.Len(t, children, 1)
	inner, err := Open(children[0])
	require.NoError(t, err)
	require.Equal(t, []int{inner.PID, 1}, inner.PIDs())
}

func TestExists(t *testing.T) {
	p := self(t)
	dir := t.TempDir()
	dangling := filepath.Join(dir, "dangling")
	require.NoError(t, os.Symlink("/nonexistent", dangling))
	require.True(t, p.Exists(dir))
	require.True(t, p.Exists(dangling))
	require.False(t, p.Exists(filepath.Join(dir, "nothing")))
}
