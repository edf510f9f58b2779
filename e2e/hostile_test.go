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

// TestHostileTarget traces a program that lies in a folder, and has given itself a name, that would clear a terminal and write lines
// of their own, as root and with the fewest capabilities, where its files are found by their paths.
func TestHostileTarget(t *testing.T) {
	parent, err := os.MkdirTemp("", "gputrace-e2e-hostile-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	dir := filepath.Join(parent, "a\x1b[2Jb\n  try: sudo INJECTED \xff\u202e")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chmod(parent, 0o755))
	for _, name := range []string{"hotloop", "libc10.so"} {
		_, err := output("cp", filepath.Join(env.programs, name), dir)
		require.NoError(t, err)
	}
	for _, uid := range []int{0, nobody} {
		start := filepath.Join(t.TempDir(), "go")
		p := startIn(t, t.TempDir(), nil, "bash", "-c", `exec -a "$0" "$1" --go "$2"`, "x\x1b[2J\nINJECTED", filepath.Join(dir, "hotloop"), start)
		p.await(t, "READY")
		c := newCommand(t, "-p", itoa(p.pid), "-o", "OUT")
		if uid != 0 {
			c = as(t, uid, allRights, "-p", itoa(p.pid))
		}
		c.start(t).ready(t)
		require.NoError(t, os.WriteFile(start, nil, 0o644))
		p.wait(t)
		c.succeeds(t)
		for _, said := range []string{c.stdout.String(), c.stderr.String()} {
			require.NotContains(t, said, "\x1b")
			require.NotContains(t, said, "\u202e")
			for line := range strings.Lines(said) {
				require.False(t, strings.HasPrefix(strings.TrimSpace(line), "INJECTED"), said)
				require.False(t, strings.HasPrefix(strings.TrimSpace(line), "try:"), said)
			}
		}
		require.Regexp(t, `hooked +torch allocator +libc10.so +2 functions`, c.stderr.String())
		require.Contains(t, c.stdout.String(), "0 events lost", fmt.Sprint("user ", uid))
	}
}

// TestSourceOfOthers: the text of a line is shown only where the program's own user may read the file.
func TestSourceOfOthers(t *testing.T) {
	parent, err := os.MkdirTemp("", "gputrace-e2e-source-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	require.NoError(t, os.Chmod(parent, 0o755))
	secret, public := filepath.Join(parent, "secret"), filepath.Join(parent, "public")
	require.NoError(t, os.WriteFile(secret, []byte("root:SECRET\n"), 0o600))
	require.NoError(t, os.WriteFile(public, []byte("KNOWN TO ALL\n"), 0o644))
	dir := filepath.Join(parent, "job")
	require.NoError(t, os.Mkdir(dir, 0o777))
	code := fmt.Sprintf(`
import os, time, torch
def wait(name):
    while not os.path.exists(%q + '/' + name):
        time.sleep(0.005)
torch.cuda.init()
print('READY', os.getpid(), flush=True)
wait('go')
kept = []
for path in %q, %q:
    exec(compile("kept.append(torch.empty(1 << 20, device='cuda'))", path, 'exec'))
print('DONE', torch.cuda.memory_allocated(), flush=True)
wait('hold')
`, dir, secret, public)
	user := []string{"setpriv", fmt.Sprint("--reuid=", nobody), fmt.Sprint("--regid=", nobody), "--clear-groups"}
	args := append([]string{"--mount", "sh", "-c", openHome, t.TempDir()}, user...)
	setup := func(name string) string { // by root: that user may not
		value, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", name)
		require.NoError(t, err)
		return value
	}
	args = append(args, filepath.Join(env.testdata, "standin/standin-run"), setup("python"), "-c", code)
	p := startIn(t, dir, []string{"STANDIN_LIB=" + setup("standin")}, "unshare", args...)
	p.ready(t)
	c := startCommand(t, p)
	p.release(t)
	p.await(t, "DONE")
	c.interrupt(t)
	require.Contains(t, c.stdout.String(), "secret:1")
	require.Contains(t, c.stdout.String(), "KNOWN TO ALL")
	require.NotContains(t, c.stdout.String()+c.stderr.String(), "SECRET")
}
