// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// attaching is what is printed first when the attach takes a moment.
const attaching = `^(attaching to pid \d+, Ctrl-C ends it\n)?`

// TestRefused: where the programs do not load there is one clear sentence, its exit code, and nothing left behind, in the process or
// on the disk.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "hotloop"), "--batches", "1000000", "--go", filepath.Join(dir, "go")).ready(t)
	p.release(t)
	p.await(t, "batch 1 ")
	for name, c := range map[string]struct {
		wrapper []string
		code    int
		says    string
	}{
		"bpf is refused": {[]string{filepath.Join(env.programs, "forbid"), "bpf"}, 6,
			attaching + `gputrace: the system call bpf is refused to gputrace \(operation not permitted\): by a seccomp filter\n`},
		"no right": {withRights("sys_ptrace,dac_read_search"), 6, `missing CAP_BPF`},
		"no kernel types": {[]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs none /sys/kernel/btf && exec "$@"`, "sh"}, 7,
			attaching + `gputrace: the types of the kernel \(BTF\) are missing: /sys/kernel/btf/vmlinux is hidden in this container[^\n]*\n(  ` +
				`.*\n)+$`},
	} {
		for _, flags := range [][]string{{"-p", itoa(p.pid)}, {"-p", itoa(p.pid), "--children"}} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				require.NoError(t, os.Chmod(dir, 0o777)) // of another user too
				out := filepath.Join(dir, "out")
				words := append(append(c.wrapper, env.binary), append(flags, "-o", out, "-d", "100ms", "--cache-dir", "")...)
				cmd := exec.Command(words[0], words[1:]...)
				cmd.Dir = "/"
				_, err := cmd.Output()
				var exit *exec.ExitError
				require.True(t, errors.As(err, &exit), "%v", err)
				require.Regexp(t, c.says, string(exit.Stderr))
				require.Equal(t, c.code, exit.ExitCode(), "%s", exit.Stderr)
				require.False(t, exists(out))
				maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
				require.NoError(t, err)
				require.NotContains(t, string(maps), "[uprobes]")
			})
		}
	}
}
