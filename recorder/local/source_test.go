// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
)

// started is the source of one process that is traced.
func started(t *testing.T, o *recorder.Options, p *process.Process) (*live, *madeTracer, *observer, *target) {
	t.Helper()
	o.PIDs, o.Memory = []int{p.PID}, "auto"
	l, m, seen := openMade(t, o)
	require.NoError(t, l.Start(t.Context()))
	targets := l.Arrived()
	require.Len(t, targets, 1)
	n := targets[0].(*target)
	t.Cleanup(n.Close)
	return l, m, seen, n
}

// TestRead: events, processes that come, notices and warnings are passed on, until the end; what there was no place for is said then, once.
func TestRead(t *testing.T) {
	t.Parallel()
	p, child := program(t, "gpuprogram", "libcuda.so.1"), program(t, "child", "libcuda.so.1")
	l, m, seen, _ := started(t, &recorder.Options{Children: true}, p)
	m.batches = [][]event.Event{{{Time: 1}, {Time: 2}}}
	m.arrived = []traced{&madeTarget{process: child}}
	m.notices, m.warnings, m.lost = []string{"libcuda.so.1 was loaded"}, []error{errors.New("no stack")}, 3
	require.False(t, l.Ended())
	require.False(t, l.Emptied())
	events, err := l.Read([]event.Event{{Time: 0}})
	require.NoError(t, err)
	require.Equal(t, []event.Event{{Time: 0}, {Time: 1}, {Time: 2}}, events)
	require.Equal(t, []int{child.PID}, pidsOf(l.Arrived()))
	require.Equal(t, []string{"  libcuda.so.1 was loaded"}, seen.notices)
	require.Equal(t, m.warnings, []error(nil))
	require.EqualError(t, errors.Join(seen.warnings...), "no stack")
	require.True(t, l.Ended())
	require.True(t, l.Emptied())

	_, err = l.Read(nil)
	require.ErrorIs(t, err, io.EOF)
	require.Len(t, seen.warnings, 2)
	require.ErrorContains(t, seen.warnings[1], fmt.Sprintf("3 new processes were not traced: more than %d at a time", tracer.MaxChildren))
}

// TestFinish: when the recording is about to end, no further process is looked for.
func TestFinish(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	l, m, seen, _ := started(t, &recorder.Options{}, p)
	l.search = newSearch(&recorder.Options{All: true})
	l.Finish()
	m.batches = [][]event.Event{{}}
	_, err := l.Read(nil)
	require.NoError(t, err)
	require.True(t, l.search.next.IsZero(), "it did not look")
	_, err = l.Read(nil)
	require.ErrorIs(t, err, io.EOF)
	require.Empty(t, seen.warnings, "there was a place for each process")
}

func TestSourceFigures(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	l, m, _, n := started(t, &recorder.Options{}, p)
	require.EqualValues(t, 11, l.Lost())
	hits, err := l.Hits()
	require.NoError(t, err)
	require.Equal(t, "a", hits[0].Probe)
	before := bootTime()
	now := l.Now()
	require.True(t, before <= now && now <= bootTime())
	require.NotZero(t, before)
	l.Stop()
	require.Equal(t, "stop", m.calls[len(m.calls)-1])

	require.Equal(t, "gpuprogram", n.NameNow())
	require.Equal(t, "gpuprogram", n.About().Name)
	uid, err := n.UID()
	require.NoError(t, err)
	require.Equal(t, os.Geteuid(), uid)
	require.True(t, n.Alive())
	require.True(t, n.Began())
	require.EqualValues(t, 9, n.Stack(9).ID)
	require.EqualValues(t, 5, n.Lost())
	require.EqualValues(t, 6, n.OverLimit())
	require.Equal(t, recorder.Stacks{Lost: 7, Raw: figures.RawStacks{Sent: 8}}, n.Stacks())
	end(t, p)
	require.False(t, n.Alive())
}

// TestEnd: that of the one process is the end of the recording; of a job, one that ended has ended, and one that is stopped with the
// recording is known to be so when all events were read.
func TestEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		many, over bool
		end        tracer.End
		want       recorder.End
	}{
		{false, false, tracer.Running, recorder.Running}, {false, true, tracer.Running, recorder.Running},
		{false, false, tracer.Exited, recorder.Running}, {false, true, tracer.Exited, recorder.Exited},
		{false, false, tracer.Execed, recorder.Running}, {false, true, tracer.Execed, recorder.Execed},
		{false, false, tracer.Stopped, recorder.Running}, {false, true, tracer.Stopped, recorder.Stopped},
		{true, false, tracer.Running, recorder.Running}, {true, false, tracer.Exited, recorder.Exited},
		{true, false, tracer.Execed, recorder.Execed}, {true, false, tracer.Stopped, recorder.Running},
		{true, true, tracer.Stopped, recorder.Stopped}, {true, true, tracer.Exited, recorder.Exited},
	} {
		source := &live{options: &recorder.Options{PIDs: []int{1}, Children: c.many}, over: c.over}
		n := &target{source: source, traced: &madeTarget{end: c.end}}
		require.Equal(t, c.want, n.End(), "%+v", c)
	}
}

// TestFile: files of the program are opened as it names them, also after its end; a cell of a notebook is its text.
func TestFile(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	_, _, _, n := started(t, &recorder.Options{}, p)
	n.traced.(*madeTarget).cells = map[string]string{"In [1]": "x = 1"}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "train.py"), []byte("step()"), 0o600))
	text := func(path string) string {
		r := n.File(path)
		if r == nil {
			return ""
		}
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		return string(data)
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	source, err := os.ReadFile("source_test.go")
	require.NoError(t, err)
	require.Equal(t, here, p.Cwd())
	require.Equal(t, "x = 1", text("In [1]"))
	require.Equal(t, "step()", text(filepath.Join(dir, "train.py")))
	require.Equal(t, string(source), text("source_test.go"), "from the folder in which it runs")
	require.Empty(t, text(filepath.Join(dir, "none.py")))

	n.cwd = dir
	end(t, p)
	require.Equal(t, "step()", text("train.py"), "from the folder in which it ran at the attach")
	n.Close()
	n.files = nil
	require.Nil(t, n.File(filepath.Join(dir, "train.py")), "they cannot be read")
	n.Close()
}

// TestFound: hooks are listed by file, with the number of functions of each.
func TestFound(t *testing.T) {
	t.Parallel()
	p := program(t, "gpuprogram", "libcuda.so.1")
	l, m, _, n := started(t, &recorder.Options{}, p)
	found := tracer.Found{
		Python: "3.11.7", Beside: "a sub-interpreter", PythonErr: errors.New("a"), Autograd: errors.New("b"), PyTorch: "2.15.0", CUDA: "12.8",
		Driver: "580", Empty: []string{"e"},
		Libraries: 3, Rows: 4, Cached: 5, Unreadable: []error{errors.New("c")}, Multi: true, Took: 6, Attached: 7,
	}
	for _, probe := range []struct {
		library *hook.Library
		file    string
	}{{hook.Driver, "/a/libcuda.so.1"}, {hook.Runtime, "/a/libcudart.so"}, {hook.Driver, "/a/libcuda.so.1"},
		{hook.Driver, "/b/libcuda.so.1"}} {
		found.Probes = oneMore(found.Probes)
		last := found.Probes[len(found.Probes)-1]
		last.Library, last.File = probe.library, probe.file
	}
	n.traced.(*madeTarget).found = found
	memory := m.Memory()
	require.Equal(t, &recorder.Found{
		Python: found.Python, Beside: found.Beside, PythonErr: found.PythonErr, Autograd: found.Autograd, PyTorch: found.PyTorch,
		CUDA: found.CUDA, Driver: found.Driver,
		Memory: memory.String(), Empty: found.Empty, Libraries: 3, Rows: 4, Cached: 5, Unreadable: found.Unreadable, Multi: true, Took: 6,
		Attached: 7,
		Hooks: []recorder.Hook{
			{Library: hook.Driver, File: "/a/libcuda.so.1", Functions: 2}, {Library: hook.Runtime, File: "/a/libcudart.so", Functions: 1},
			{Library: hook.Driver, File: "/b/libcuda.so.1", Functions: 1},
		},
	}, n.Found())
	require.Same(t, l, n.source)
}

// oneMore appends an empty element: the type of a probe is the tracer's alone.
func oneMore[T any](s []*T) []*T { return append(s, new(T)) }

// TestDropRights: what goes wrong is a warning.
func TestDropRights(t *testing.T) {
	t.Parallel()
	l, m, seen := openMade(t, &recorder.Options{PIDs: []int{1}})
	l.tracer, m.undropped = m, errors.New("not permitted")
	l.dropRights()
	require.Equal(t, []error{m.undropped}, seen.warnings)
}

// TestClose: also of a source that was never started.
func TestClose(t *testing.T) {
	t.Parallel()
	l, m, _ := openMade(t, &recorder.Options{PIDs: []int{1}})
	require.NoError(t, l.Close())
	require.Empty(t, m.calls)
	require.Error(t, l.ctx.Err(), "readings end with it")
	l.tracer = m
	require.NoError(t, l.Close())
	require.Equal(t, []string{"close"}, m.calls)
}
