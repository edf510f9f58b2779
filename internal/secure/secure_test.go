// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package secure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// atSecure is AT_SECURE of linux/auxvec.h.
const atSecure = 23

// TestMain prints what the runtime found at its start, in the program that the tests start.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "show" {
		os.Exit(m.Run())
	}
	secure := "none"
	vector, err := unix.Auxv()
	if err != nil {
		secure = err.Error()
	}
	for _, pair := range vector {
		if pair[0] == atSecure {
			secure = fmt.Sprint(pair[1])
		}
	}
	fmt.Println("AT_SECURE", secure)
	fmt.Println(strings.Join(os.Args[1:], " "))
	fmt.Println(strings.Join(os.Environ(), "\n"))
	child, err := exec.Command("env").Output() // with what a program gets that is run
	fmt.Println("child", strings.ReplaceAll(strings.TrimSpace(string(child)), "\n", " "), err)
}

// withCapability copies this program to where anybody may run it, with one capability in its file.
func withCapability(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("file capabilities need root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "secure")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	file := filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(file, program, 0o755))
	// struct vfs_cap_data of linux/capability.h: revision 2 with the effective flag, CAP_KILL permitted.
	require.NoError(t, unix.Setxattr(file, "security.capability", append([]byte{1, 0, 0, 2, 1 << unix.CAP_KILL}, make([]byte, 15)...), 0))
	return file
}

// TestEnvironment: whatever the dynamic linker removes, the runtime has the auxiliary vector and the environment as it was set.
func TestEnvironment(t *testing.T) {
	file := withCapability(t)
	unsafe := []string{
		"LD_LIBRARY_PATH=/usr/local/cuda/lib64", "LD_PRELOAD=libjemalloc.so.2", "TMPDIR=/tmp", "TZDIR=/usr/share/zoneinfo",
		"MALLOC_TRACE=/dev/null",
		"GCONV_PATH=/tmp", "LD_AUDIT=/tmp/none.so", "GLIBC_TUNABLES=glibc.malloc.check=3", "RES_OPTIONS=debug",
	}
	all := append([]string{"A=b"}, unsafe...)
	all = append(all, "C=", "D=ö x")
	many := slices.Clone(all)
	for i := range 500 {
		many = append(many, fmt.Sprintf("V%d=%d", i, i))
	}
	for _, env := range [][]string{{}, {"A=b"}, {unsafe[0]}, {unsafe[0], "A=b"}, {"A=b", unsafe[0]}, unsafe[:2], unsafe, all, many} {
		cmd := exec.Command(file, "show", "", "last word")
		cmd.Env, cmd.Dir = slices.Concat([]string{"PATH=" + os.Getenv("PATH")}, env), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.Output() // ld.so writes to stderr that it found no such library
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
		require.Equal(t, "AT_SECURE 1", lines[0])
		require.Equal(t, "show  last word", lines[1])
		want := append(cmd.Env, "GOTRACEBACK=none") // which Go's runtime adds in secure execution
		require.Equal(t, want, lines[2:len(lines)-1])
		require.Equal(t, "child "+strings.Join(want, " ")+" <nil>", lines[len(lines)-1])
	}
}
