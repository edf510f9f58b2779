// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

// addRecording makes a file of the format as it is now, to be kept for the versions to come.
var addRecording = flag.String("add-recording", "", "write a recording of this version to `FILE` in testdata, and what it says beside it")

// madeRecording records a random stream, with what the format has besides events: a checkpoint in the middle, lost events behind
// it, and a frame that was inlined.
func madeRecording(t *testing.T, path string, s *eventtest.Stream) {
	t.Helper()
	info := &recording.Info{
		Gputrace: version, Started: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC), StartedBoot: s.Events[0].Time, Attached: s.Events[0].Time,
		PID: eventtest.PID, Name: "python", Cmdline: []string{"python", "train.py"}, Python: "3.11.7", PyTorch: "2.15.0",
	}
	inlined := *s.Stacks[1]
	inlined.Frames = slices.Insert(slices.Clone(inlined.Frames), 0, inlined.Frames[0])
	inlined.Frames[0].Func, inlined.Frames[0].File, inlined.Frames[0].Line, inlined.Frames[0].Inlined = "at::inner", "op.cpp", 7, true
	s.Stacks[1] = &inlined
	w, err := recording.Create(path, info, s.Stack, nil)
	require.NoError(t, err)
	h := heap.New()
	half := len(s.Events) / 2
	for i := range s.Events {
		e := s.Events[i]
		h.Apply(&e)
		if i == half {
			require.NoError(t, w.Write(s.Events[:half+1]))
			require.NoError(t, w.Checkpoint(h.State(), h.Stacks()))
			lost := event.Annotation{Kind: event.AnnotationLost, PID: eventtest.PID, Loss: event.Loss{From: e.Time, To: e.Time + 1000, Events: 3}}
			require.NoError(t, h.Annotate(&lost))
			require.NoError(t, w.Annotate(&lost))
		}
	}
	begins := &event.Steps{Numbering: 1, Source: "backward", On: "train.py:10 main", First: 3,
		Begins: []uint64{s.Events[0].Time, s.Events[half].Time}}
	held := &event.Held{Time: s.Events[half].Time,
		Rows: []event.HeldRow{{Site: "train.py:10 main", Holder: "seen[0..2]", Bytes: 3072, Blocks: 3}}}
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationSteps, PID: eventtest.PID, Steps: begins}))
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationHeld, PID: eventtest.PID, Held: held}))
	reading := []byte(`{"time": 7, "driver": [{"device": 0, "used": 4096, "total": 8192, "all": null}]}`)
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationReading, PID: eventtest.PID, Reading: reading}))
	require.NoError(t, w.Write(s.Events[half+1:]))
	end := &recording.End{Reason: recording.ReasonStopped, Duration: time.Duration(s.Events[len(s.Events)-1].Time - s.Events[0].Time)}
	end.Sources = []recording.Source{{File: "/home/a b/train.py", Line: 10, Text: "x = f(y)"}}
	require.NoError(t, w.Close(end))
}

// said is what a recording says, in words of this test's own: how a report looks may change.
func said(t *testing.T, path string) string {
	t.Helper()
	o, err := export.Open(path, &export.OpenOptions{Warn: func(err error) { require.NoError(t, err) }})
	require.NoError(t, err)
	defer o.Close()
	middle, err := o.Trace.At(o.Trace.First() + (o.Trace.Last()-o.Trace.First())/4*3) // behind the checkpoint
	require.NoError(t, err)
	var out strings.Builder
	fmt.Fprintln(&out, o.Info.PID, o.Info.Cmdline, o.Info.Started, o.Info.PyTorch, o.End.Reason, o.End.Duration, o.End.Sources)
	if s, whole := o.Trace.Steps(); s != nil {
		fmt.Fprintln(&out, "steps", *s, whole, "held", o.Trace.Held())
	}
	if r := o.Trace.Readings(); r != nil {
		fmt.Fprintln(&out, "readings", r)
	}
	for _, v := range []*view.View{o.Trace.End(), middle} {
		fmt.Fprintln(&out, "events", v.Snapshot.Events, "first", v.Snapshot.First, "last", v.Snapshot.Time, "total", v.Total())
		for i := range v.Snapshot.Accounts {
			a := &v.Snapshot.Accounts[i]
			fmt.Fprintln(&out, a.PID, a.Device, "allocated", a.Allocated, a.Reserved, "before", a.Before, a.Lost, "peak", a.Peak, a.PeakTime,
				"events", a.Allocs, a.Frees, a.OOMs)
		}
		for _, l := range v.Snapshot.LossIntervals {
			fmt.Fprintln(&out, "lost", l.PID, l.From, l.To, l.Events)
		}
		for i := range v.Snapshot.Drivers {
			d := &v.Snapshot.Drivers[i]
			fmt.Fprintln(&out, d.PID, d.Layer, d.Device, d.Live.Objects, d.Live.Bytes, d.Segments.Bytes, "peak", d.Peak, d.PeakTime)
		}
		for i := range v.Sites {
			s := &v.Sites[i]
			fmt.Fprintln(&out, s.Layer, s.Device, s.Call, s.Name, s.Status(), s.Alloc.Objects, s.Alloc.Bytes, s.Inuse.Objects, s.Inuse.Bytes,
				s.Inuse.Requested, s.Peak.Bytes)
			for _, f := range framesOf(s) {
				if f.Inlined {
					fmt.Fprint(&out, "   inlined")
				}
				fmt.Fprintln(&out, "  ", f.Label(), f.File, f.Line, f.StartLine, f.Offset)
			}
		}
	}
	return out.String()
}

func framesOf(s *view.Site) []event.Frame {
	if s.Stack == nil {
		return nil
	}
	return s.Stack.Frames
}

// Files that earlier versions wrote say what they said then. They are kept as they are: a test that fails here means that users
// can no longer read theirs.
func TestOlderRecordings(t *testing.T) {
	if *addRecording != "" {
		path := filepath.Join("testdata", *addRecording)
		madeRecording(t, path, eventtest.Random(1, 2500))
		require.NoError(t, os.WriteFile(strings.TrimSuffix(path, filepath.Ext(path))+".txt", []byte(said(t, path)), 0o644))
	}
	files, err := filepath.Glob("testdata/*.gputrace")
	require.NoError(t, err)
	present := fmt.Sprintf("testdata/recording-%d.%d.gputrace", recording.Major, recording.Minor)
	require.Contains(t, files, present, "go test ./cmd/gputrace -run OlderRecordings -add-recording %s", filepath.Base(present))
	for _, f := range files {
		want, err := os.ReadFile(strings.TrimSuffix(f, filepath.Ext(f)) + ".txt")
		require.NoError(t, err)
		require.Equal(t, string(want), said(t, f), f)
	}
}

// A folder of results stands for its recording.
func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	madeRecording(t, filepath.Join(dir, export.TraceName), eventtest.Random(1, 100))
	require.Equal(t, said(t, filepath.Join(dir, export.TraceName)), said(t, dir))
	_, err := export.Open(t.TempDir(), nil)
	require.ErrorContains(t, err, "no recording is in the folder")
}
