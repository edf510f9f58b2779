// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUsage checks exit codes, and that every message names the next step.
func TestUsage(t *testing.T) {
	plain := startIn(t, t.TempDir(), nil, "sleep", "1000")
	gone := startIn(t, t.TempDir(), nil, "true")
	gone.wait(t)
	used := t.TempDir()
	tests := []struct {
		name, args string
		code       int
		says       []string
	}{
		{"no pid", "-o x", 2, []string{"-p PID", "--help"}},
		{"not a number", "-p abc", 2, []string{`"abc"`, "not a process id"}},
		{"zero", "-p 0", 2, []string{"not a process id"}},
		{"negative", "-p -1", 2, []string{"not a process id"}},
		{"too large", "-p 99999999999", 2, []string{"not a process id"}},
		{"unknown flag", "-p PLAIN --frobnicate", 2, []string{"frobnicate", "--help"}},
		{"argument", "-p PLAIN extra", 2, []string{"extra", "--help"}},
		{"negative duration", "-p PLAIN -d -1s", 2, []string{`-d "-1s"`}},
		{"ring not a power of two", "-p PLAIN --ring-size 5000", 2, []string{"power of two"}},
		{"ring too small", "-p PLAIN --ring-size 2KiB", 2, []string{"4KiB"}},
		{"ring not a size", "-p PLAIN --ring-size many", 2, []string{`--ring-size "many"`}},
		{"output exists", "-p PLAIN -o " + used, 2, []string{used, "exists already", "another with -o"}},
		{"output nowhere", "-p PLAIN -o " + used + "/a/b", 2, []string{used + "/a"}},
		{"no such process", "-p GONE", 7, []string{"no process GONE"}},
		{"no CUDA", "-p PLAIN", 7, []string{"CUDA", "--wait"}},
		{"kernel thread", "-p 2", 7, nil},
		{"subcommand", "record -p PLAIN", 7, []string{"--wait"}},
	}
	pids := strings.NewReplacer("PLAIN", itoa(plain.pid), "GONE", itoa(gone.pid))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCommand(t)
			c.cmd.Args = append([]string{env.binary}, strings.Fields(pids.Replace(tt.args))...)
			before := folder(t, c.dir)
			c.start(t)
			require.Equal(t, tt.code, c.code(t), c.stderr.String())
			require.Regexp(t, attaching+"gputrace: ", c.stderr.String())
			for _, text := range tt.says {
				require.Contains(t, c.stderr.String(), pids.Replace(text))
			}
			require.Empty(t, c.stdout.String(), "talk goes to stderr")
			require.Equal(t, before, folder(t, c.dir))
		})
	}
}

func folder(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestChild names the child that uses CUDA when the parent does not.
func TestChild(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, "bash", "-c", env.programs+"/hotloop --go "+dir+"/go & wait")
	line := strings.TrimPrefix(p.await(t, "READY"), "READY ")
	c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT").start(t)
	require.Equal(t, 7, c.code(t))
	require.Contains(t, c.stderr.String(), "gputrace -p "+line)
}

// nobody is the user without any rights.
const nobody = 65534

// TestNotPermitted runs gputrace without privileges.
func TestNotPermitted(t *testing.T) {
	p := startPython(t, program).ready(t)
	dir, err := os.MkdirTemp("", "gputrace-e2e-nobody-") // below t.TempDir another user may not even look
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chown(dir, nobody, nobody))
	c := newCommand(t)
	c.cmd.Args = []string{env.binary, "-p", itoa(p.pid), "-o", filepath.Join(dir, "out"), "--cache-dir", ""}
	c.cmd.Dir = dir
	c.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	c.start(t)
	require.Equal(t, 6, c.code(t), c.stderr.String())
	require.Contains(t, c.stderr.String(), "CAP_")
	require.Contains(t, c.stderr.String(), "sudo gputrace -p "+itoa(p.pid))
	require.Empty(t, folder(t, dir))
}
