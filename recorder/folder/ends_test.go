// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/internal/made"
	"github.com/gputrace/gputrace/recording"
)

// TestSavedElsewhere: where the folder of results cannot be made, they are written to another, whose name is said.
func TestSavedElsewhere(t *testing.T) {
	for _, many := range []bool{false, true} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		results, _, f := recorded(t, many, nil)
		require.NoError(t, f.Close())
		f.reserved = nil // what is there now is somebody else's
		folder, err := results.Write()
		require.ErrorContains(t, err, "the results are in "+folder+" instead")
		require.Equal(t, dir, filepath.Dir(folder))
		require.Equal(t, many, strings.HasPrefix(filepath.Base(folder), "gputrace.job."))
		require.Equal(t, !many, strings.HasPrefix(filepath.Base(folder), "gputrace.7."))
		for _, p := range results.Processes() {
			require.Equal(t, filepath.Join(folder, p.Folder(), export.TraceName), p.File())
			require.FileExists(t, p.File())
		}
	}
}

// TestRecordingStays: when the results cannot be written anywhere, the recording stays where it was made.
func TestRecordingStays(t *testing.T) {
	results, _, f := recorded(t, true, nil)
	p := results.Processes()[0]
	at := p.File()
	require.Equal(t, p.temporaryFile(), at)
	folder, err := output.CreateFolder(filepath.Join(t.TempDir(), "out"), f.options.results())
	require.NoError(t, err)
	require.NoError(t, results.fill(folder))
	require.Equal(t, filepath.Join(folder.Dir, "pid7", export.TraceName), p.File())
	require.NoFileExists(t, at)
	require.NoError(t, results.giveBack(folder))
	folder.Discard()
	for _, p := range results.Processes() {
		require.Equal(t, p.temporaryFile(), p.File())
		require.FileExists(t, p.File())
	}
	require.NoError(t, results.giveBack(folder), "they are out of it")
	require.FileExists(t, at)
}

// warned returns a folder whose warnings are kept.
func warned(o Options) (*Folder, *made.Observer) {
	n := &made.Observer{}
	o.Warn = n.Warning
	return New(&o), n
}

// TestMovedToOtherDisk: when the results lie on another disk, the recording is in them alone.
func TestMovedToOtherDisk(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "gputrace-test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	from := filepath.Join(dir, "recording")
	require.NoError(t, os.WriteFile(from, []byte("events"), 0o600))
	f, n := warned(Options{})
	p := &Process{folder: f, file: from}
	folder, err := output.CreateFolder(filepath.Join(t.TempDir(), "out"), f.options.results())
	require.NoError(t, err)
	defer folder.Discard()
	require.NoError(t, p.adopt(folder))
	require.Empty(t, n.Warnings)
	require.Equal(t, filepath.Join(folder.Dir, export.TraceName), p.file)
	require.FileExists(t, p.file)
	require.NoFileExists(t, from)
	p.file = from // it is there no more
	require.NoError(t, p.adopt(folder))
	require.Len(t, n.Warnings, 1)
	require.Equal(t, from, p.file)
}

// TestAdopt: a recording for which there is no place stays where it is, and one that was removed is an error when it is dropped.
func TestAdopt(t *testing.T) {
	f, n := warned(Options{})
	file := filepath.Join(t.TempDir(), "recording")
	require.NoError(t, os.WriteFile(file, []byte("events"), 0o600))
	p := f.process(&recorder.Process{})
	p.file = file
	folder, err := output.CreateFolder(t.TempDir()+"/out", f.options.results())
	require.NoError(t, err)
	defer folder.Discard()
	require.NoError(t, os.MkdirAll(folder.Dir+"/trace.gputrace/x", 0o755))
	require.NoError(t, p.adopt(folder))
	require.Len(t, n.Warnings, 1)
	require.Contains(t, n.Warnings[0], "the recording stays at "+file)
	require.Equal(t, file, p.file)
	require.NoError(t, os.RemoveAll(folder.Dir+"/trace.gputrace"))
	require.NoError(t, p.adopt(folder))
	require.Equal(t, folder.Dir+"/trace.gputrace", p.file)
	require.NoError(t, os.Remove(p.file))
	require.ErrorIs(t, f.Drop(p.Process), os.ErrNotExist)
	require.Empty(t, p.file)
	require.NoError(t, f.Drop(p.Process), "there is none")
	require.NoError(t, p.adopt(folder))
	require.Len(t, n.Warnings, 1)
}

// TestEndNotWritten: where the end of a recording cannot be written, that is an error, and kept with the process.
func TestEndNotWritten(t *testing.T) {
	results, _, f := recorded(t, false, nil)
	p := results.Processes()[0]
	err := f.Finish(p.Process, &recording.End{}) // the file is closed
	require.ErrorContains(t, err, "file already closed")
	require.Equal(t, err, p.FileErr())
}

// TestNotCreated: a process whose recording cannot be begun has results without one, and a warning.
func TestNotCreated(t *testing.T) {
	s := one()
	path := ""
	s.Targets = nil
	s.Batches = append([]made.Batch{{Arrive: []recorder.Target{&made.Target{ID: 7}}}}, s.Batches...)
	results, seen, f := run(t, s, func(ro *recorder.Options, o *Options) {
		ro.Children = true
		path = o.Path
		ro.Labels = func(int, *process.About) map[string]string {
			require.NoError(t, os.WriteFile(filepath.Join(path, "pid7"), nil, 0o600)) // where its folder would be
			return nil
		}
	})
	require.Len(t, seen.Warnings, 1)
	require.Contains(t, seen.Warnings[0], "there will be no trace.gputrace")
	p := results.Processes()[0]
	require.Empty(t, p.File())
	require.ErrorContains(t, p.FileErr(), "there will be no trace.gputrace")
	require.Equal(t, path, f.path)
	folder, err := results.Write()
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(folder, "pid7", ProfileNames[0]))
}

// TestNoRecording: without a file there is nothing to move, to remove or to make formats of.
func TestNoRecording(t *testing.T) {
	results, seen, f := recorded(t, false, func(o *Options) {
		o.Path = ""
		o.Views = &Views{Names: "html", Write: func(string, WriteFile) error { return errors.New("called") }}
	})
	p := results.Processes()[0]
	require.Empty(t, p.File())
	require.NoError(t, f.Drop(p.Process))
	require.NoError(t, p.giveBack(&output.Folder{}))
	require.ErrorContains(t, p.writeViews(&output.Folder{}), "there is no recording")
	require.NotNil(t, p.Answer())
	require.Empty(t, seen.Warnings)
}

// TestUnasked: a format that nobody asked for is not made of a recording of many events; one that was asked for is.
func TestUnasked(t *testing.T) {
	results, _, f := recorded(t, false, nil)
	p := results.Processes()[0]
	for name, tt := range map[string]struct {
		events uint64
		asked  bool
		write  bool
	}{
		"few": {maxUnasked, false, true}, "many": {maxUnasked + 1, false, false}, "asked for": {maxUnasked + 1, true, true},
	} {
		wrote := false
		p.Final().Events = tt.events
		f.options.Views = &Views{
			Names: "html", Asked: tt.asked, Write: func(string, WriteFile) error { wrote = true; return nil },
		}
		err := p.writeViews(nil)
		require.Equal(t, tt.write, wrote, name)
		require.Equal(t, tt.write, err == nil, name)
		f.options.Views = nil
		require.NoError(t, p.writeViews(nil), name)
	}
}

// TestWantedViews: files that were not asked for are made of recordings that are not too long.
func TestWantedViews(t *testing.T) {
	require.True(t, (&Views{}).wanted(maxUnasked))
	require.False(t, (&Views{}).wanted(maxUnasked+1))
	require.True(t, (&Views{Asked: true}).wanted(maxUnasked+1))
}

// TestSavedInTheEnd: where the folder was moved away while results were made, they are written to another, the recording is where it
// was moved to, and nothing that was begun is left behind.
func TestSavedInTheEnd(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var path string
	results, n, f := recorded(t, false, func(o *Options) {
		path = o.Path
		o.Views = &Views{Write: func(string, WriteFile) error {
			return errors.Join(os.Rename(path, path+".moved"), os.WriteFile(path, nil, 0o600))
		}}
	})
	folder, err := results.Write()
	require.ErrorContains(t, err, "the results are in "+folder+" instead")
	require.FileExists(t, filepath.Join(folder, ProfileNames[0]))
	require.Contains(t, n.Warnings[len(n.Warnings)-1], "the recording stays at")
	require.FileExists(t, filepath.Join(path+".moved", "trace.gputrace"))
	left, err := os.ReadDir(filepath.Dir(f.path))
	require.NoError(t, err)
	require.Len(t, left, 2, "what is in the way, what was moved, and no folder that was begun")
}

// TestFailure: the folder of a failed request is beside the folder of results, under a name that is free, and explains the request.
func TestFailure(t *testing.T) {
	refused := made.Alloc(7, 2*made.Second, 0, 4096, 512)
	refused.Kind = event.KindOutOfMemory
	s := one()
	s.Batches[0].Events = append(s.Batches[0].Events, refused)
	results, seen, f := run(t, s, func(_ *recorder.Options, o *Options) {
		require.NoError(t, os.MkdirAll(o.Path+".oom1", 0o755)) // of an earlier recording
	})
	require.Empty(t, seen.Warnings)
	require.Empty(t, listing(t, f.path+".oom1"), "it is somebody else's")
	require.Equal(t, []string{"oom.json", "oom.txt", "trace.gputrace"}, listing(t, f.path+".oom2"))
	text, err := os.ReadFile(f.path + ".oom2/oom.json")
	require.NoError(t, err)
	require.Contains(t, string(text), "4096")
	require.Equal(t, f.path+".oom2", seen.Events[0].(*recorder.OutOfMemory).Kept)
	_, err = results.Write()
	require.NoError(t, err)
	require.FileExists(t, f.path+".oom2/trace.gputrace", "it stays")
}
