// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/kept"
	"github.com/gputrace/gputrace/recorder/reconcile"
	"github.com/gputrace/gputrace/recording"
)

// TestBefore: what was allocated before is by the first event where there was one, else by the allocator itself.
func TestBefore(t *testing.T) {
	p := &Process{target: &madeTarget{pid: 7}, before: []Totals{{0, 100, 1000}, {1, 200, 2000}, {2, 300, 3000}}, heap: newRecordedHeap(nil)}
	e := alloc(7, second, 0x1000, 512, 612)
	e.Device.Index = 1
	p.heap.take([]event.Event{e})
	before, err := p.Before(p.heap.Totals().Accounts)
	require.NoError(t, err)
	require.Equal(t, []Totals{{0, 100, 1000}, {1, 100, 2000}, {2, 300, 3000}}, before)
	require.EqualValues(t, 200, p.before[1].Allocated, "they are another's")
	p.stateErr = noStateHere
	_, err = p.Before(nil)
	require.ErrorIs(t, err, reconcile.ErrNoState)
}

// TestBaselineAtTheEnd: the totals of devices without events are those of the end, and those of the beginning where the process has ended.
func TestBaselineAtTheEnd(t *testing.T) {
	at := []Totals{{0, 512, 4096}, {1, 1024, 8192}, {2, 0, 0}}
	for name, tt := range map[string]struct {
		before, now         []Totals
		beforeErr, nowError error
		want                int
		err                 error
	}{
		"still there":            {before: at[:1], now: at, want: 2},
		"there now":              {beforeErr: noStateHere, now: at, want: 2},
		"ended":                  {before: at, nowError: errEnded, want: 2},
		"never there":            {beforeErr: noStateHere, nowError: errEnded, err: errEnded},
		"nothing on its devices": {before: at[2:], now: at[2:]},
	} {
		t.Run(name, func(t *testing.T) {
			target := &madeTarget{pid: 7, before: tt.now, noState: tt.nowError}
			p := &Process{target: target, before: tt.before, stateErr: tt.beforeErr, heap: newRecordedHeap(nil)}
			p.completeBaseline(t.Context())
			accounts := p.heap.Totals().Accounts
			require.Len(t, accounts, tt.want)
			for i := range accounts {
				require.Equal(t, at[i].Allocated, accounts[i].Allocated)
				require.Equal(t, at[i].Reserved, accounts[i].Reserved)
			}
			require.Equal(t, tt.err, p.stateErr)
		})
	}
}

// driverAlloc is a segment that the caching allocator obtains.
func driverAlloc(at, addr, size uint64) event.Event {
	e := alloc(7, at, addr, size, event.Unknown)
	e.Layer, e.Requested, e.Reserved, e.Call = event.LayerDevice, event.Unknown, event.Unknown, "cudaMalloc"
	return e
}

// TestBalanceOfOneMoment: where events and state differ, because the job went on, the parts are those of the events.
func TestBalanceOfOneMoment(t *testing.T) {
	block := alloc(7, 2*second, 0x10_0000, 512, 512)
	block.Reserved = 1 << 20
	p := &Process{target: &madeTarget{pid: 7, ended: true}, heap: newRecordedHeap(nil)}
	p.heap.take([]event.Event{driverAlloc(second, 0x10_0000, 1<<20), block})
	parts := p.heap.torchParts()
	require.Len(t, parts, 1)
	require.EqualValues(t, 512, parts[0].Allocated)
	require.EqualValues(t, 1<<20, parts[0].Reserved)
	require.EqualValues(t, 1<<20-512, parts[0].InactiveSplit)
	same, other := parts[0], parts[0]
	same.Pending, other.Allocated = 0, 1024
	uses := []figures.DriverUse{{Device: 0, Used: 2 << 20}}
	empty := figures.TorchMemory{Device: 1}
	in := p.balance(&Memory{Torch: []figures.TorchMemory{same, empty}, HasTorch: true, Driver: uses, Fresh: true, Moved: true}, nil)
	require.Equal(t, []figures.TorchMemory{same, empty}, in.Torch, "the state is of the same moment, and says more")
	require.Equal(t, uses, in.Driver)
	require.True(t, in.Whole)
	require.True(t, in.Moved)
	require.EqualValues(t, 7, in.PID)
	for name, change := range map[string]func(m *figures.TorchMemory){
		"allocated": func(m *figures.TorchMemory) { m.Allocated++ }, "reserved": func(m *figures.TorchMemory) { m.Reserved++ },
		"device": func(m *figures.TorchMemory) { m.Device = 3 },
	} {
		other := same
		change(&other)
		in = p.balance(&Memory{Torch: []figures.TorchMemory{other}, HasTorch: true, Driver: uses}, nil)
		require.Equal(t, parts, in.Torch, name)
		require.Nil(t, in.Driver, "it is said of another process of that number")
		require.Equal(t, "the process has ended", in.DriverWhy)
		require.Empty(t, in.TorchWhy)
	}
	unknown := &Process{target: &madeTarget{pid: 7, ended: true}, heap: newRecordedHeap(nil)}
	unknown.heap.take([]event.Event{block}) // in a segment that nobody saw
	require.Equal(t, "the process has ended", unknown.balance(&Memory{TorchErr: errors.New("torn")}, nil).TorchWhy)
}

// TestMemoryHangs: a driver that does not answer is waited for no longer than said.
func TestMemoryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		p := &Process{target: &slowTarget{madeTarget{pid: 7}, over}}
		ctx, cancel := context.WithTimeout(t.Context(), totalsTimeout)
		defer cancel()
		start := time.Now()
		m := p.readMemory(ctx)
		require.Equal(t, totalsTimeout, time.Since(start))
		require.ErrorContains(t, m.DriverErr, "5s")
		require.Equal(t, m.DriverErr, m.TorchErr)
		close(over)
	})
}

// TestMemoryOfMany: where there is no time for the allocator's blocks, what the driver says is there.
func TestMemoryOfMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Process{target: &manyTarget{madeTarget{pid: 7}}}
		ctx, cancel := context.WithTimeout(t.Context(), totalsTimeout)
		defer cancel()
		m := p.readMemory(ctx)
		require.NoError(t, m.DriverErr)
		require.ErrorIs(t, m.TorchErr, errSlowState)
		require.NoError(t, ctx.Err(), "in time")
	})
}

// manyTarget has so many blocks that reading them ends with the time for it.
type manyTarget struct{ madeTarget }

func (*manyTarget) Memory(ctx context.Context) *Memory {
	<-ctx.Done()
	return &Memory{TorchErr: context.Cause(ctx)}
}

// slowTarget does not say where its memory is until it may.
type slowTarget struct {
	madeTarget
	over chan struct{}
}

func (s *slowTarget) Memory(context.Context) *Memory {
	<-s.over
	return nil
}

// recorded runs a recording of one process, or of a job of two.
func recorded(t *testing.T, many bool, change func(*Options)) (*Results, *noted, *Options) {
	t.Helper()
	batches := []madeBatch{{events: []event.Event{alloc(7, second, 0x1000, 512, 512), alloc(7, 2*second, 0x2000, 1024, 1536)}}}
	batches = append(batches, madeBatch{events: []event.Event{free(7, 3*second, 0x2000, 1024, 512)}})
	s := &madeSource{start: []Target{&madeTarget{pid: 7, end: Running, about: process.About{Name: "python"}}}, batches: batches}
	if many {
		s.start = append(s.start, &madeTarget{pid: 8})
		s.batches = append(s.batches, madeBatch{events: []event.Event{alloc(8, 4*second, 0x1000, 4096, 4096)}})
	}
	r, n, o := newMade(t, s, func(o *Options) {
		if many {
			o.PIDs = []int{7, 8}
		}
		if change != nil {
			change(o)
		}
	})
	results, err := r.Run(t.Context())
	require.NoError(t, err)
	return results, n, o
}

// TestSavedElsewhere: where the folder of results cannot be made, they are written to another, whose name is said.
func TestSavedElsewhere(t *testing.T) {
	for _, many := range []bool{false, true} {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		results, _, _ := recorded(t, many, nil)
		results.reserved = nil // what is there now is somebody else's
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
	results, _, _ := recorded(t, true, nil)
	p := results.Processes()[0]
	at := p.File()
	require.Equal(t, p.temporaryFile(), at)
	folder, err := output.CreateFolder(filepath.Join(t.TempDir(), "out"), resultsOfTest)
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

// TestOtherDisk: a recording is moved to results on another disk, too, and no half of it is left there.
func TestOtherDisk(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.WriteFile(from, []byte("events"), 0o600))
	require.NoError(t, kept.Copy(from, to))
	b, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, "events", string(b))
	require.ErrorIs(t, kept.Copy(from, to), os.ErrExist)
	require.ErrorIs(t, kept.Copy(from+"x", to+"x"), os.ErrNotExist)
	require.NoFileExists(t, to+"x")
	require.Error(t, kept.Copy(t.TempDir(), to+"y"), "a folder cannot be read")
	require.NoFileExists(t, to+"y")
}

// TestMovedToOtherDisk: when the results lie on another disk, the recording is in them alone.
func TestMovedToOtherDisk(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "gputrace-test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	from := filepath.Join(dir, "recording")
	require.NoError(t, os.WriteFile(from, []byte("events"), 0o600))
	n := &noted{}
	p := &Process{file: from, observer: n}
	folder, err := output.CreateFolder(filepath.Join(t.TempDir(), "out"), resultsOfTest)
	require.NoError(t, err)
	defer folder.Discard()
	require.NoError(t, p.adoptFile(folder))
	require.Empty(t, n.warnings)
	require.Equal(t, filepath.Join(folder.Dir, export.TraceName), p.file)
	require.FileExists(t, p.file)
	require.NoFileExists(t, from)
	p.file = from // it is there no more
	require.NoError(t, p.adoptFile(folder))
	require.Len(t, n.warnings, 1)
	require.Equal(t, from, p.file)
}

// TestEndNotWritten: where the end of a recording cannot be written, that is said, and kept with the process.
func TestEndNotWritten(t *testing.T) {
	w, err := recording.Create(filepath.Join(t.TempDir(), export.TraceName), &recording.Info{PID: 7}, func(event.StackID) *event.Stack { return nil }, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close(&recording.End{}))
	n := &noted{}
	p := &Process{heap: &recordedHeap{writer: w}, observer: n}
	p.endFile(&recording.End{}, &view.View{Snapshot: &heap.Snapshot{}}) // the file is closed
	require.ErrorContains(t, p.FileErr(), "file already closed")
	require.Equal(t, []string{p.FileErr().Error()}, n.warnings)
}

// TestNoRecording: without a file there is nothing to move, to remove or to make formats of.
func TestNoRecording(t *testing.T) {
	results, n, _ := recorded(t, false, func(o *Options) {
		o.Output = ""
		o.Views = &Views{Names: "html", Write: func(string, WriteFile) error { return errors.New("called") }}
	})
	p := results.Processes()[0]
	require.Empty(t, p.File())
	p.dropFile()
	require.NoError(t, p.giveBackFile(&output.Folder{}))
	require.ErrorContains(t, p.writeViews(&output.Folder{}), "there is no recording")
	require.Empty(t, n.warnings)
}

// TestUnasked: a format that nobody asked for is not made of a recording of many events; one that was asked for is.
func TestUnasked(t *testing.T) {
	for name, tt := range map[string]struct {
		events uint64
		asked  bool
		made   bool
	}{
		"few": {maxUnasked, false, true}, "many": {maxUnasked + 1, false, false}, "asked for": {maxUnasked + 1, true, true},
	} {
		made := false
		p := &Process{file: "x", done: &concluded{events: tt.events}, options: &Options{Views: &Views{
			Names: "html", Asked: tt.asked, Write: func(string, WriteFile) error { made = true; return nil },
		}}}
		err := p.writeViews(nil)
		require.Equal(t, tt.made, made, name)
		require.Equal(t, tt.made, err == nil, name)
		p.options.Views = nil
		require.NoError(t, p.writeViews(nil), name)
	}
}

// readProfile is a profile of the results, read by pprof's own library.
func readProfile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	p, err := profile.Parse(f)
	require.NoError(t, err)
	return p
}

// inuseOf is the sum of inuse_space of a profile.
func inuseOf(t *testing.T, p *profile.Profile) int64 {
	t.Helper()
	for i, s := range p.SampleType {
		if s.Type == "inuse_space" {
			sum := int64(0)
			for _, x := range p.Sample {
				sum += x.Value[i]
			}
			return sum
		}
	}
	require.Fail(t, "no inuse_space")
	return 0
}

// TestProfiles: the profiles of a job are those of its processes together, and say what they are of.
func TestProfiles(t *testing.T) {
	for _, many := range []bool{false, true} {
		results, _, o := recorded(t, many, nil)
		_, err := results.Write()
		require.NoError(t, err)
		now, peak := readProfile(t, o.Output+"/inuse.pb.gz"), readProfile(t, o.Output+"/peak.pb.gz")
		want := map[bool][2]int64{false: {512, 1536}, true: {512 + 4096, 1536 + 4096}}[many]
		require.Equal(t, want[0], inuseOf(t, now))
		require.Equal(t, want[1], inuseOf(t, peak))
		warned := "each process at its own peak: their sum was never in use at one moment"
		require.Equal(t, many, strings.Contains(strings.Join(peak.Comments, "\n"), warned))
		require.NotContains(t, now.Comments, warned)
		if many {
			require.Equal(t, []string{"gputrace test, 2 processes", "pid 7: python", "pid 8: [pid 8]"}[:2], now.Comments[:2])
			part := readProfile(t, o.Output+"/pid7/peak.pb.gz")
			require.EqualValues(t, 1536, inuseOf(t, part))
			require.NotContains(t, part.Comments, warned)
			require.NotEmpty(t, table.Comments(results.all[0].done.summary))
			require.NotSubset(t, now.Comments, table.Comments(results.all[0].done.summary), "they are of one process")
		} else {
			require.Contains(t, now.Comments[0], "gputrace test, pid 7: ")
			require.Greater(t, len(now.Comments), 3, "the summary's figures")
			require.Subset(t, now.Comments, table.Comments(results.all[0].done.summary))
		}
	}
}

// compared is a reconciler that has compared an empty live set with an empty state.
func compared(t *testing.T) *reconcile.Reconciler {
	target := &madeTarget{pid: 7, state: func(context.Context) (*reconcile.State, error) { return &reconcile.State{}, nil }}
	r := reconcile.New(t.Context(), newRecordedHeap(nil), target, comparisons{&Process{observer: &noted{}}}, &reconcile.Drained{To: 1})
	for r.Report() == nil {
		r.Step()
		runtime.Gosched() // the state is read beside
	}
	return r
}

// TestJobProcesses: the page of a job has each of its processes.
func TestJobProcesses(t *testing.T) {
	results, _, _ := recorded(t, true, nil)
	var names []string
	for _, p := range results.jobProcesses() {
		require.NotNil(t, p.View)
		require.Equal(t, -1, p.Identity.Rank)
		names = append(names, p.Name+" in "+p.Folder)
	}
	require.Equal(t, []string{"pid 7 python in pid7", "pid 8  in pid8"}, names)
}

// TestFinish: the last comparison is asked for with the last scan.
func TestFinish(t *testing.T) {
	p := growing(t, 0).process
	p.reconciler = compared(t)
	require.False(t, p.reconciler.Over())
	p.finish()
	for range 1000 {
		if p.reconciler.Step(); p.reconciler.Over() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("nothing was compared")
}

// TestSavedInTheEnd: where the folder was moved away while results were made, they are written to another, the recording is where it
// was moved to, and nothing that was begun is left behind.
func TestSavedInTheEnd(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var output string
	results, n, o := recorded(t, false, func(o *Options) {
		output = o.Output
		o.Views = &Views{Write: func(string, WriteFile) error {
			return errors.Join(os.Rename(output, output+".moved"), os.WriteFile(output, nil, 0o600))
		}}
	})
	folder, err := results.Write()
	require.ErrorContains(t, err, "the results are in "+folder+" instead")
	require.FileExists(t, filepath.Join(folder, ProfileNames[0]))
	require.Contains(t, n.warnings[len(n.warnings)-1], "the recording stays at")
	require.FileExists(t, filepath.Join(output+".moved", "trace.gputrace"))
	left, err := os.ReadDir(filepath.Dir(o.Output))
	require.NoError(t, err)
	require.Len(t, left, 2, "what is in the way, what was moved, and no folder that was begun")
}

// TestCompared: the end waits for comparisons for a while, and longer where events were lost.
func TestCompared(t *testing.T) {
	target := &madeTarget{pid: 7}
	open := reconcile.New(t.Context(), newRecordedHeap(nil), target, comparisons{&Process{observer: &noted{}}}, &reconcile.Drained{})
	over := compared(t)
	over.Finish()
	for !over.Over() {
		over.Step()
		runtime.Gosched()
	}
	for _, c := range []struct {
		reconciler *reconcile.Reconciler
		lost       uint64
		since      time.Duration
		want       bool
	}{{over, 0, 0, true}, {open, 0, 0, false}, {open, 0, 2 * finalCheck, true}, {open, 1, 2 * finalCheck, false}} {
		target.lost = c.lost
		r := &Recorder{now: map[int]*Process{7: {reconciler: c.reconciler}}}
		require.Equal(t, c.want, (&closing{recorder: r, begun: time.Now().Add(-c.since)}).compared(), "%+v", c)
	}
}

// TestEnd: a recording says how it ended, with what was lost and how often it was compared.
func TestEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		end    End
		many   bool
		reason string
	}{
		"stopped": {Stopped, false, recording.ReasonStopped}, "exited": {Exited, false, recording.ReasonExited},
		"replaced": {Execed, false, recording.ReasonExeced}, "of a job": {Exited, true, recording.ReasonExited},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Process{target: &madeTarget{pid: 7, end: tt.end, lost: 4, over: 3}, options: &Options{PIDs: []int{7}, Children: tt.many}}
			p.start = time.Now()
			p.end = p.start.Add(time.Minute)
			p.reconciler = compared(t)
			hits := []figures.Hits{{Probe: "x", Hits: 3}}
			end := p.describeEnd((&Memory{}).Input(7), hits)
			require.Equal(t, tt.reason, end.Reason)
			require.Equal(t, time.Minute, end.Duration)
			require.EqualValues(t, 3, end.StacksOverLimit)
			require.Equal(t, hits, end.Hits)
			require.Equal(t, &figures.Checks{Made: 1}, end.Checks)
			require.Nil(t, end.RawStacks)
			if tt.many {
				require.EqualValues(t, 4, *end.Lost)
			} else {
				require.Nil(t, end.Lost, "it is in the hits")
			}
		})
	}
}
