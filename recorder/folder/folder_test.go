// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/internal/made"
	"github.com/gputrace/gputrace/recording"
)

// listing is the files below a folder, sorted.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			out = append(out, name)
		}
		return err
	}))
	return out
}

// run records a source into a folder of the test's own.
func run(t *testing.T, s *made.Source, change func(*recorder.Options, *Options)) (*Results, *made.Observer, *Folder) {
	t.Helper()
	seen := &made.Observer{}
	ro := &recorder.Options{PIDs: []int{7}, Observer: seen, Version: "test", MaxStacks: 10}
	o := &Options{Path: t.TempDir() + "/out", Version: "test", Warn: seen.Warning}
	if change != nil {
		change(ro, o)
	}
	o.Many = ro.Many()
	f := New(o)
	if o.Path != "" {
		ro.Keeper = f
	}
	r := recorder.New(s, ro)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	return f.Results(results), seen, f
}

// one is a source of one process with one block.
func one() *made.Source {
	return &made.Source{Targets: []recorder.Target{&made.Target{ID: 7}}, Batches: []made.Batch{
		{Events: []event.Event{made.Alloc(7, made.Second, 0x1000, 512, 512)}},
	}}
}

// recorded runs a recording of one process, or of a job of two.
func recorded(t *testing.T, many bool, change func(*Options)) (*Results, *made.Observer, *Folder) {
	t.Helper()
	s := &made.Source{Targets: []recorder.Target{&made.Target{ID: 7, Self: process.About{Name: "python"}}}, Batches: []made.Batch{
		{Events: []event.Event{made.Alloc(7, made.Second, 0x1000, 512, 512), made.Alloc(7, 2*made.Second, 0x2000, 1024, 1536)}},
		{Events: []event.Event{made.Free(7, 3*made.Second, 0x2000, 1024, 512)}},
	}}
	if many {
		s.Targets = append(s.Targets, &made.Target{ID: 8})
		s.Batches = append(s.Batches, made.Batch{Events: []event.Event{made.Alloc(8, 4*made.Second, 0x1000, 4096, 4096)}})
	}
	return run(t, s, func(ro *recorder.Options, o *Options) {
		if many {
			ro.PIDs = []int{7, 8}
		}
		if change != nil {
			change(o)
		}
	})
}

// TestOne: the results of a process that is alone lie in the folder itself.
func TestOne(t *testing.T) {
	results, seen, f := recorded(t, false, nil)
	require.NoError(t, results.Err())
	folder, err := results.Write()
	require.NoError(t, err)
	require.Empty(t, seen.Warnings)
	require.Equal(t, f.options.Path, folder)
	require.Equal(t, []string{"alloc.pb.gz", "inuse.pb.gz", "peak.pb.gz", "trace.gputrace"}, listing(t, folder))
	p := results.Processes()[0]
	require.Equal(t, folder+"/trace.gputrace", p.File())
	require.NoError(t, p.FileErr())
	var b bytes.Buffer
	in, held := p.Summary()
	require.NoError(t, table.Summary(&b, in))
	require.Contains(t, b.String(), "1.5 KiB")
	require.Empty(t, held)
	file, err := recording.Open(p.File())
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, heap.New().Replay(file))
	require.NotEmpty(t, file.End().Verdict)
	require.Equal(t, p.Verdict(), file.End().Verdict)
	require.Nil(t, f.Results(nil))
}

// TestJob: each process has its own folder, by rank; one that used no memory has none.
func TestJob(t *testing.T) {
	rank := func(pid int, n string) *made.Target {
		return &made.Target{ID: pid, Self: process.About{Name: "python", Environ: []string{"RANK=" + n, "WORLD_SIZE=2"}}}
	}
	s := &made.Source{Targets: []recorder.Target{&made.Target{ID: 6}, rank(8, "1")}, Batches: []made.Batch{
		{Events: []event.Event{made.Alloc(8, made.Second, 0x1000, 512, 512)}},
		{Arrive: []recorder.Target{rank(9, "0")}, Events: []event.Event{made.Alloc(9, 2*made.Second, 0x1000, 2048, 2048)}},
	}}
	results, seen, f := run(t, s, func(ro *recorder.Options, _ *Options) { ro.PIDs = []int{6, 8}; ro.Children = true })
	require.Equal(t, []string{"rank 0, pid 9 python", "rank 1, pid 8 python"},
		[]string{results.Job().Rows[0].Process, results.Job().Rows[1].Process})
	require.EqualValues(t, 2, results.Job().Received)
	require.Equal(t, results.Ended.Sub(results.Began), results.Job().Duration)
	folder, err := results.Write()
	require.NoError(t, err)
	require.Empty(t, seen.Warnings)
	part := func(name string) []string {
		return []string{name + "/alloc.pb.gz", name + "/inuse.pb.gz", name + "/peak.pb.gz", name + "/trace.gputrace"}
	}
	want := append([]string{"alloc.pb.gz", "inuse.pb.gz", "peak.pb.gz"}, append(part("rank0-pid9"), part("rank1-pid8")...)...)
	require.Equal(t, want, listing(t, folder))
	require.NoFileExists(t, f.path+".pid6.gputrace", "of what used nothing there is no recording")
	require.NotNil(t, results.Answer())
}

// TestReplaced: a process that gets the number of one that ended has a recording of its own.
func TestReplaced(t *testing.T) {
	s := &made.Source{Targets: []recorder.Target{&made.Target{ID: 8}}, Batches: []made.Batch{
		{Events: []event.Event{made.Alloc(8, made.Second, 0x1000, 512, 512)}},
		{Arrive: []recorder.Target{&made.Target{ID: 8}}, Events: []event.Event{made.Alloc(8, 2*made.Second, 0x1000, 2048, 2048)}},
	}}
	results, _, _ := run(t, s, func(ro *recorder.Options, _ *Options) { ro.PIDs = []int{8}; ro.Children = true })
	folder, err := results.Write()
	require.NoError(t, err)
	all := results.Processes()
	require.Equal(t, []string{"pid8", "pid8.2"}, []string{all[0].Folder(), all[1].Folder()})
	require.Equal(t, folder+"/pid8.2/trace.gputrace", all[1].File())
}

// TestFormatsFail: a format that was asked for and cannot be made is said of one process as of many; the rest is written.
func TestFormatsFail(t *testing.T) {
	broken := errors.New("no such format today")
	for name, children := range map[string]bool{"one": false, "many": true} {
		t.Run(name, func(t *testing.T) {
			results, _, f := run(t, one(), func(ro *recorder.Options, o *Options) {
				ro.Children = children
				o.Views = &Views{Write: func(path string, write WriteFile) error {
					require.FileExists(t, path)
					ok := write("report.html", func(w io.Writer) error { _, err := io.WriteString(w, "page"); return err })
					return errors.Join(ok, write("memory.svg", func(io.Writer) error { return broken }))
				}}
			})
			results.viewErrs = []error{errors.New("of another folder")}
			_, err := results.Write()
			require.NoError(t, err)
			require.ErrorIs(t, results.ViewError(), broken)
			require.NotContains(t, results.ViewError().Error(), "of another folder")
			p := results.Processes()[0]
			require.FileExists(t, filepath.Join(f.path, p.Folder(), "report.html"))
			page, err := os.ReadFile(filepath.Join(f.path, "report.html"))
			require.NoError(t, err)
			require.Equal(t, "page", string(page), "a job of one process has the page of that")
			require.FileExists(t, filepath.Join(f.path, p.Folder(), "trace.gputrace"))
			require.Equal(t, children, strings.HasPrefix(results.ViewError().Error(), "pid 7: "))
		})
	}
}

// TestFirst: what people read first is made of the finished recording of a single process, once, before any file of the results is written.
func TestFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		more bool // a second process
		want int
	}{"one": {false, 1}, "several": {true, 2}} {
		t.Run(name, func(t *testing.T) {
			s := one()
			if tt.more {
				s.Targets = append(s.Targets, &made.Target{ID: 8})
				s.Batches = append(s.Batches, made.Batch{Events: []event.Event{made.Alloc(8, made.Second, 0x1000, 512, 512)}})
			}
			calls, given := 0, &answer.Answer{}
			results, _, f := run(t, s, func(ro *recorder.Options, o *Options) {
				ro.Children = tt.more
				o.Views = &Views{First: func(p *Process, folder string, views, alone bool) *answer.Answer {
					calls++
					require.FileExists(t, p.File())
					require.False(t, views, "there is no Write")
					if require.Equal(t, !tt.more, alone); alone {
						require.Equal(t, o.Path, folder)
						require.NoFileExists(t, filepath.Join(folder, ProfileNames[0]))
					}
					return given
				}}
			})
			_, err := results.Write()
			require.NoError(t, err)
			results.first(f.path) // as where the folder could not be finished, and is written elsewhere
			require.DirExists(t, f.path)
			require.Equal(t, tt.want, calls)
			require.Same(t, given, results.Processes()[0].Answer())
		})
	}
}
