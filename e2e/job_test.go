// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
)

// part is what came of one process of a job.
type part struct {
	*tracer.Target
	heap    *heap.Heap
	events  []event.Event
	program int // how many programs the process had been before
}

// job is a trace of several processes in this process, with a goroutine that reads it.
type job struct {
	*tracer.Tracer
	now   map[uint32]*part // by PID
	parts []*part          // in the order in which they were found
	err   error
	ended chan struct{}
}

// attachJob traces processes; with children those that they make too.
func attachJob(t *testing.T, o *tracer.Options, targets ...*target) *job {
	t.Helper()
	o.Job = true
	s := tracer.Open(o)
	var added []*tracer.Target
	for _, p := range targets {
		opened, err := process.Open(p.pid)
		require.NoError(t, err)
		tr, err := s.Add(opened)
		require.NoError(t, err)
		added = append(added, tr)
	}
	return readJob(t, s, added...)
}

// readJob begins to read a job.
func readJob(t *testing.T, s *tracer.Tracer, added ...*tracer.Target) *job {
	t.Helper()
	j := &job{Tracer: s, now: map[uint32]*part{}, ended: make(chan struct{})}
	t.Cleanup(func() { _ = s.Close() })
	for _, tr := range added {
		j.arrive(tr)
	}
	go func() {
		defer close(j.ended)
		j.read()
	}()
	return j
}

func (j *job) arrive(tr *tracer.Target) {
	p := &part{Target: tr, heap: heap.New()}
	if old := j.now[tr.PID()]; old != nil {
		p.program = old.program + 1
	}
	j.now[tr.PID()] = p
	j.parts = append(j.parts, p)
}

func (j *job) read() {
	buf := make([]event.Event, 0, 4096)
	for j.err == nil {
		buf, j.err = j.Tracer.Read(buf[:0])
		for _, tr := range j.Arrived() {
			j.arrive(tr)
		}
		for i := range buf {
			p := j.now[buf[i].PID]
			p.heap.Apply(&buf[i])
			p.events = append(p.events, buf[i])
		}
	}
	if errors.Is(j.err, io.EOF) {
		j.err = nil
	}
}

// finish waits for the end of the job, and checks that every run of every probe is accounted for and nothing was lost.
func (j *job) finish(t *testing.T) {
	t.Helper()
	<-j.ended
	require.NoError(t, j.err)
	require.Empty(t, j.Tracer.Warnings())
	hits, err := j.Tracer.Hits()
	require.NoError(t, err)
	var emitted, received uint64
	events := 0
	for _, h := range hits {
		sum := h.Emitted
		for _, n := range h.Quiet {
			sum += n
		}
		require.Equal(t, h.Hits, sum, "%+v", h)
		emitted += h.Emitted
		received += h.Received
	}
	for _, p := range j.parts {
		events += len(p.events)
		require.Zero(t, p.StackRecordsLost())
	}
	require.Equal(t, emitted, received)
	require.EqualValues(t, received, events)
}

// allocated is what the process's allocators hold at the last event of its part, bytes.
func (p *part) allocated() (n uint64) {
	totals := p.heap.Totals()
	for i := range totals.Accounts {
		n += totals.Accounts[i].Allocated
	}
	return n
}

// TestJobOfTwo traces two processes at once: each has its own totals, to the byte, and its own stacks.
func TestJobOfTwo(t *testing.T) {
	first := startTraining(t, "mlp.py", "--steps", "120", "--counters", "DIR/counters").ready(t)
	second := startTraining(t, "gpt.py", "--steps", "100", "--layers", "2", "--width", "128", "--vocab", "1000", "--counters",
		"DIR/counters").ready(t)
	j := attachJob(t, options(), first, second)
	first.release(t)
	second.release(t)
	first.done(t)
	second.done(t)
	j.Stop()
	j.finish(t)
	require.Len(t, j.parts, 2)
	for i, p := range []*target{first, second} {
		part := j.parts[i]
		require.EqualValues(t, p.pid, part.PID())
		checkBoundaries(t, &trace{events: part.events}, readCounters(t, p), false)
		script := []string{"mlp.py", "gpt.py"}[i]
		require.Greater(t, stacksThrough(part, script), 100, "stacks through %s", script)
		require.Equal(t, tracer.Stopped, part.End())
	}
}

// stacksThrough counts the complete stacks of events that lead through a Python file; a stack that leads through another script
// fails.
func stacksThrough(p *part, script string) (n int) {
	for i := range p.events {
		st := p.Stack(p.events[i].Stack)
		if st == nil || !st.Status.Complete() {
			continue
		}
		for _, f := range st.Frames {
			if f.Kind == event.FramePython && filepath.Base(f.File) == script {
				n++
				break
			}
		}
	}
	return n
}

// probedElsewhere is the parent in which another tracer places a return probe: from the first hit on it has a page of the kernel's code,
// which no child gets.
const probedElsewhere = "of a parent that another tracer probes"

// TestChildren: a process that is made while its parent is traced is covered from its first allocation.
func TestChildren(t *testing.T) {
	for name, args := range map[string][]string{
		"forked":                 {"--children", "20", "--at-once", "4"},
		"forked by the forked":   {"--children", "10", "--at-once", "4", "--nested"},
		"by perf events, forked": {"--children", "10", "--at-once", "4"},
		"another program":        {"--children", "10", "--at-once", "4", "--exec"},
		"so many that end early": {"--children", "2000", "--at-once", "8", "--calls", "2"},
		probedElsewhere:          {"--children", "40", "--at-once", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := startIn(t, dir, nil, filepath.Join(env.programs, "forks"), append(args, "--go", filepath.Join(dir, "go"))...).ready(t)
			o := options()
			o.Children, o.PerfUprobes = true, strings.HasPrefix(name, "by perf events")
			j := attachJob(t, o, p)
			if name == probedElsewhere {
				returnProbes(t, filepath.Join(env.programs, "libc10.so"), p.pid, "probe_alloc")
			}
			p.release(t)
			line := p.await(t, "DONE")
			j.finish(t)
			named := checkChildren(t, j, p, line)
			if name != "another program" { // it ends before its mappings can be read: nothing is stopped
				require.Equal(t, len(j.parts)-1, named)
			}
		})
	}
}

// TestForkStorm: with a ring that overflows, also with the records of beginnings and ends, what was lost is counted, and processes come
// and go as before.
func TestForkStorm(t *testing.T) {
	children := 3000
	if n, err := strconv.Atoi(os.Getenv("GPUTRACE_FORKS")); err == nil {
		children = n
	}
	dir := t.TempDir()
	p := startIn(t, dir, nil, filepath.Join(env.programs, "forks"), "--children", itoa(children), "--at-once", "16", "--calls", "40",
		"--go", filepath.Join(dir, "go")).ready(t)
	o := options()
	o.Children, o.RingBytes = true, 64<<10
	j := attachJob(t, o, p)
	p.release(t)
	p.await(t, "DONE")
	<-j.ended
	require.NoError(t, j.err)
	require.Empty(t, j.Tracer.Warnings())
	require.Zero(t, j.ChildrenLost())
	hits, err := j.Tracer.Hits()
	require.NoError(t, err)
	var runs, emitted, received, lost uint64
	for _, h := range hits {
		sum := h.Emitted + h.Lost()
		for _, n := range h.Quiet {
			sum += n
		}
		require.Equal(t, h.Hits, sum, "%+v", h)
		runs, emitted, received, lost = runs+h.Hits, emitted+h.Emitted, received+h.Received, lost+h.Lost()
	}
	require.Equal(t, uint64(children*61), runs, "40 allocations and 20 frees of each, and one of the parent")
	require.Equal(t, emitted, received)
	t.Logf("%d runs, %d lost, %d of %d children seen", runs, lost, len(j.parts)-1, children)
}

// TestChildrenDriver: so are allocations by the driver, which the parent has loaded and not used.
func TestChildrenDriver(t *testing.T) {
	dir := t.TempDir()
	p := startIn(t, dir, []string{"RUN_PROGRAM=" + filepath.Join(env.programs, "forks")}, filepath.Join(env.testdata, "run"),
		"--cuda", "--children", "12", "--at-once", "4", "--go", filepath.Join(dir, "go")).ready(t)
	o := options()
	o.Children = true
	j := attachJob(t, o, p)
	p.release(t)
	p.await(t, "DONE")
	j.finish(t)
	want, got := printedByChildren(p), map[uint32][]uint64{}
	require.Len(t, want, 12)
	for _, part := range j.parts[1:] {
		drivers := part.heap.Totals().Drivers
		i := slices.IndexFunc(drivers, func(d heap.DriverAccount) bool { return d.Layer == event.LayerDevice })
		require.GreaterOrEqual(t, i, 0)
		require.Zero(t, drivers[i].UnknownFrees)
		require.EqualValues(t, 0, drivers[i].Device.Index)
		got[part.PID()] = append(got[part.PID()], drivers[i].Live.Bytes)
	}
	require.Equal(t, want, got)
}

// TestContainer traces a job in a PID and a mount namespace of its own, whose files are deleted when they are mapped: by its first
// process, which has nothing to trace itself.
func TestContainer(t *testing.T) {
	dir := t.TempDir()
	hidden := filepath.Join(dir, "hidden")
	require.NoError(t, os.Mkdir(hidden, 0o755))
	script := `mount -t tmpfs none "$1" && cp "$2" "$3" "$1" && "$1/forks" --children 10 --at-once 4 --go "$4/go" && true`
	p := startIn(t, dir, nil, "unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", hidden,
		filepath.Join(env.programs, "forks"), filepath.Join(env.programs, "libc10.so"), dir)
	inner := p.await(t, "READY")
	require.NotEqual(t, fmt.Sprint("READY ", p.pid), inner)
	for _, name := range []string{"forks", "libc10.so"} {
		require.NoError(t, os.Remove(fmt.Sprintf("/proc/%d/root%s/%s", leafOf(t, p.pid), hidden, name)))
	}
	o := options()
	o.Children, o.Job = true, true
	s := tracer.Open(o)
	root, err := process.Open(p.pid)
	require.NoError(t, err)
	require.NoError(t, s.Expect(root))
	j := readJob(t, s)
	p.release(t)
	line := p.await(t, "DONE")
	j.finish(t)
	require.Len(t, j.parts, 11, "the parent and its children")
	require.Equal(t, line, fmt.Sprint("DONE ", j.parts[0].allocated()))
	var want, got []uint64
	for _, bytes := range printedByChildren(p) {
		want = append(want, bytes...)
	}
	for _, part := range j.parts[1:] {
		got = append(got, part.heap.Totals().Accounts[0].Live.Bytes)
		st := part.Stack(part.events[0].Stack)
		require.True(t, slices.ContainsFunc(st.Frames, func(f event.Frame) bool { return f.Func == "allocate" }), "%+v", st)
	}
	require.Equal(t, want, got)
}

// leafOf is the last of a chain of processes that each have one child.
func leafOf(t *testing.T, pid int) int {
	t.Helper()
	for {
		p, err := process.Open(pid)
		require.NoError(t, err)
		children := p.Children()
		if len(children) == 0 {
			return pid
		}
		require.Len(t, children, 1)
		pid = children[0]
	}
}

// printedByChildren is what they say that they have allocated, by PID.
func printedByChildren(p *target) map[uint32][]uint64 {
	out := map[uint32][]uint64{}
	for _, line := range p.output() {
		var pid uint32
		var bytes uint64
		if n, _ := fmt.Sscanf(line, "CHILD %d %d", &pid, &bytes); n == 2 {
			out[pid] = append(out[pid], bytes)
		}
	}
	return out
}

// checkChildren compares what each process says that it has allocated with the events that came from it. It returns how many first
// stacks have the name of the function that they lead through.
func checkChildren(t *testing.T, j *job, p *target, done string) int {
	t.Helper()
	want := printedByChildren(p)
	root := j.parts[0]
	require.Equal(t, done, fmt.Sprint("DONE ", root.allocated()))
	got, named := map[uint32][]uint64{}, 0
	for _, part := range j.parts[1:] {
		a := part.heap.Totals().Accounts
		require.Len(t, a, 1)
		require.Zero(t, a[0].Gaps)
		require.Equal(t, tracer.Exited, part.End())
		got[part.PID()] = append(got[part.PID()], a[0].Live.Bytes)
		st := part.Stack(part.events[0].Stack)
		require.NotNil(t, st)
		if slices.ContainsFunc(st.Frames, func(f event.Frame) bool { return f.Func == "allocate" }) {
			named++
		} else if len(j.parts)-1-named < 20 {
			t.Logf("process %d: no name in a stack that is %s: %+v", part.PID(), st.Status, st.Frames)
		}
	}
	require.Equal(t, want, got)
	return named
}
