// SPDX-License-Identifier: Apache-2.0

package kept

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// names are the files of a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestReplaceFile: a file is there as a whole, or as it was.
func TestReplaceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "oom.txt")
	write := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, _ = io.WriteString(w, text)
			return err
		}
	}
	require.NoError(t, replaceFile(path, write("one", nil)))
	require.ErrorContains(t, replaceFile(path, write("two", errors.New("no"))), "no")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "one", string(text))
	require.Equal(t, []string{"oom.txt"}, names(t, filepath.Dir(path)), "nothing is left over")
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
	require.Error(t, replaceFile(filepath.Join(path, "x"), write("", nil)))
}

// TestMake: what has no place is an error, and the recording has a second name.
func TestMake(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.gputrace")
	_, err := Make(file, filepath.Join(dir, "no", "run"), 1)
	require.ErrorContains(t, err, "keep what failed")
	_, err = Make(file, filepath.Join(dir, "run"), 1)
	require.ErrorContains(t, err, "keep what failed", "there is no such file")
	require.NoError(t, os.WriteFile(file, []byte("a recording"), 0o600))
	folder, err := Make(file, filepath.Join(dir, "run"), 1)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "run.oom2"), folder)
	a, err := os.Stat(file)
	require.NoError(t, err)
	b, err := os.Stat(filepath.Join(folder, "trace.gputrace"))
	require.NoError(t, err)
	require.True(t, os.SameFile(a, b))
}

// TestOtherDisk: a recording is moved to results on another disk, too, and no half of it is left there.
func TestOtherDisk(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.WriteFile(from, []byte("events"), 0o600))
	require.NoError(t, Copy(from, to))
	b, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "events", string(b))
	require.ErrorIs(t, Copy(from, to), os.ErrExist)
	require.ErrorIs(t, Copy(from+"x", to+"x"), os.ErrNotExist)
	require.NoFileExists(t, to+"x")
	require.Error(t, Copy(t.TempDir(), to+"y"), "a folder cannot be read")
	require.NoFileExists(t, to+"y")
}
