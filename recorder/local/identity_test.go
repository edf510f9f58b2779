// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
)

// startSudo starts a shell under the name of sudo, with an environment, and returns it.
func startSudo(t *testing.T, environment ...string) *process.Process {
	t.Helper()
	shell, err := os.ReadFile("/bin/sh")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "sudo")
	require.NoError(t, os.WriteFile(file, shell, 0o755))
	cmd := exec.Command(file, "-c", "echo ready; read line")
	cmd.Env = environment
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p
}

// TestCallerEnvironment: the program has the environment that sudo was called with, and what sudo's command line
// sets beside it; what sudo sets of itself does not count.
func TestCallerEnvironment(t *testing.T) {
	sudo := startSudo(t, "PATH=/venv/bin:/usr/bin", "VIRTUAL_ENV=/venv", "LD_LIBRARY_PATH=/cuda", "HOME=/home/a", "LEVEL=1")
	require.Equal(t, sudo.PID, ancestor(sudo.PID).PID)
	require.Nil(t, ancestor(os.Getpid()), "this is no sudo")
	own := []string{"PATH=/usr/sbin", "HOME=/root", "USER=root", "SUDO_UID=7", "CUDA_VISIBLE_DEVICES=1", "LEVEL=2"}
	as := &identity{env: callerEnvironment(sudo, own)}
	for name, want := range map[string]string{
		"PATH": "/venv/bin:/usr/bin", "VIRTUAL_ENV": "/venv", "LD_LIBRARY_PATH": "/cuda", "HOME": "/home/a", "CUDA_VISIBLE_DEVICES": "1",
		"LEVEL":    "2",
		"SUDO_UID": "", "USER": "",
	} {
		require.Equal(t, want, as.value(name), name)
	}
	require.Equal(t, 1, strings.Count(strings.Join(as.env, "\n"), "LEVEL="))
}

// TestIdentity: the user and the variables that are asked for.
func TestIdentity(t *testing.T) {
	t.Setenv("SUDO_UID", "")
	t.Setenv("KEEP", "kept")
	l := &live{options: &recorder.Options{Env: []string{"A=b=c", "KEEP"}}}
	as, err := l.identity()
	require.NoError(t, err)
	require.Nil(t, as.user)
	require.Nil(t, as.attributes())
	require.Equal(t, "b=c", as.value("A"))
	require.Equal(t, "kept", as.value("KEEP"))
	require.Equal(t, "", as.String())

	l.options.User = "no such user"
	_, err = l.identity()
	require.EqualError(t, err, `--user: there is no user "no such user"`)
	l.options.User = "nobody"
	as, err = l.identity()
	if os.Geteuid() != 0 {
		require.ErrorContains(t, err, "only root")
		return
	}
	require.NoError(t, err)
	require.Equal(t, "nobody", as.value("USER"))
	require.Equal(t, " (user nobody)", as.String())
	cmd := exec.Command("/bin/sh", "-c", "id -un; echo $A")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", as.env, as.attributes()
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "nobody\nb=c\n", string(out))
}

// TestLookPath: the program is looked for in the search path of whom it runs as.
func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "program-of-theirs")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	l := &live{options: &recorder.Options{User: "nobody", Env: []string{"PATH=/none:" + dir}}}
	if os.Geteuid() != 0 {
		t.Skip("only root can run a program as another user")
	}
	as, err := l.identity()
	require.NoError(t, err)
	_, err = as.lookPath("program-of-theirs")
	require.ErrorIs(t, err, exec.ErrNotFound, "it may not be executed")
	require.NoError(t, os.Chmod(file, 0o755))
	found, err := as.lookPath("program-of-theirs")
	require.NoError(t, err)
	require.Equal(t, file, found)
}
