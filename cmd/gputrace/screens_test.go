// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/screen"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recording"
)

var updateScreens = flag.Bool("update", false, "TestScreens and TestAnswersFit write their files anew")

// Lines of a program, some with long names.
const (
	trains  = " /home/a/train.py:52:Trainer.train"
	site    = "/v/lib/python3.11/site-packages/torch/"
	weights = eventtest.Report + " " + site + "nn/modules/linear.py:106:Linear.__init__ /home/a/model.py:14:Encoder.__init__ " +
		"/home/a/train.py:40:main"
	forward = eventtest.Report + " " + eventtest.Library + " /home/a/model.py:31:Encoder.forward" + trains
	deep    = eventtest.Report + " " + eventtest.Library +
		" /home/a/a_module_with_a_long_name_of_its_own.py:1234:Decoder.forward.<locals>.<listcomp>" + trains
	kept     = eventtest.Report + " /home/a/train.py:61:Trainer.train"
	backward = eventtest.Report + " libtorch_cpu.so!torch::autograd::generated::AddmmBackward0::apply"
	moments  = eventtest.Report + " " + site + "optim/adam.py:300:_multi_tensor_adam " + site + "optim/adam.py:200:Adam.step" + trains
)

// steps trains for some steps; what forward allocates is as much as fits. leak: bytes that each step keeps.
func steps(j *eventtest.Job, n int, leak uint64) {
	j.Alloc(weights, 48<<20)
	for i := range n {
		inputs := []uint64{j.Alloc(forward, 96<<20), j.Alloc(deep, 64<<20), j.Alloc(backward, 16<<20)}
		if i == 0 {
			j.Alloc(moments, 96<<20)
		}
		for _, addr := range inputs {
			j.Free(addr)
		}
		j.Pass(moments)
		if leak > 0 {
			j.Alloc(kept, leak)
		}
	}
}

// screens are the programs whose summaries are kept.
var screens = map[string]func(j *eventtest.Job, end *recording.End){
	"growing": func(j *eventtest.Job, _ *recording.End) { steps(j, 40, 5<<20) },
	"steady":  func(j *eventtest.Job, _ *recording.End) { steps(j, 40, 0) },
	"out-of-memory": func(j *eventtest.Job, end *recording.End) {
		end.Memory.Driver[0].Used, end.Memory.Driver[0].All = 22<<30, 22<<30
		steps(j, 25, 0)
		for range 24 {
			j.Alloc(forward, 900<<20)
		}
		j.Add(event.Event{
			Kind: event.KindOutOfMemory, Layer: event.LayerAllocator, Size: 900 << 20, Requested: 900 << 20, Allocated: j.Total(),
			Stack: j.ID(forward),
		})
	},
	"lost": func(j *eventtest.Job, end *recording.End) {
		steps(j, 40, 0)
		end.Hits[0].Hits += 7
		end.Hits[0].Dropped = map[string]uint64{"ring full": 7}
		end.Checks.Differences = 1
	},
	"nothing": func(*eventtest.Job, *recording.End) {},
}

// screenRecording writes a program to a file.
func screenRecording(t *testing.T, program func(*eventtest.Job, *recording.End)) string {
	t.Helper()
	j := eventtest.NewJob()
	end := &recording.End{
		Reason: recording.ReasonStopped, Duration: 10 * time.Second, Checks: &figures.Checks{Made: 2},
		Hits:   []figures.Hits{{Probe: "libc10.so report"}},
		Memory: &recording.Memory{Driver: []figures.DriverUse{{Device: 0, Used: 3 << 30, Total: 24 << 30, All: 3<<30 + 1<<29}}},
		Sources: []recording.Source{
			{File: "/home/a/train.py", Line: 61, Text: "self.history.append(loss)"},
			{File: "/home/a/model.py", Line: 31, Text: "x = self.activation(layer(torch.cat([x, self.positions[: x.shape[1]]], dim=-1)))"},
		},
	}
	program(j, end)
	for i := range j.Events { // ten seconds, and 20 MiB of free blocks
		j.Events[i].Time = uint64(i+1) * uint64(end.Duration) / uint64(len(j.Events))
		j.Events[i].Reserved = j.Events[i].Allocated + 20<<20
	}
	end.Hits[0].Emitted = uint64(len(j.Events))
	end.Hits[0].Hits += end.Hits[0].Emitted
	path := filepath.Join(t.TempDir(), export.TraceName)
	w, err := recording.Create(path, &recording.Info{
		Gputrace: version, PID: eventtest.PID, Name: "python", PyTorch: "2.15.0",
		Cmdline: strings.Fields("/usr/bin/python /home/a/train.py --layers 24 --batch 512 --precision bf16 --data /data/corpus/tokens"),
	}, j.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(j.Events))
	held := &event.Held{Time: uint64(end.Duration),
		Rows: []event.HeldRow{{Site: "train.py:61 Trainer.train", Holder: "self.history[0..39]", Bytes: 200 << 20, Blocks: 40}}}
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationHeld, PID: eventtest.PID, Held: held}))
	require.NoError(t, w.Close(end))
	return path
}

var sgr = regexp.MustCompile("\x1b\\[[0-9;]*m")

// TestScreens: the summary of each program at each width, as it was looked at. No line is longer than the screen, and from 80 columns on
// there are at most 24.
func TestScreens(t *testing.T) {
	for name, program := range screens {
		path := screenRecording(t, program)
		for _, s := range []screen.Screen{{Width: 60}, {Width: 80}, {Width: 120}, {Width: 200}, {Width: 80, Color: true},
			{Width: 120, Color: true}} {
			file := fmt.Sprintf("testdata/screens/%s.%d.golden", name, s.Width)
			if s.Color {
				file = fmt.Sprintf("testdata/screens/%s.%d.color.golden", name, s.Width)
			}
			got := screenOf(t, path, s)
			requireScreen(t, file, got)
			plain := sgr.ReplaceAllString(got, "")
			require.NotContains(t, plain, "\x1b", file)
			if s.Width >= 80 {
				require.LessOrEqual(t, strings.Count(plain, "\n"), 24, file)
			}
			for line := range strings.Lines(plain) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), s.Width, "%s: %s", file, line)
			}
		}
	}
}

// TestScreenOfOlder: recordings of earlier versions fit their screen too.
func TestScreenOfOlder(t *testing.T) {
	files, err := filepath.Glob("testdata/*.gputrace")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		for _, width := range []int{60, 80, 120, 200} {
			for line := range strings.Lines(screenOf(t, f, screen.Screen{Width: width})) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, "%s: %s", f, line)
			}
		}
	}
}

// TestAnswersFit: what the other answers print at each width, as it was looked at. No line is longer than the screen, which is COLUMNS.
func TestAnswersFit(t *testing.T) {
	for _, tt := range []struct {
		name, recording string
		args            []string
	}{
		{"leaks", "growing", nil},
		{"oom", "out-of-memory", nil},
		{"fragments", "out-of-memory", []string{"--at", "peak", "--request", "64MiB"}},
		{"whatif", "out-of-memory", []string{"--device-memory", "24GiB"}},
	} {
		path := screenRecording(t, screens[tt.recording])
		for _, width := range []int{60, 80, 120, 200} {
			t.Setenv("COLUMNS", strconv.Itoa(width))
			got, stderr, _ := gputrace(t, append([]string{tt.name, path}, tt.args...)...)
			require.Empty(t, stderr)
			requireScreen(t, fmt.Sprintf("testdata/screens/%s.%d.golden", tt.name, width), got)
			for line := range strings.Lines(got) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, "%s: %s", tt.name, line)
			}
		}
	}
}

// requireScreen compares with a file, or writes it.
func requireScreen(t *testing.T, file, got string) {
	t.Helper()
	if *updateScreens {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "go test ./cmd/gputrace -run 'TestScreens|TestAnswersFit' -update")
	require.Equal(t, string(want), got, file)
}

// screenOf is what report prints of a recording on a screen.
func screenOf(t *testing.T, path string, s screen.Screen) string {
	t.Helper()
	source, err := export.Open(path, nil)
	require.NoError(t, err)
	defer source.Close()
	var out strings.Builder
	require.NoError(t, source.PrintAnswer(&out, &export.AnswerOptions{Screen: s, Path: "result"}))
	return out.String()
}

// TestDeviceUnknown: what the driver says of a device when the program has ended, and 0 B while it runs, is not shown as what was in use.
func TestDeviceUnknown(t *testing.T) {
	for reason, said := range map[string]figures.Bytes{recording.ReasonStopped: 0, recording.ReasonExited: 1 << 20,
		recording.ReasonExeced: 0} {
		path := screenRecording(t, func(j *eventtest.Job, end *recording.End) {
			steps(j, 40, 5<<20)
			end.Reason = reason
			end.Memory.Driver[0].Used, end.Memory.Driver[0].All = figures.Unknown, said
		})
		got := flat(printed(t, "report "+path))
		require.Contains(t, got, "cuda:0 24.0 GiB", "the head has the device in any case")
		require.NotContains(t, got, "B of 24.0 GiB", reason)
		require.NotContains(t, got, "GiB left", reason)
		require.NotContains(t, flat(printed(t, "leaks "+path)), "24.0 GiB", reason)
		require.NotContains(t, flat(printed(t, "report -v "+path)), "B of 24.0 GiB", reason)
	}
}

// TestTextsFit: what else is printed fits 60 columns too; only an example of the help, which is to be copied, can be longer.
func TestTextsFit(t *testing.T) {
	path := screenRecording(t, screens["growing"])
	t.Setenv("COLUMNS", "60")
	for _, args := range [][]string{
		{"check", path, "--max-peak", "1KiB", "--no-leaks"}, {"report", path, "--by", "stack"}, {"report", path, "--at", "peak"},
		{"top", path, "--once"}, {"--help"}, {"report", "--help"},
	} {
		got, stderr, _ := gputrace(t, args...)
		require.Empty(t, stderr)
		require.NotEmpty(t, got)
		for line := range strings.Lines(got) {
			if !strings.HasPrefix(strings.TrimSpace(line), "gputrace ") && !strings.HasPrefix(strings.TrimSpace(line), "attach to process 4242") {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 60, "%q: %s", args, line)
			}
		}
	}
}
