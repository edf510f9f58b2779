// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
	"github.com/gputrace/gputrace/recorder/notice"
)

// noted is who is notified of a recording.
type noted struct {
	mu                sync.Mutex
	notices, warnings []string
}

func (n *noted) Event(e recorder.Event) {
	for _, line := range notice.Lines(e, true) {
		n.Notice(line)
	}
}

func (n *noted) Notice(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notices = append(n.notices, text)
}

func (n *noted) Warning(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.warnings = append(n.warnings, err.Error())
}

func (n *noted) Attached(*recorder.Process) {}
func (n *noted) Ready() error               { return nil }
func (n *noted) Live(*recorder.State)       {}
func (n *noted) Holders(*view.Joined)       {}
func (n *noted) Ended(*recorder.Process)    {}

// record is gputrace run, with the library that ships, on the fake.
func record(t *testing.T, f *fake, change func(*recorder.Options), command ...string) (*folder.Results, *noted, string, error) {
	t.Helper()
	library, err := os.ReadFile("shim/" + ShimName)
	require.NoError(t, err)
	n := &noted{}
	o := &recorder.Options{Command: command, Children: true, Observer: n, Version: "test", RingBytes: 64 << 20}
	if change != nil {
		change(o)
	}
	dir, err := os.MkdirTemp(filepath.Dir(f.asked), "results")
	require.NoError(t, err)
	files := keep(o, dir+"/out")
	s := Open(o, &Config{Library: library, Environ: []string{
		"LD_PRELOAD=" + f.dyld, "GPUTRACE_FAKE_LEDGER=" + f.ledger, "GPUTRACE_FAKE_TORCH=" + f.torch, "LD_LIBRARY_PATH=",
	}})
	r := recorder.New(s, o)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	out, err := r.Run(ctx)
	return files.Results(out), n, dir + "/out", err
}

// keep has a recorder write a folder of results.
func keep(o *recorder.Options, path string) *folder.Folder {
	f := folder.New(&folder.Options{Path: path, Many: o.Many(), Version: o.Version, Warn: o.Observer.Warning})
	o.Keeper = f
	return f
}

// written are the recordings of so many processes that ended without an error and without a warning, when they were written.
func written(t *testing.T, results *folder.Results, said *noted, dir string, processes int) []string {
	t.Helper()
	require.NoError(t, results.Err())
	require.Empty(t, said.warnings)
	_, err := results.Write()
	require.NoError(t, err)
	traces, err := filepath.Glob(filepath.Join(dir, "pid*", export.TraceName))
	require.NoError(t, err)
	require.Len(t, traces, processes)
	return traces
}

// TestRecord: a recording of the fake Mac is as any other: all formats are written of it, and what it says is the ledger's.
func TestRecord(t *testing.T) {
	f := buildFake(t)
	results, n, path, err := record(t, f, nil, python(t, "3.11"), "testdata/mac/train.py", f.asked, "30")
	require.NoError(t, err)
	require.NoError(t, results.Err())
	require.Empty(t, n.warnings)
	require.Contains(t, strings.Join(n.notices, "\n"), "out of memory: a request for 2.0 GiB failed")
	dir, err := results.Write()
	require.NoError(t, err)
	require.Equal(t, path, dir)

	traces, err := filepath.Glob(filepath.Join(dir, "pid*", export.TraceName))
	require.NoError(t, err)
	if len(traces) == 0 {
		traces = []string{filepath.Join(dir, export.TraceName)}
	}
	require.Len(t, traces, 1)
	in, err := export.Open(traces[0], nil)
	require.NoError(t, err)
	defer in.Close()
	input, err := in.Input(nil, "test", func(err error) { t.Error(err) })
	require.NoError(t, err)
	checkFormats(t, input)
	require.Contains(t, input.Info.Python, "3.11")
	require.NotEmpty(t, input.Info.Hooks)

	end := input.End
	require.NotNil(t, end)
	require.Len(t, end.Memory.Driver, 1)
	require.EqualValues(t, 1<<30, end.Memory.Driver[0].Total)
	require.Len(t, end.Memory.Torch, 1)
	checkHeapOf(t, f, input)
}

func checkFormats(t *testing.T, input *export.Input) {
	t.Helper()
	for i := range export.Formats {
		format := &export.Formats[i]
		path := filepath.Join(t.TempDir(), format.File)
		out, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, format.Write(out, input), format.Name)
		st, err := out.Stat()
		require.NoError(t, err)
		require.Greater(t, st.Size(), int64(64), format.Name)
		require.NoError(t, out.Close())
	}
}

// checkHeapOf: what is live at the end of a recording that was opened is what the ledger has.
func checkHeapOf(t *testing.T, f *fake, input *export.Input) {
	t.Helper()
	live := map[uint64]uint64{}
	first := true
	for _, e := range f.entries(t) {
		switch e.what {
		case "torch":
			if !first {
				live[e.object] = e.bytes
			}
			first = false
		case "torch-":
			delete(live, e.object)
		}
	}
	var want uint64
	for _, bytes := range live {
		want += bytes
	}
	v, err := input.View()
	require.NoError(t, err)
	require.Len(t, v.Snapshot.Accounts, 1)
	require.Equal(t, want, v.Snapshot.Accounts[0].Live.Bytes)
	require.Equal(t, "mps:0", v.Snapshot.Accounts[0].Device.String())
}

// TestNothingSeen: a program that the library is not loaded into, and one that does not use Metal, have each their reason.
func TestNothingSeen(t *testing.T) {
	f := buildFake(t)
	_, n, _, err := record(t, f, nil, python(t, "3.11"), "-c", "pass")
	require.ErrorIs(t, err, recorder.ErrEndedEarly)
	require.Contains(t, strings.Join(n.warnings, "\n"), "allocated nothing by Metal")

	f.dyld = "" // it is not inserted
	_, n, _, err = record(t, f, nil, python(t, "3.11"), "-c", "pass")
	require.ErrorIs(t, err, recorder.ErrEndedEarly)
	require.Contains(t, strings.Join(n.warnings, "\n"), "the library was not loaded into the program")

	_, _, _, err = record(t, f, nil, "no-such-program")
	var launch *recorder.LaunchError
	require.ErrorAs(t, err, &launch)

}
