// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/exit"
)

// requireUsage checks that an error is one of usage, and what it says.
func requireUsage(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorContains(t, err, text)
	require.Equal(t, exit.Misuse, exit.Code(err))
}

// withStdout runs f with another standard output.
func withStdout(out *os.File, f func()) {
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	os.Stdout = out
	f()
}

func TestWriteOutput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	require.NoError(t, Write(path, false, true, put("one")))
	requireFile(t, path, "one")
	requireUsage(t, Write(path, false, false, put("two")), "--force")
	requireFile(t, path, "one")
	require.NoError(t, Write(path, true, false, put("three")))
	requireFile(t, path, "three")
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o644, st.Mode().Perm(), "others may read it")
	require.Equal(t, []string{"out"}, names(t, dir), "nothing else is left")
}

func requireFile(t *testing.T, path, text string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, text, string(b))
}

func TestWriteOutputFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o644))
	full := errors.New("full")
	content := func(w io.Writer) error { return errors.Join(put("half")(w), full) }
	err := Write(path, true, false, content)
	require.ErrorIs(t, err, full)
	require.ErrorContains(t, err, path)
	requireFile(t, path, "old")
	require.Equal(t, []string{"out"}, names(t, dir), "nothing half-written is left")
	requireUsage(t, Write(filepath.Join(dir, "no", "out"), false, false, put("")), "its folder")
}

// TestWriteOutputName: an error names the file that was asked for, not the temporary one beside it, and what to do.
func TestWriteOutputName(t *testing.T) {
	for path, want := range map[string]string{
		"/proc/x.svg": "output /proc/x.svg: nothing can be made in /proc: no such file or directory\n  give another folder with -o",
		"/no/x.svg":   "output /no/x.svg: its folder /no is not there: make it, or give another with -o",
	} {
		require.EqualError(t, Write(path, false, false, put("")), want)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 300))
	require.EqualError(t, Write(long, false, false, put("")), "output "+long+": nothing can be made in "+filepath.Dir(long)+
		": file name too long\n  give another folder with -o")
	_, err := CreateFolder("/proc/out", &Results{})
	require.EqualError(t, err, "output /proc/out: nothing can be made in /proc: no such file or directory\n  give another folder with -o")
	path := filepath.Join(t.TempDir(), "x.svg")
	err = Write(path, false, false, func(w io.Writer) error {
		left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
		return errors.Join(err, os.Remove(left[0])) // as if somebody tidied up
	})
	require.EqualError(t, err, "output "+path+": no such file or directory")
}

// TestWriteOutputTaken: another program made the file while we wrote ours.
func TestWriteOutputTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	err := Write(path, false, false, func(w io.Writer) error { return os.WriteFile(path, []byte("theirs"), 0o644) })
	require.ErrorIs(t, err, os.ErrExist)
	requireFile(t, path, "theirs")
}

func TestWriteOutputPlaces(t *testing.T) {
	dir := t.TempDir()
	file, link, dangling := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o644))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, os.Symlink("/no/where", dangling))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o755))

	requireUsage(t, Write(link, false, false, put("new")), "exists already")
	require.NoError(t, Write(link, true, false, put("new")))
	requireFile(t, file, "new")
	to, err := os.Readlink(link)
	require.NoError(t, err, "a link stays one: /dev/stdout is one")
	require.Equal(t, "file", to)

	requireUsage(t, Write(dangling, false, false, put("new")), "exists already")
	requireUsage(t, Write(dangling, true, false, put("new")), "output")
	requireUsage(t, Write(filepath.Join(dir, "folder"), true, false, put("new")), "is not a file")

	before, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	for _, force := range []bool{false, true} {
		require.NoError(t, Write(os.DevNull, force, true, put("new")))
	}
	after, err := os.Stat(os.DevNull)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a device is never replaced")
}

func TestWriteOutputStdout(t *testing.T) {
	for _, path := range []string{"", "-"} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		withStdout(w, func() { err = Write(path, false, true, put("binary")) })
		require.NoError(t, err)
		require.NoError(t, w.Close())
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, "binary", string(b))
	}
}

// TestWriteOutputTerminal: a binary format on a terminal would be of no use to anyone.
func TestWriteOutputTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer terminal.Close()
	withStdout(terminal, func() {
		requireUsage(t, Write("-", true, true, put("binary")), "-o FILE")
		require.NoError(t, Write("-", false, false, put("text\n")))
	})
}

// TestWriteOutputToUser: sudo's user owns the file.
func TestWriteOutputToUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed to give a file away")
	}
	t.Setenv("SUDO_UID", "12345")
	t.Setenv("SUDO_GID", "23456")
	path := filepath.Join(t.TempDir(), "out")
	require.NoError(t, Write(path, false, false, put("x")))
	require.Equal(t, [2]uint32{12345, 23456}, owners(t, path))
}

// interruptedFile names, in the environment of this test's own child, the file that it is to write.
const interruptedFile = "GPUTRACE_TEST_INTERRUPTED"

// TestWriteOutputInterrupted: Ctrl-C leaves nothing half-written behind.
func TestWriteOutputInterrupted(t *testing.T) {
	if path := os.Getenv(interruptedFile); path != "" {
		_ = Write(path, false, false, func(w io.Writer) error {
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				return err
			}
			select {} // the signal ends this process
		})
		os.Exit(exit.OK)
	}
	path := filepath.Join(t.TempDir(), "out")
	child := exec.Command(os.Args[0], "-test.run=^TestWriteOutputInterrupted$", "-test.timeout=60s")
	child.Env = append(os.Environ(), interruptedFile+"="+path)
	var ended *exec.ExitError
	require.ErrorAs(t, child.Run(), &ended)
	require.Equal(t, exit.Interrupted, ended.ExitCode())
	require.Empty(t, names(t, filepath.Dir(path)))
}

func TestOutputFile(t *testing.T) {
	for _, path := range []string{"", "-"} {
		got, err := File(path, false)
		require.NoError(t, err)
		require.Empty(t, got)
	}
	path := filepath.Join(t.TempDir(), "out")
	got, err := File(path, false)
	require.NoError(t, err)
	require.Equal(t, path, got)
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	_, err = File(path, false)
	requireUsage(t, err, "exists already")
	_, err = File(path, true)
	require.NoError(t, err)
}
