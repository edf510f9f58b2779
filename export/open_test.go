// SPDX-License-Identifier: Apache-2.0

package export

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recording"
)

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

// TestRecordingInJob: the folder of a job stands for its recording as long as it has one.
func TestRecordingInJob(t *testing.T) {
	one := folderWith(t, "inuse.pb.gz", "pid7/trace.gputrace")
	got, err := recordingIn(one)
	require.NoError(t, err)
	require.Equal(t, one+"/pid7/trace.gputrace", got)

	two := folderWith(t, "inuse.pb.gz", "rank0-pid7/trace.gputrace", "rank1-pid8/trace.gputrace")
	_, err = recordingIn(two)
	require.Equal(t, exit.Misuse, exit.Code(err))
	require.ErrorContains(t, err, "recordings of 2 processes: give the folder of one, such as "+two+"/rank0-pid7")
	got, err = recordingIn(two + "/rank1-pid8")
	require.NoError(t, err)
	require.Equal(t, two+"/rank1-pid8/trace.gputrace", got)

	none := folderWith(t, "inuse.pb.gz")
	_, err = recordingIn(none)
	require.Equal(t, exit.Invalid, exit.Code(err))
	require.ErrorContains(t, err, "no recording is in the folder")
}

// TestRecordingsHere: where a path leads nowhere, the recordings of the working directory are named, or how one is made.
func TestRecordingsHere(t *testing.T) {
	t.Chdir(folderWith(t, "other/file"))
	require.Equal(t, "none is in this folder; to make one: sudo gputrace -p PID", recordingsHere("nosuch"))
	t.Chdir(folderWith(t, "before/trace.gputrace", "later/trace.gputrace", "other/file"))
	require.Equal(t, "recordings here: before, later", recordingsHere("nosuch"))
	require.Equal(t, `did you mean "before"?`, recordingsHere("befroe"))
	t.Chdir(folderWith(t, "a/trace.gputrace", "b/trace.gputrace", "c/trace.gputrace", "d/trace.gputrace"))
	require.Equal(t, "recordings here: a, b, c and 1 more", recordingsHere("nosuch"))
}

// TestAlone: the lines of a recording that was cut off are read from the files that it names, unless it is opened alone.
func TestAlone(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "train.py")
	require.NoError(t, os.WriteFile(script, []byte("kept.append(secret)\n"), 0o644))
	j := eventtest.NewJob()
	j.Alloc(eventtest.Report+" "+script+":1:main", 1<<20)
	path := filepath.Join(dir, TraceName)
	w, err := recording.Create(path, &recording.Info{PID: 7}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	require.NoError(t, w.Flush())
	for _, alone := range []bool{false, true} {
		s, err := Open(path, &OpenOptions{Alone: alone})
		require.NoError(t, err)
		var out strings.Builder
		require.NoError(t, s.WriteBrief(&out, true))
		require.Equal(t, !alone, strings.Contains(out.String(), "kept.append(secret)"), out.String())
		require.NoError(t, s.Close())
	}
}
