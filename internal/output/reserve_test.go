// SPDX-License-Identifier: Apache-2.0

package output

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reserve takes a name that must be free.
func reserve(t *testing.T, path string, r *Results) *Reservation {
	t.Helper()
	v, err := Reserve(path, r)
	require.NoError(t, err)
	return v
}

// finish writes one file into the folder of results.
func finish(t *testing.T, v *Reservation, text string) {
	t.Helper()
	o, err := v.Folder()
	require.NoError(t, err)
	defer o.Discard()
	require.NoError(t, o.Write("inuse.pb.gz", put(text)))
	require.NoError(t, o.Finish())
}

// TestReserve: from the start nobody else has the name, and results take the place of what was written meanwhile.
func TestReserve(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	v := reserve(t, path+"/", results(false))
	require.Equal(t, path, v.Path())
	for _, force := range []bool{false, true} {
		_, err := Reserve(path, results(force))
		requireUsage(t, err, "another gputrace is recording there")
	}
	require.NoError(t, v.Part("pid7"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "pid7", "trace.gputrace"), nil, 0o600))
	finish(t, v, "one")
	require.NoError(t, v.Close())
	require.Equal(t, []string{"out"}, names(t, dir))
	require.Equal(t, []string{"inuse.pb.gz"}, names(t, path))
	_, err := Reserve(path, results(false))
	requireUsage(t, err, "exists already: give another with -o, or --force to replace it")
}

// TestReserveNothing: without results nothing is left, and what was to be replaced is as it was.
func TestReserveNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	v := reserve(t, path, results(false))
	require.NoError(t, v.Part("pid7"))
	require.NoError(t, v.Close())
	require.Empty(t, names(t, dir))
	v = reserve(t, path, results(false))
	finish(t, v, "one")
	require.NoError(t, v.Close())
	require.NoError(t, reserve(t, path, results(true)).Close())
	require.Equal(t, []string{"out"}, names(t, dir))
	requireFile(t, filepath.Join(path, "inuse.pb.gz"), "one")
	v = reserve(t, path, results(true))
	finish(t, v, "two")
	require.NoError(t, v.Close())
	require.Equal(t, []string{"out"}, names(t, dir))
	requireFile(t, filepath.Join(path, "inuse.pb.gz"), "two")
}

// TestReserveCutOff: what a gputrace that was killed has left stays until it is to be replaced, and goes with what that one replaced.
func TestReserveCutOff(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	finish(t, reserve(t, path, results(false)), "one")
	v := reserve(t, path, results(true))
	require.NoError(t, v.Part("rank0-pid7"))
	require.NoError(t, os.WriteFile(filepath.Join(path, "rank0-pid7", "trace.gputrace"), []byte("two"), 0o600))
	require.NoError(t, v.lock.Close()) // killed
	_, err := Reserve(path, results(false))
	requireUsage(t, err, "holds a recording that was cut off, which gputrace report "+path+" opens")
	requireFile(t, filepath.Join(path, "rank0-pid7", "trace.gputrace"), "two")
	v = reserve(t, path, results(true))
	finish(t, v, "three")
	require.NoError(t, v.Close())
	require.Equal(t, []string{"out"}, names(t, dir))
	require.Equal(t, []string{"inuse.pb.gz"}, names(t, path))
}

// TestReserveNext: where the name is only a proposal, the next free one is taken, whatever has it.
func TestReserveNext(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	for _, force := range []bool{false, true} {
		r := results(force)
		r.Next = true
		v := reserve(t, path, r)
		defer v.Close()
	}
	require.Equal(t, []string{"out", "out.2"}, names(t, dir))
}

// TestReserveNoPlace: each is an error of usage that says what is in the way.
func TestReserveNoPlace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("theirs"), 0o600))
	full, readOnly := filepath.Join(dir, "full"), filepath.Join(dir, "ro")
	for at, option := range map[string]string{full: "size=4k", readOnly: "ro"} {
		require.NoError(t, os.Mkdir(at, 0o755))
		out, err := exec.Command("mount", "-t", "tmpfs", "-o", option, "tmpfs", at).CombinedOutput()
		if err != nil && os.Getenv("CI") == "" {
			t.Skipf("no mounts here: %s", out)
		}
		require.NoError(t, err)
		defer func() { require.NoError(t, exec.Command("umount", at).Run()) }()
	}
	for path, want := range map[string]string{
		file:        "exists already and is not a folder: give another with -o",
		file + "/x": "is not a folder",
		full + "/x": "the first 256 KiB of a recording cannot be written: no space left on device\n  make room, or give another folder " +
			"with -o",
		readOnly + "/x": "read-only file system\n  give another folder with -o",
		filepath.Join(dir, strings.Repeat("x", 300)): "file name too long",
		filepath.Join(dir, strings.Repeat("x", 250)): "file name too long",
		"/proc/x": "nothing can be made in /proc",
	} {
		_, err := Reserve(path, results(true))
		requireUsage(t, err, want)
	}
	require.Equal(t, []string{"file", "full", "ro"}, names(t, dir))
	require.Empty(t, names(t, full))
	requireFile(t, file, "theirs")
}

// TestReservedIsBusy: a folder is busy while a gputrace records to it, and asking does not keep another one from it.
func TestReservedIsBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	require.False(t, Busy(path), "it is not there")
	v, err := Reserve(path, results(false))
	require.NoError(t, err)
	require.True(t, Busy(path))
	require.NoError(t, os.WriteFile(filepath.Join(path, "trace.gputrace"), nil, 0o600))
	require.NoError(t, v.Close())
	require.False(t, Busy(path))
}
