// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// results are those of a job.
func results(force bool) *Results {
	return &Results{
		Files: []string{"inuse.pb.gz", "peak.pb.gz", "alloc.pb.gz", "trace.gputrace"},
		Parts: regexp.MustCompile(`^(rank\d+-)?pid\d+(\.\d+)?$`), Force: force,
	}
}

func put(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// names lists a folder.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFolderAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	o, err := CreateFolder(path, results(false))
	require.NoError(t, err)
	require.NoError(t, o.Write("inuse.pb.gz", put("first")))
	require.NoError(t, o.Write("peak.pb.gz", put("second")))
	require.NoDirExists(t, path, "before it is complete")
	require.NoError(t, o.Finish())
	o.Discard() // as record does when it leaves

	require.Equal(t, []string{"out"}, names(t, dir), "nothing else is left")
	require.Equal(t, []string{"inuse.pb.gz", "peak.pb.gz"}, names(t, path))
	b, err := os.ReadFile(filepath.Join(path, "peak.pb.gz"))
	require.NoError(t, err)
	require.Equal(t, "second", string(b))
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.EqualValues(t, 0o755, st.Mode().Perm(), "others may read it")
}

func TestFolderDiscarded(t *testing.T) {
	dir := t.TempDir()
	o, err := CreateFolder(filepath.Join(dir, "out"), results(false))
	require.NoError(t, err)
	require.NoError(t, o.Write("inuse.pb.gz", put("x")))
	o.Discard()
	require.Empty(t, names(t, dir))
}

func TestFolderWriteFails(t *testing.T) {
	dir := t.TempDir()
	o, err := CreateFolder(filepath.Join(dir, "out"), results(false))
	require.NoError(t, err)
	cause := errors.New("disk full")
	err = o.Write("inuse.pb.gz", func(io.Writer) error { return cause })
	require.ErrorIs(t, err, cause)
	require.ErrorContains(t, err, filepath.Join(dir, "out", "inuse.pb.gz"), "the name that the user gave")
	require.Error(t, o.Write("inuse.pb.gz", put("again")), "a file is written once")
	require.ErrorContains(t, o.Write("notes.txt", put("x")), "not one of the files", "--force must know it")
}

// TestFolderTakenMeanwhile: another program made the folder while we recorded. It keeps its own.
func TestFolderTakenMeanwhile(t *testing.T) {
	for name, take := range map[string]func(string) error{
		"empty folder": func(p string) error { return os.Mkdir(p, 0o755) },
		"file":         func(p string) error { return os.WriteFile(p, []byte("theirs"), 0o644) },
		"broken link":  func(p string) error { return os.Symlink("/nowhere", p) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			o, err := CreateFolder(path, results(false))
			require.NoError(t, err)
			require.NoError(t, o.Write("inuse.pb.gz", put("ours")))
			require.NoError(t, take(path))
			require.ErrorContains(t, o.Finish(), "exists already")
			require.NoFileExists(t, filepath.Join(path, "inuse.pb.gz"))
			o.Discard()
			require.Equal(t, []string{"out"}, names(t, filepath.Dir(path)))
		})
	}
}

func TestCreateFolderRefuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	for path, want := range map[string]string{
		dir: "exists already", dir + "/file": "exists already", dir + "/none/out": "its folder", dir + "/file/out": "output",
		dir + "/nul\x00": "output", "-": "give a folder",
	} {
		_, err := CreateFolder(path, results(false))
		require.ErrorContains(t, err, want, "%q", path)
	}
	require.Equal(t, []string{"file"}, names(t, dir))
}

// TestFolderForced: what gputrace wrote is replaced as a whole; nothing else ever is.
func TestFolderForced(t *testing.T) {
	make := func(t *testing.T, path string) error {
		o, err := CreateFolder(path, results(true))
		if err != nil {
			return err
		}
		require.NoError(t, o.Write("peak.pb.gz", put("new")))
		return o.Finish()
	}
	for name, old := range map[string][]string{"nothing": nil, "a result": {"inuse.pb.gz", "trace.gputrace"}, "an empty folder": {}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			if old != nil {
				require.NoError(t, os.Mkdir(path, 0o755))
			}
			for _, file := range old {
				require.NoError(t, os.WriteFile(filepath.Join(path, file), []byte("old"), 0o644))
			}
			require.NoError(t, make(t, path))
			require.Equal(t, []string{"peak.pb.gz"}, names(t, path))
			require.Equal(t, []string{"out"}, names(t, filepath.Dir(path)), "nothing else is left")
		})
	}
	t.Run("a file", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "out")
		require.NoError(t, os.WriteFile(path, []byte("theirs"), 0o644))
		require.ErrorContains(t, make(t, path), "is not a folder")
	})
	for name, spoil := range map[string]func(string) error{
		"a file of the user": func(p string) error { return os.WriteFile(p+"/notes.txt", nil, 0o644) },
		"a folder":           func(p string) error { return os.Mkdir(p+"/inuse.pb.gz", 0o755) },
		"a link":             func(p string) error { return os.Symlink("/etc/passwd", p+"/inuse.pb.gz") },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			require.NoError(t, os.Mkdir(path, 0o755))
			require.NoError(t, spoil(path))
			require.ErrorContains(t, make(t, path), "gputrace did not write")
			require.Len(t, names(t, path), 1)
		})
	}
}

func TestGiveToUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("root is needed to give a file away")
	}
	for name, c := range map[string]struct {
		uid, gid string
		want     [2]uint32
	}{
		"sudo":            {"12345", "23456", [2]uint32{12345, 23456}},
		"no sudo":         {"", "", [2]uint32{0, 0}},
		"half":            {"12345", "", [2]uint32{0, 0}},
		"not a number":    {"x", "1", [2]uint32{0, 0}},
		"root under sudo": {"0", "0", [2]uint32{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SUDO_UID", c.uid)
			t.Setenv("SUDO_GID", c.gid)
			dir := t.TempDir()
			other := filepath.Join(t.TempDir(), "not ours")
			require.NoError(t, os.WriteFile(other, nil, 0o600))
			path := filepath.Join(dir, "out")
			o, err := CreateFolder(path, results(false))
			require.NoError(t, err)
			require.NoError(t, o.Write("inuse.pb.gz", put("x")))
			require.NoError(t, os.Symlink(other, filepath.Join(o.Dir, "link")))
			require.NoError(t, o.Finish())
			for _, p := range []string{path, path + "/inuse.pb.gz", path + "/link"} {
				require.Equal(t, c.want, owners(t, p), p)
			}
			require.Equal(t, [2]uint32{0, 0}, owners(t, other), "a link must not give away what it leads to")
			require.Equal(t, [2]uint32{0, 0}, owners(t, dir))
		})
	}
}

func owners(t *testing.T, path string) [2]uint32 {
	t.Helper()
	st, err := os.Lstat(path)
	require.NoError(t, err)
	sys, ok := st.Sys().(*syscall.Stat_t)
	require.True(t, ok, fmt.Sprintf("%T", st.Sys()))
	return [2]uint32{sys.Uid, sys.Gid}
}

// folderWith makes a folder that has empty files.
func folderWith(t *testing.T, files ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "result")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for _, f := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, f)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, f), nil, 0o644))
	}
	return dir
}

// TestForceOnJob: a folder of a job's results can be replaced, and no other with folders in it.
func TestForceOnJob(t *testing.T) {
	require.NoError(t, CheckFolder(folderWith(t, "inuse.pb.gz", "rank0-pid7/trace.gputrace", "pid8.2/alloc.pb.gz"), results(true)))
	require.ErrorContains(t, CheckFolder(folderWith(t, "inuse.pb.gz", "rank0-pid7/thesis.tex"), results(true)), "thesis.tex")
	require.ErrorContains(t, CheckFolder(folderWith(t, "inuse.pb.gz", "src/trace.gputrace"), results(true)), `"src"`)
	require.ErrorContains(t, CheckFolder(folderWith(t, "pid7/pid8/pid9/x"), results(true)), `"x"`)
}
